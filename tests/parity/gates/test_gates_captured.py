"""G9: captured tensors are the truth where the contract is the same."""

from dataclasses import replace

import pytest

from bitgate.parity.bounds import bound

SECOND_LAYER_WRONG = """
    def run(*, x, w, shift):
        y = x * w + shift
        # The second boundary of the second step and later ones see larger inputs.
        if float(x.abs().max()) > LIMIT:
            y[1, 3] = -y[1, 3]
        return y, y[:, 0] - y[:, -1]
"""


@pytest.fixture(scope="module")
def bundle(write_bundle):
    return write_bundle()


def test_every_captured_boundary_is_compared(bench, bundle):
    bench.bundle = bundle
    result = bench.ask("G9")
    assert (result.outcome, result.compared, result.expected) == ("pass", 6, 6), result.reason
    assert result.bounds[0] == bound(0, 6, "captured boundary")
    document = bench.document(result)
    assert document.subject["bundle"] == bundle.sha256
    assert [case.step for case in document.cases] == [(0, t) for t in (0, 0, 1, 1, 2, 2)]
    assert {case.kind for case in document.cases} == {"equal"}


def test_the_first_culprit_is_named_and_all_frames_are_evaluated(bench, bundle):
    bench.bundle = bundle
    largest = [float(frame.load("x").abs().max()) for frame in bundle.frames()]
    hit = sorted(largest)[-3]
    first = next(i for i, value in enumerate(largest) if value >= hit)
    body = SECOND_LAYER_WRONG.replace("LIMIT", repr(hit - 1e-3))
    result = bench.ask("G9", body)
    assert (result.outcome, result.finding) == ("fail", "deterministic-mismatch")
    kinds = [case.kind for case in bench.document(result).cases]
    assert len(kinds) == result.compared == 6
    assert kinds == ["culprit" if value >= hit else "equal" for value in largest]
    frame = list(bundle.frames())[first]
    assert f"token {frame.step.token}" in result.culprit
    assert frame.boundary.key in result.culprit
    assert result.mismatch.first_index == (1, 3)
    assert int(result.mismatch.expected_bits, 16) ^ int(result.mismatch.actual_bits, 16) == 1 << 31


def test_under_another_contract_the_reference_answers_for_captured_inputs(bench, write_bundle):
    # What was captured differs from the contract's arithmetic; its inputs still serve.
    bench.bundle = write_bundle(contract="toy-foreign/1", nudge=0.125)
    passed = bench.ask("G9")
    assert passed.outcome == "pass"
    told = (
        "6 of 6 frames were captured under toy-foreign/1: there it is compared with the reference "
        "of its own contract toy/1, "
    )
    assert told in passed.reason
    assert "on the captured inputs" in passed.reason
    body = SECOND_LAYER_WRONG.replace("LIMIT", "0")
    failed = bench.ask("G9", body)
    assert failed.finding == "deterministic-mismatch"
    assert told in failed.reason
    bench.bundle = write_bundle()
    assert "captured under" not in bench.ask("G9").reason


def test_a_node_that_does_not_reproduce_the_capture_convicts_nobody(bench, write_bundle):
    bench.bundle = write_bundle(nudge=0.125)
    result = bench.ask("G9")
    assert result.outcome == "inconclusive"
    assert "does not reproduce what was captured (y[0, 0]" in result.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "no bundle was given"),
        ({"op": "other"}, "holds no frame of toy; it holds other"),
        ({"keep_steps": 0}, "keeps only digests of toy"),
    ],
)
def test_without_captured_tensors_of_the_operator_it_is_blocked(
    bench, write_bundle, options, message
):
    bench.bundle = None if options is None else write_bundle(**options)
    result = bench.ask("G9")
    assert result.outcome == "blocked"
    assert message in result.reason


def test_the_constants_of_the_capture_are_used(bench, bundle):
    bench.bundle = bundle
    subject = replace(bench.subject(), constants={"shift": 99.0})
    assert bench.ask("G9", subject).outcome == "pass"


def test_a_workspace_that_leaks_from_boundary_to_boundary_is_history(bench, bundle):
    bench.bundle = bundle
    body = """
        kept = {}
        def run(*, x, w, shift):
            y = x * w + shift
            stale = kept.setdefault(x.shape, y * 0)
            stale += y
            return stale * 1, y[:, 0] - y[:, -1]
    """
    result = bench.ask("G9", body)
    assert result.finding == "history-dependent"
    assert "token 0, scale/L1" in result.culprit


def test_frames_that_keep_only_digests_are_counted_and_told(bench, write_bundle):
    bench.bundle = write_bundle(keep_steps=1)
    result = bench.ask("G9")
    assert (result.outcome, result.compared, result.expected) == ("pass", 2, 2)
    told = "4 of 6 captured frames hold only digests and were not compared"
    assert told in result.reason
    assert told in bench.run().coverage
    bench.bundle = write_bundle()
    assert "hold only digests" not in bench.ask("G9").reason + bench.run().coverage
