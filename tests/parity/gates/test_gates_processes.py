"""What only real processes show: junk in memory, hash seeds, and a clean control."""

import subprocess
import sys
from dataclasses import replace

import pytest

from bitgate.parity.bounds import clustered
from bitgate.parity.gates.session import Conditions, child_environment
from bitgate.parity.worker import Worker


@pytest.fixture
def real(bench):
    bench.launcher = Worker
    return bench


def test_what_is_varied_wins_over_the_switches_of_the_candidate():
    switches = (("PYTHONHASHSEED", "7"), ("MKL_CBWR", "AVX2"), ("TRITON_INTERPRET", "0"))
    conditions = Conditions(hash_seed=3, junk=0x85, threads=2)
    pairs = child_environment("cpu", conditions, switches, 1)
    seen = dict(pairs)
    assert (seen["PYTHONHASHSEED"], seen["MALLOC_PERTURB_"], seen["OMP_NUM_THREADS"]) == (
        "3",
        "133",
        "2",
    )
    assert (seen["MKL_CBWR"], seen["TRITON_INTERPRET"]) == ("AVX2", "0")
    assert dict(child_environment("cpu", conditions, (), 1))["TRITON_INTERPRET"] == "1"
    turned = child_environment("cpu", replace(conditions, reverse=True), switches, 1)
    assert turned == pairs[::-1]


@pytest.mark.parametrize("gate", ["G0", pytest.param("G12", marks=pytest.mark.slow)])
def test_an_unmutated_candidate_passes(real, gate):
    result = real.ask(gate)
    assert result.outcome == "pass", result.reason
    if gate == "G12":
        assert result.bounds == (clustered([0] * real.budget.processes),)


@pytest.mark.slow
def test_an_unmutated_candidate_passes_every_gate(real, write_bundle):
    real.bundle = write_bundle()
    verdict = real.run()
    assert verdict.kind == "exact", verdict.first_failure


def test_an_unwritten_tail_is_nondeterministic(bench):
    # Only the candidate's memory matters here, so the reference needs no process of its own.
    local = bench.launcher
    bench.launcher = lambda launch: (Worker if launch.target == "planted:run" else local)(launch)
    body = """
        import torch
        def run(*, x, w, shift):
            y = torch.empty_like(x)
            y[:, :-1] = (x * w + shift)[:, :-1]
            return y, (x * w + shift)[:, 0] - (x * w + shift)[:, -1]
    """
    result = bench.ask("G4", body)
    assert (result.outcome, result.finding) == ("fail", "nondeterministic"), result.reason
    assert result.mismatch.first_index == (0, 7)


def test_a_choice_drawn_per_process_is_found_by_fresh_processes(real):
    body = """
        # The iteration order of a set of texts differs from process to process.
        order = list({"left", "right", "middle", "up", "down"})
        def run(*, x, w, shift):
            y = x * w + shift
            if order[0] != ORDER:
                y[0, 0] += 1
            return y, y[:, 0] - y[:, -1]
    """
    # What the first process, whose hash seed is 1, has.
    script = "print(list({'left', 'right', 'middle', 'up', 'down'})[0])"
    python = [sys.executable, "-c", script]
    environment = {"PYTHONHASHSEED": "1"}
    first = subprocess.check_output(python, env=environment, text=True).strip()
    real.budget = replace(real.budget, processes=2)
    result = real.ask("G12", body.replace("ORDER", repr(first)))
    assert (result.outcome, result.finding) == ("fail", "nondeterministic"), result.reason
    assert "hash_seed=" in result.reason
