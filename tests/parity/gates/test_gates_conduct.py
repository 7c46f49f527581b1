"""The gates pass what is right, and decide nothing where nothing can be known."""

import re
from dataclasses import replace

import pytest
import torch

from bitgate.parity.worker import WorkerDied, WorkerTimeout


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.DOTALL), f"{pattern!r} is not in {text!r}"


@pytest.mark.parametrize("gate", ["G0", "G2", "G4", "G12"])
def test_the_unmutated_control_passes(bench, gate):
    result = bench.ask(gate)
    assert (result.outcome, result.finding) == ("pass", None), result.reason
    assert 0 < result.compared == result.expected
    assert bool(result.bounds) == (gate != "G0")


def test_a_candidate_that_answers_in_other_strides_is_right(bench):
    body = """
        def run(*, x, w, shift):
            y = (x.t().contiguous().t() * w + shift)
            return y, (y[:, 0] - y[:, -1]).repeat_interleave(2)[::2]
    """
    assert bench.ask("G4", body).outcome == "pass"


# --- what decides nothing ------------------------------------------------------------------------


@pytest.fixture
def shaky_reference(bench, tmp_path):
    (tmp_path / "toy_reference.py").write_text(
        "import torch\n"
        "def run(*, x, w, shift):\n"
        "    y = x * w + shift + torch.rand(())\n"
        "    return y, y[:, 0] - y[:, -1]\n"
    )
    bench.reference_root = tmp_path


@pytest.mark.parametrize("gate", ["G4", "G12"])
def test_a_reference_that_cannot_repeat_itself_convicts_nobody(bench, shaky_reference, gate):
    result = bench.ask(gate)
    assert (result.outcome, result.finding) == ("inconclusive", "inconclusive")
    assert "answered" in result.reason
    assert "in two ways" in result.reason


def test_a_reference_whose_rows_depend_on_their_company_convicts_nobody(bench, tmp_path):
    (tmp_path / "toy_reference.py").write_text(
        "def run(*, x, w, shift):\n"
        "    y = x * w + shift + x.shape[0]\n"
        "    return y, y[:, 0] - y[:, -1]\n"
    )
    bench.reference_root = tmp_path
    body = (tmp_path / "toy_reference.py").read_text()
    assert bench.ask("G4", body).outcome == "inconclusive"
    bench.contract = replace(bench.contract, batch_invariant=False)
    assert bench.ask("G4", body).outcome == "pass"


def test_data_on_which_wrong_answers_look_right_decides_nothing(bench):
    def zeros(workload, index):
        extent = (workload.axis("rows"), workload.axis("width"))
        return {"x": torch.zeros(extent), "w": torch.zeros(extent[1])}

    bench.kernel = replace(bench.kernel, make_inputs=zeros, constants=(("shift", 0.0),))
    result = bench.ask("G4")
    assert result.outcome == "inconclusive"
    assert_matches("look right.*zeros", result.reason)


def test_a_budget_that_cannot_prove_the_bound_decides_nothing_and_runs_nothing(bench):
    def refuse(launch):
        raise AssertionError("a process was started")

    bench.launcher = refuse
    bench.budget = replace(bench.budget, max_p="0.001")
    result = bench.ask("G4")
    assert result.outcome == "inconclusive"
    assert_matches("needs 2995 clean executions, the budget plans", result.reason)


def test_no_workload_and_no_integer_case_are_blocked_not_passed(bench):
    bench.workloads = ()
    assert [bench.ask(gate).outcome for gate in ("G4", "G12")] == ["blocked", "blocked"]
    bench.kernel = replace(bench.kernel, integer_cases=tuple)
    assert bench.ask("G2").outcome == "blocked"


def test_a_timeout_is_never_a_pass_and_no_verdict_on_the_bits(bench):
    local = bench.launcher

    class Hangs(local):
        def receive(self):
            if self._launch.target == "planted:run":
                raise WorkerTimeout("no answer in time")
            return super().receive()

    bench.launcher = Hangs
    for gate in ("G2", "G4", "G12"):
        assert bench.ask(gate).outcome == "inconclusive"


def test_a_process_that_dies_fails(bench):
    local = bench.launcher

    class Dies(local):
        def receive(self):
            if self._launch.target == "planted:run":
                raise WorkerDied("the process ended with status 7")
            return super().receive()

    bench.launcher = Dies
    for gate in ("G2", "G4", "G12"):
        result = bench.ask(gate)
        # It gave no bits that could differ, and it is no pass either.
        assert (result.outcome, result.finding) == ("fail", "inconclusive")
        assert "status 7" in result.reason
