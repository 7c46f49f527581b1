"""A candidate's way through the stages; most tests stand in for the gates, which are slow."""

import json
from dataclasses import replace

import pytest

from bitgate.bench import rounds, show, stages
from bitgate.bench.effect import NULL_ROUNDS
from bitgate.bench.process import ChildFailed
from bitgate.bench.resume import RunState
from bitgate.bench.session import Timed
from bitgate.bench.witness import TimingRefused
from bitgate.parity.gates import ORDER, Budget
from bitgate.records.candidate_file import GateSettings
from bitgate.records.errors import EnvironmentUnfit, Inconclusive, UsageError
from bitgate.records.lanes import current_baseline
from bitgate.records.types import Bound, GateResult, Mismatch, Verdict

REQUIRED = ("G0", "G2", "G4", "G9", "G12")
BOUND = Bound(unit="call", trials=60, failures=0, confidence="0.95", upper="0.0488")
SAMPLES = [10_000 + i for i in range(24)]
HALF = [5_000 + i for i in range(24)]
SLOW = """
    import time
    from bitgate.kernels.moe.experts import experts_loop

    def run(**arguments):
        time.sleep(0.004)
        return experts_loop(**arguments)
"""


def result(gate, put, outcome="pass"):
    passed = outcome == "pass"
    return GateResult(
        gate=gate,
        version=1,
        outcome=outcome,
        reason="as planted",
        compared=3 if passed else 0,
        expected=3 if passed else 0,
        bounds=(BOUND,) if passed else (),
        evidence=put(gate.encode(), "text/plain") if passed else None,
    )


class Gates:
    """Stands in for the gates; `findings` plants what a gate says instead of passing."""

    def __init__(self):
        self.findings = {}
        self.asked = []

    def run(self, subject, *, put, done, keep, **others):
        results = {}
        for gate in ORDER:
            if gate not in REQUIRED:
                results[gate] = result(gate, put, "not-run")
                continue
            key = f"{gate}/{subject.candidate.digest}"
            results[gate] = done.get(key)
            if results[gate] is None:
                self.asked.append(gate)
                results[gate] = self.findings.get(gate) or result(gate, put)
                keep(key, results[gate])
        stop = next((one for one in results.values() if one.outcome in {"fail", "blocked"}), None)
        return Verdict(
            kind="exact" if stop is None else stop.finding or "inconclusive",
            required=REQUIRED,
            results=tuple(results.values()),
            bound=BOUND,
            coverage="planted",
        )


class Trusting:
    """A re-check that finds nothing; the real one needs the real gates' evidence."""

    def evidence(self, record, ledger):
        return ()

    def effect(self, record):
        return record.effect


@pytest.fixture
def gates(monkeypatch):
    planted = Gates()
    monkeypatch.setattr(stages.gates, "run", planted.run)
    monkeypatch.setattr(stages, "recheck", Trusting)
    return planted


def timing(measurement):
    def measure(contest, workloads, plan, **others):
        for workload in workloads:
            yield workload, Timed(measurement=measurement, notes=())

    return measure


def row_of(go, path, measurement, monkeypatch):
    monkeypatch.setattr(rounds, "measure", timing(measurement))
    report = go(path)
    return report.rows[0], report.exit_code


def test_from_an_opened_lane_to_a_promotion(
    write, go, ledger, folder, gates, answers_here, monkeypatch, fabricate
):
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "measure", timing(fabricate(SAMPLES, SAMPLES)))
        opened = go(write("slow", SLOW), open_lane=True)
    assert [row.ending for row in opened.rows] == ["opened"], opened.rows[0].reason
    lane = opened.rows[0].entry.body.lane
    assert opened.exit_code == 0
    with pytest.raises(UsageError, match=r"lanes are open already: .*baseline = \"promoted\""):
        go(write("slow", SLOW), open_lane=True)

    faster = go(write("same", baseline="promoted"))
    row = faster.rows[0]
    assert (row.ending, row.effect.effect) == ("promoted", "FASTER"), row.reason
    assert current_baseline(ledger, lane).candidate.name == "same"
    assert ("served", "not-run") in [(one.name, one.outcome) for one in faster.stages]

    # The baseline must still be what was recorded.
    again = write("slow", SLOW, baseline="promoted")
    (folder / "same.py").write_text((folder / "same.py").read_text() + "\n# edited\n")
    with pytest.raises(UsageError, match=r"other sources here: same\.py"):
        go(again)


def never(*arguments, **options):
    raise AssertionError("nothing is timed after a failure")


@pytest.mark.parametrize("finding", ["nondeterministic", "history-dependent"])
def test_a_retry_needs_what_the_rejection_asked_for(
    write, go, gates, monkeypatch, settings, finding
):
    monkeypatch.setattr(rounds, "measure", never)
    failed = replace(result("G4", None, "fail"), finding=finding, culprit="token 3")
    gates.findings["G4"] = failed
    report = go(write("same"))
    assert report.rows[0].entry.body.reopen_requires == ("G9",)
    assert report.rows[0].reason == f"{finding}: G4: as planted"
    with pytest.raises(UsageError, match="a retry needs G9 on captured tensors"):
        go(write("same", settings=settings.replace('bundle = "captured"', "")))


def test_a_blocked_gate_is_inconclusive(write, go, gates, monkeypatch):
    monkeypatch.setattr(rounds, "measure", never)
    gates.findings["G9"] = result("G9", None, "blocked")
    report = go(write("same"))
    assert (report.rows[0].ending, report.exit_code) == ("inconclusive", 3)


def raising(error):
    def measure(*arguments, **options):
        raise error
        yield

    return measure


@pytest.mark.parametrize(
    ("error", "ending", "code"),
    [
        (TimingRefused("planted", side="C", code="output"), "rejected", 1),
        (TimingRefused("planted", side="B", code="output"), "inconclusive", 3),
        (ChildFailed("planted"), "inconclusive", 3),
        (Inconclusive("planted"), "inconclusive", 3),
    ],
)
def test_no_time_is_recorded_where_timing_failed(
    write, go, gates, monkeypatch, error, ending, code
):
    monkeypatch.setattr(rounds, "measure", raising(error))
    report = go(write("same"))
    row = report.rows[0]
    assert (row.ending, report.exit_code, row.reason) == (ending, code, "planted")
    assert row.entry.body.measurement is None
    assert row.entry.body.verdict.passed


@pytest.mark.parametrize(
    ("baseline", "candidate", "ending", "effect", "words", "code"),
    [
        (SAMPLES, SAMPLES, "passed", "SAME", "exact, not faster: SAME, 1.000x", 0),
        (SAMPLES[:5], HALF[:5], "passed", "INCONCLUSIVE", "not faster: INCONCLUSIVE", 0),
        (HALF, SAMPLES, "rejected", "SLOWER", "exact, slower: SLOWER, 0.5", 1),
    ],
)
def test_what_an_effect_makes_of_a_record(
    write, go, gates, monkeypatch, fabricate, baseline, candidate, ending, effect, words, code
):
    write("theirs")
    value = fabricate(baseline, candidate, plan={"margin": "0.01"})
    row, exit_code = row_of(go, write("same", baseline="theirs"), value, monkeypatch)
    assert (row.ending, row.effect.effect, exit_code) == (ending, effect, code)
    assert words in row.reason
    assert row.entry.body.effect == effect


def test_a_saving_below_the_kill_criterion_is_rejected(
    write, go, gates, monkeypatch, fabricate, settings
):
    write("theirs")
    path = write("same", baseline="theirs", settings=settings + "kill_below_saving_ns = 6000\n")
    row, code = row_of(go, path, fabricate(SAMPLES, HALF), monkeypatch)
    assert (row.ending, row.effect.effect, code) == ("rejected", "FASTER", 1)
    assert "the median saving is 5000" in row.reason
    path.write_text(path.read_text().replace("6000", "5000"))
    row, code = row_of(go, path, fabricate(SAMPLES, HALF), monkeypatch)
    # It may stand now, but without an open lane there is nothing to be promoted in.
    assert (row.ending, row.refused, code) == ("passed", True, 1)
    assert "not promoted, missing: " in row.reason
    assert "was never declared" in row.reason


@pytest.mark.parametrize(
    ("changes", "ending", "code"),
    [
        ({"null_baseline_ns": (11_000,) * NULL_ROUNDS}, "inconclusive", 4),
        ({"resolution_ns": 5_000}, "invalid", 3),
    ],
)
def test_samples_that_prove_nothing_make_no_record_of_speed(
    write, go, gates, monkeypatch, fabricate, changes, ending, code
):
    write("theirs")
    value = fabricate(SAMPLES, HALF, **changes)
    row, exit_code = row_of(go, write("same", baseline="theirs"), value, monkeypatch)
    assert (row.ending, row.effect.effect, exit_code) == (ending, "INVALID", code)


def test_a_difference_to_itself_opens_no_lane(write, go, ledger, gates, monkeypatch, fabricate):
    monkeypatch.setattr(rounds, "measure", timing(fabricate(SAMPLES, HALF)))
    report = go(write("same"), open_lane=True)
    assert (report.rows[0].ending, report.exit_code) == ("inconclusive", 4)
    assert current_baseline(ledger, report.rows[0].entry.body.lane) is None


def test_a_lane_that_is_not_open_is_named(write, go):
    with pytest.raises(UsageError, match=r"not open.*--open-lane"):
        go(write("same", baseline="promoted"))


def test_fewer_rounds_than_processes_are_refused_before_the_gates(write, go, gates, settings):
    with pytest.raises(UsageError, match="at least one for each of 30 processes, got 24"):
        go(write("same", settings=settings.replace("processes = 1", "processes = 30")))
    assert gates.asked == []


def test_opening_a_lane_excludes_a_baseline(write, go):
    with pytest.raises(UsageError, match="--open-lane"):
        go(write("same", baseline="promoted"), open_lane=True)


def test_a_killed_run_goes_on_with_its_gates(write, go, ledger, folder, gates, monkeypatch):
    path = write("same")
    monkeypatch.setattr(rounds, "measure", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        go(path)
    assert list(ledger.records()) == []

    monkeypatch.setattr(rounds, "measure", raising(Inconclusive("planted")))
    gates.asked.clear()
    assert go(path, resume=True).reused == REQUIRED
    assert gates.asked == []
    # Without the option everything is asked again.
    assert go(path).reused == ()
    assert gates.asked == list(REQUIRED)

    # One changed byte is another candidate: nothing is used again.
    (folder / "same.py").write_text((folder / "same.py").read_text() + "\n")
    assert go(path, resume=True).reused == ()


def test_a_run_killed_between_two_gates_repeats_only_the_rest(write, go, gates, monkeypatch):
    monkeypatch.setattr(rounds, "measure", raising(Inconclusive("planted")))
    path = write("same")
    gates.findings["G9"] = result("G9", None, "blocked")
    go(path)
    gates.findings.clear()
    gates.asked.clear()
    assert "G9" not in go(path, resume=True).reused
    assert gates.asked == ["G9"]


def test_kept_results_without_their_evidence_are_not_used(write, go, ledger, gates, monkeypatch):
    monkeypatch.setattr(rounds, "measure", raising(Inconclusive("planted")))
    go(write("same"))
    file = next((ledger.root.parent / "runs").glob("*/gates.json"))
    state = RunState(ledger, file.parent.name)
    assert len(state.load()) == len(REQUIRED)
    evidence = next(iter(json.loads(file.read_bytes()).values()))["evidence"]["sha256"]
    (ledger.root / "objects" / evidence[:2] / evidence).write_bytes(b"edited")
    assert len(state.load()) == len(REQUIRED) - 1
    file.write_bytes(b"{")
    with pytest.raises(EnvironmentUnfit, match="without --resume"):
        state.load()


def test_a_run_is_printed_with_its_evidence_and_how_to_repeat_it(
    write, go, ledger, gates, monkeypatch, capsys
):
    gates.findings["G9"] = replace(
        result("G9", ledger.put, "fail"),
        finding="deterministic-mismatch",
        culprit="request 0, token 1, experts",
        mismatch=Mismatch(
            tensor="out",
            kind="bits",
            detail="differs",
            first_index=(1, 3),
            expected_bits="0x3f80",
            actual_bits="0x3f81",
            differing=2,
            total=40,
            max_ulp=1,
        ),
    )
    monkeypatch.setattr(rounds, "measure", never)
    path = write("same")
    report = go(path)
    show.run(report, f"bitgate run {path}", ledger.root, as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        report.entries[0].id[:12],
        "out[1, 3]: expected 0x3f80, got 0x3f81, max 1 ULP, 2 of 40 differ",
        "culprit: request 0, token 1, experts",
        "3 of 3",
        "again: bitgate run",
    ):
        assert part in text
    evidence = report.verdict.results[0].evidence
    assert (ledger.root / "objects" / evidence.sha256[:2] / evidence.sha256).is_file()
    assert evidence.sha256 in text

    show.run(report, f"bitgate run {path}", ledger.root, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["exit_code"], facts["rows"][0]["ending"]) == (1, "rejected")
    assert facts["verdict"]["kind"] == "deterministic-mismatch"


def test_the_budget_without_settings_is_that_of_the_gates():
    settings, budget = GateSettings(), Budget()
    for name in ("cases", "repeats", "processes", "confidence", "max_p", "boundaries"):
        assert getattr(settings, name) == getattr(budget, name)
    assert settings.timeout_s == budget.call_timeout_s
