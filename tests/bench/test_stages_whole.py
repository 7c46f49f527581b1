"""The same stages with the real gates: slow, and nothing is stood in for."""

import pytest

from bitgate.bench import rounds
from bitgate.bench.recheck import recheck
from bitgate.records.lanes import current_baseline

pytestmark = pytest.mark.slow

SLOW = """
    import time
    from bitgate.kernels.moe.experts import experts_loop

    def run(**arguments):
        time.sleep(0.004)
        return experts_loop(**arguments)
"""
WRONG = """
    from bitgate.kernels.moe.experts import experts_loop

    def run(**arguments):
        return experts_loop(**arguments) * 2
"""
# Right in every gate, and wrong once it is called with contents that the gates never use.
WRONG_WHEN_TIMED = """
    import sys
    from bitgate.kernels.moe.experts import experts_loop

    KEPT = []

    def run(**arguments):
        if "bitgate.bench.stopwatch" in sys.modules and KEPT:
            return KEPT[0].clone()
        KEPT[:] = [experts_loop(**arguments)]
        return KEPT[0].clone()
"""


def test_from_an_opened_lane_to_a_promotion_and_a_slower_rejection(write, go, ledger):
    opened = go(write("slow", SLOW), open_lane=True)
    assert [row.ending for row in opened.rows] == ["opened"], opened.rows[0].reason
    lane = opened.rows[0].entry.body.lane
    assert current_baseline(ledger, lane).candidate.name == "slow"
    assert opened.exit_code == 0

    faster = go(write("same", baseline="promoted"))
    row = faster.rows[0]
    assert (row.ending, row.effect.effect) == ("promoted", "FASTER"), row.reason
    record = row.entry.body
    assert record.measurement.verified_outputs >= 2 * len(record.measurement.baseline_ns)
    assert recheck().effect(record) == "FASTER"
    assert recheck().evidence(record, ledger) == ()
    assert current_baseline(ledger, lane).candidate.name == "same"
    assert ledger.verify().breaks == ()

    slower = go(write("slow", SLOW, baseline="promoted"))
    row = slower.rows[0]
    assert (row.ending, row.effect.effect) == ("rejected", "SLOWER"), row.reason
    assert slower.exit_code == 1
    assert current_baseline(ledger, lane).candidate.name == "same"


def test_a_killed_run_goes_on_with_its_gates(write, go, ledger, folder, monkeypatch):
    path = write("same")

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "measure", killed)
        with pytest.raises(KeyboardInterrupt):
            go(path)
    assert list(ledger.records()) == []

    again = go(path, resume=True)
    assert set(again.reused) == {"G0", "G2", "G4", "G9", "G12"}
    assert again.rows[0].ending == "passed"
    assert recheck().evidence(again.rows[0].entry.body, ledger) == ()

    # One changed byte is another candidate: nothing is used again.
    (folder / "same.py").write_text((folder / "same.py").read_text() + "\n")
    monkeypatch.setattr(rounds, "measure", lambda *arguments, **options: iter(()))
    with pytest.raises(ValueError, match="zip"):
        go(path, resume=True)
    digests = sorted(entry.name for entry in (ledger.root.parent / "runs").iterdir())
    assert len(digests) == 2


def test_right_in_the_gates_and_wrong_when_timed_is_rejected(write, go):
    # It knows a timing process by the stopwatch, and answers there what it computed once.
    write("same")
    report = go(write("cached", WRONG_WHEN_TIMED, baseline="same"))
    row = report.rows[0]
    assert report.verdict.passed
    assert row.ending == "rejected"
    assert "a timed output differs from the reference" in row.reason
    assert row.entry.body.measurement is None
    assert report.exit_code == 1


def test_a_wrong_candidate_is_rejected_and_never_timed(write, go):
    write("same")
    report = go(write("wrong", WRONG, baseline="same"))
    record = report.rows[0].entry.body
    assert (record.outcome, record.verdict.kind) == ("rejected", "deterministic-mismatch")
    assert record.measurement is None
    assert report.exit_code == 1
    assert [(one.name, one.outcome) for one in report.stages][:3] == [
        ("boundary", "fail"),
        ("micro", "not-run"),
        ("served", "not-run"),
    ]
