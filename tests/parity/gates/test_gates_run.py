"""The order, the verdict, resuming, and the check at promotion."""

import importlib
import json
import pkgutil
from dataclasses import replace

import pytest
import rfc8785

from bitgate.parity import gates
from bitgate.parity.bounds import bound
from bitgate.parity.gates import GATES, ORDER, PLANNED, Gate, identity_key, recheck_evidence
from bitgate.records.provenance import environment, harness
from bitgate.records.types import Record

RAN = ("G0", "G2", "G4", "G9", "G12")
FLIPPED = """
    import torch
    def run(*, x, w, shift):
        y = x * w + shift
        if (x != x.round()).any():
            y.view(torch.int32)[1, 2] ^= 1
        return y, y[:, 0] - y[:, -1]
"""


@pytest.fixture
def full(bench, write_bundle, request):
    bench.bundle = write_bundle()
    return bench


def outcomes(verdict) -> dict[str, str]:
    return {result.gate: result.outcome for result in verdict.results}


def test_the_catalogue_is_complete_and_in_order():
    assert tuple(f"G{n}" for n in (*range(11), 12)) == ORDER
    assert tuple(gate.id for gate in GATES) == RAN
    assert {gate.id for gate in GATES} | {gate.id for gate in PLANNED} == set(ORDER)
    assert all(gate.reason for gate in PLANNED)


def test_no_gate_is_forgotten():
    package = gates.__path__[0]
    modules = [
        importlib.import_module(f"bitgate.parity.gates.{found.name}")
        for found in pkgutil.iter_modules([package])
    ]
    exported = {id(v): v for module in modules for v in vars(module).values() if type(v) is Gate}
    assert sorted(gate.id for gate in exported.values()) == sorted(gate.id for gate in GATES)


def test_an_unmutated_candidate_is_exact(full):
    verdict = full.run()
    assert (verdict.kind, verdict.passed, verdict.required) == ("exact", True, RAN)
    assert tuple(result.gate for result in verdict.results) == ORDER
    assert all(verdict.gate_passed(gate) for gate in RAN)
    assert outcomes(verdict)["G5"] == "not-run"
    executions = next(r for r in verdict.results if r.gate == "G4").compared
    assert verdict.bound == bound(0, executions, "boundary execution")
    assert "not run: G1, G3, G5" in verdict.coverage


def test_the_run_stops_at_the_first_failure(full):
    verdict = full.run(FLIPPED)
    assert (verdict.kind, verdict.passed) == ("deterministic-mismatch", False)
    assert outcomes(verdict)["G2"] == "pass"
    assert verdict.first_failure.gate == "G4"
    later = [result for result in verdict.results if result.gate in {"G9", "G12"}]
    assert {(r.outcome, r.reason) for r in later} == {("not-run", "stopped at G4")}


def test_without_a_bundle_nothing_passes(bench):
    verdict = bench.run()
    assert (verdict.kind, verdict.passed) == ("inconclusive", False)
    assert verdict.first_failure.gate == "G9"
    assert verdict.first_failure.outcome == "blocked"


def test_source_edited_while_the_gates_run_stops_them(full):
    subject = full.subject()

    def edit(gate, done, total):
        if gate == "G4":
            (subject.root / "planted.py").write_text("def run(*, x, w, shift): return x, x[:, 0]")

    session = {"workloads": full.workloads, "bundle": full.bundle, "budget": full.budget}
    verdict = gates.run(
        subject, **session, put=full.store.put, progress=edit, launcher=full.launcher
    )
    assert not verdict.passed
    assert verdict.first_failure.gate == "G4"
    assert "source planted.py changed while the gates ran" in verdict.first_failure.reason


# --- resuming ------------------------------------------------------------------------------------


def keys(full, subject) -> dict[str, str]:
    return {
        gate.id: identity_key(
            gate, subject, workloads=full.workloads, bundle=full.bundle, budget=full.budget
        )
        for gate in GATES
    }


def test_passed_gates_of_the_same_identity_are_not_run_again(full):
    subject = full.subject()
    verdict = full.run(subject)
    results = {result.gate: result for result in verdict.results}
    done = {key: results[gate] for gate, key in keys(full, subject).items()}

    def refuse(launch):
        raise AssertionError("a process was started")

    full.launcher = refuse
    assert full.run(subject, done=done) == verdict


def test_a_result_of_another_identity_is_not_used(full):
    subject = full.subject(FLIPPED)
    good = full.subject()
    results = {result.gate: result for result in full.run(good).results}
    done = {key: results[gate] for gate, key in keys(full, good).items()}
    assert full.run(subject, done=done).first_failure.gate == "G4"
    # Under the right keys, but failed or of another gate: asked again.
    bad = dict.fromkeys(keys(full, subject).values(), results["G0"])
    assert full.run(subject, done=bad).first_failure.gate == "G4"


def test_the_identity_covers_what_the_answer_depends_on(full):
    subject = full.subject()
    base = keys(full, subject)["G4"]
    others = [
        replace(subject, constants={"shift": 1.0}),
        replace(subject, threads=2),
        replace(subject, reference=replace(subject.reference, target="toy_reference:other")),
        full.subject(FLIPPED),
    ]
    seen = {base, *(keys(full, other)["G4"] for other in others)}
    full.budget = replace(full.budget, cases=9)
    seen.add(keys(full, subject)["G4"])
    full.bundle = None
    seen.add(keys(full, subject)["G4"])
    assert len(seen) == len(others) + 3


# --- the check at promotion ----------------------------------------------------------------------


@pytest.fixture
def record(full) -> Record:
    subject = full.subject()
    verdict = full.run(subject)
    return Record(
        created_at="2026-01-01T00:00:00Z",
        lane="toy",
        candidate=subject.candidate,
        baseline=None,
        workload=full.workloads[0],
        bundle_sha256=full.bundle.sha256,
        environment=environment(
            device="cpu", device_name="test", device_count=1, threads=1, probes=()
        ),
        harness=harness(),
        verdict=verdict,
        outcome="inconclusive",
        reason="not timed",
    )


def edited(full, record, gate, change):
    """The record with one gate's evidence changed, and the reference to it fixed up."""
    result = next(result for result in record.verdict.results if result.gate == gate)
    plain = json.loads(full.store[result.evidence.sha256])
    change(plain)
    evidence = full.store.put(rfc8785.dumps(plain), result.evidence.media)
    return with_result(record, replace(result, evidence=evidence))


def with_result(record, changed):
    results = tuple(
        changed if result.gate == changed.gate else result for result in record.verdict.results
    )
    return replace(record, verdict=replace(record.verdict, results=results))


def test_untouched_evidence_holds(full, record):
    assert recheck_evidence(record, full.store.__getitem__) == ()


def drop_case(plain):
    del plain["cases"][0]


def drop_case_and_plan(plain):
    del plain["cases"][0]
    plain["expected"] -= 1


def other_digest(plain):
    plain["cases"][3]["tensors"][0]["actual"] = "0" * 32


def unequal(plain):
    plain["cases"][3]["class"] = "culprit"


def nothing_compared(plain):
    plain["cases"][0]["tensors"] = []


def no_control(plain):
    plain["controls"] = []


def unseen_control(plain):
    plain["controls"][0]["seen"] = False


def other_unit(plain):
    plain["unit"] = "token"


def other_workload(plain):
    plain["subject"]["workloads"] = ["toy[rows=1,width=1]/float32/random"]


def no_case_of_it(plain):
    for case in plain["cases"]:
        case["subject"] = "elsewhere#0"


def unknown_field(plain):
    plain["trust"] = "me"


def other_schema(plain):
    plain["schema"] = 2


@pytest.mark.parametrize(
    ("gate", "change", "complaint"),
    [
        ("G4", drop_case, "the counts disagree"),
        ("G9", drop_case_and_plan, "the counts disagree"),
        ("G12", other_digest, "digests of edge differ|digests of y differ"),
        ("G9", unequal, "is culprit, not equal"),
        ("G2", nothing_compared, "compared nothing"),
        ("G4", no_control, "no control"),
        ("G4", unseen_control, "did not see a wrong answer"),
        ("G4", other_unit, "the bounds recomputed"),
        ("G12", other_workload, "does not name the workload"),
        ("G4", no_case_of_it, "holds no case of the workload"),
        ("G0", unknown_field, "cannot be understood"),
        ("G0", other_schema, "cannot be understood"),
        ("G4", lambda p: p.update(gate="G2"), "its gate is 'G2'"),
        ("G4", lambda p: p.update(version=9), "its version is 9"),
        ("G2", lambda p: p["subject"].update(candidate="0" * 64), "its candidate is"),
        ("G2", lambda p: p["subject"].update(contract="toy/2"), "its contract is"),
        ("G9", lambda p: p["subject"].update(bundle="0" * 64), "its bundle is"),
    ],
)
def test_changed_evidence_is_found(full, record, gate, change, complaint):
    changed = edited(full, record, gate, change)
    complaints = recheck_evidence(changed, full.store.__getitem__)
    assert any(text.startswith(f"{gate}: ") for text in complaints)
    pattern = complaint.split("|")
    assert any(part in text for part in pattern for text in complaints), complaints


def test_a_missing_or_edited_file_is_found(full, record):
    result = next(result for result in record.verdict.results if result.gate == "G4")
    full.store[result.evidence.sha256] += b" "
    assert "it was edited" in recheck_evidence(record, full.store.__getitem__)[0]


def test_a_better_bound_than_the_cases_prove_is_found(full, record):
    result = next(result for result in record.verdict.results if result.gate == "G4")
    better = bound(0, 10 * result.compared, "boundary execution")
    changed = with_result(record, replace(result, bounds=(better, *result.bounds[1:])))
    assert any("bounds" in text for text in recheck_evidence(changed, full.store.__getitem__))


def test_a_record_without_a_passed_gate_has_no_evidence(full, record):
    verdict = replace(record.verdict, kind="not-run", results=())
    empty = replace(record, verdict=verdict)
    assert recheck_evidence(empty, full.store.__getitem__) == (
        "no gate passed; there is no evidence to check",
    )


def test_only_the_recorded_sources_may_be_imported(full):
    asked = []

    def launch(one):
        asked.append(one)
        return full.launcher(one)

    subject = full.subject()
    session = {"workloads": full.workloads, "bundle": full.bundle, "budget": full.budget}
    gates.run(subject, **session, put=full.store.put, launcher=launch)
    assert {one.sources for one in asked if one.target == "planted:run"} == {("planted.py",)}
    assert {one.sources for one in asked if one.target != "planted:run"} == {None}
