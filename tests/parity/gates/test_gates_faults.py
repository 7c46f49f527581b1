"""Each planted fault is caught by the named gate and gets its right name."""

import re
from dataclasses import dataclass, replace

import pytest
import torch

from bitgate.parity.worker import WorkerDied, WorkerTimeout


@dataclass(frozen=True)
class Fault:
    name: str
    body: str
    finding: str
    text: str
    gate: str = "G4"


FAULTS = (
    Fault(
        "one flipped bit",
        """
        import torch
        def run(*, x, w, shift):
            y = x * w + shift
            y.view(torch.int32)[1, 2] ^= 1
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        r"y\[1, 2\].*1 of 24 differ, up to -?1 ULP",
    ),
    Fault(
        "another rounding",
        """
        import torch
        def run(*, x, w, shift):
            y = torch.nextafter(x * w + shift, torch.tensor(torch.inf))
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "24 of 24 differ, up to 1 ULP",
    ),
    Fault(
        "a workspace that is not cleared",
        """
        kept = {}
        def run(*, x, w, shift):
            y = x * w + shift
            stale = kept.setdefault(x.shape, y * 0)
            stale += y
            return stale * 1, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        r"y\[0, 0\].*left over from call to call",
    ),
    Fault(
        "results drawn at random",
        """
        import torch
        def run(*, x, w, shift):
            y = x * w + shift
            y[0, 0] += torch.rand(())
            return y, y[:, 0] - y[:, -1]
        """,
        "nondeterministic",
        "the same input gave .* different results",
    ),
    Fault(
        "an input is changed",
        """
        def run(*, x, w, shift):
            y = x * w + shift
            edge = y[:, 0] - y[:, -1]
            x[2, 3] = 0
            return y, edge
        """,
        "deterministic-mismatch",
        "the call changed its input x",
    ),
    Fault(
        "a cache keyed on the address",
        """
        cache = {}
        def run(*, x, w, shift):
            if x.data_ptr() not in cache:
                y = x * w + shift
                cache[x.data_ptr()] = (y, y[:, 0] - y[:, -1])
            return cache[x.data_ptr()]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on the object",
        """
        cache = {}
        def run(*, x, w, shift):
            if id(x) not in cache:
                y = x * w + shift
                cache[id(x)] = (y, y[:, 0] - y[:, -1], x)
            return cache[id(x)][:2]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on the shape",
        """
        cache = {}
        def run(*, x, w, shift):
            if x.shape not in cache:
                y = x * w + shift
                cache[x.shape] = (y, y[:, 0] - y[:, -1])
            return cache[x.shape]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on part of the contents",
        """
        cache = {}
        def run(*, x, w, shift):
            key = (x.shape, float(x[0, 0]), float(x[0, 1]), float(w[0]))
            if key not in cache:
                y = x * w + shift
                cache[key] = (y, y[:, 0] - y[:, -1])
            return cache[key]
        """,
        "history-dependent",
        "~perturbed",
    ),
    Fault(
        "a cache keyed on one input only",
        """
        cache = {}
        def run(*, x, w, shift):
            key = x.numpy().tobytes()
            if key not in cache:
                y = x * w + shift
                cache[key] = (y, y[:, 0] - y[:, -1])
            y, edge = cache[key]
            return y * 1, edge * 1
        """,
        "history-dependent",
        "~perturbed-w",
    ),
    Fault(
        "one output buffer for all calls",
        """
        import torch
        kept = {}
        def run(*, x, w, shift):
            y = kept.setdefault(x.shape, torch.empty_like(x))
            y.copy_(x * w + shift)
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten: .*output 0 of 1 calls ago changed after it was returned",
    ),
    Fault(
        "two output buffers in turn",
        """
        import torch
        kept, calls = {}, []
        def run(*, x, w, shift):
            calls.append(x)
            y = kept.setdefault((x.shape, len(calls) % 2), torch.empty_like(x))
            y.copy_(x * w + shift)
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten: .*output 0 of 2 calls ago",
    ),
    Fault(
        "a thread that writes later",
        """
        import threading
        last = []
        def run(*, x, w, shift):
            # The thread writes once the next call has begun, whatever the machine's load.
            for event, thread in last:
                event.set()
                thread.join()
            y = x * w + shift
            begun = threading.Event()
            late = threading.Thread(target=lambda: (begun.wait(), y.zero_()), daemon=True)
            late.start()
            last[:] = [(begun, late)]
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten",
    ),
    Fault(
        "random numbers taken and not used",
        """
        import torch
        def run(*, x, w, shift):
            torch.rand(())
            y = x * w + shift
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "left random torch at",
    ),
    Fault(
        "only the seventh call is wrong",
        """
        calls = 0
        def run(*, x, w, shift):
            global calls
            calls += 1
            y = x * w + shift
            if calls == 7:
                y[0, 0] = 0
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "replaying 7 calls",
    ),
    Fault(
        "only the first call is wrong",
        """
        ready = []
        def run(*, x, w, shift):
            y = x * w + shift
            if not ready:
                ready.append(True)
                y[2, 1] = 0
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        r"y\[2, 1\].*replaying 1 calls",
    ),
    Fault(
        "the last input's address is kept",
        """
        kept = []
        def run(*, x, w, shift):
            kept.append(x)
            y = kept[0] * w + shift if kept[0].shape == x.shape else x * w + shift
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "left over",
    ),
    Fault(
        "an output too few",
        "def run(*, x, w, shift): return x * w + shift",
        "inconclusive",
        "no-answer.*expected 2 tensors",
    ),
    Fault(
        "another dtype",
        """
        def run(*, x, w, shift):
            y = x * w + shift
            return y.double(), y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "expected torch.float32, got torch.float64",
    ),
    Fault(
        "another shape",
        """
        def run(*, x, w, shift):
            y = x * w + shift
            return y, y[:, :1] - y[:, -1:]
        """,
        "deterministic-mismatch",
        r"edge: expected shape \(3,\), got \(3, 1\)",
    ),
    Fault(
        "an exception on some data",
        """
        def run(*, x, w, shift):
            if x.shape[0] == 2:
                raise ValueError("no kernel for two rows")
            y = x * w + shift
            return y, y[:, 0] - y[:, -1]
        """,
        "inconclusive",
        "no-answer: .*rows=2.*no kernel for two rows",
    ),
    Fault(
        "the number of threads is changed",
        """
        import torch
        def run(*, x, w, shift):
            torch.set_num_threads(3)
            y = x * w + shift
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "left threads at 3, expected 1",
    ),
    Fault(
        "one more row takes another path",
        """
        def run(*, x, w, shift):
            y = x * w + shift if x.shape[0] < 4 else (x * w * 4 + 4 * shift) / 4 + 1e-6
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "rows=4",
    ),
    Fault(
        "the place of a row in the batch matters",
        """
        import torch
        def run(*, x, w, shift):
            # Only ordered rows, as in the samples of this test, take the right path.
            y = x * w + shift
            if x.shape[0] == 1:
                y = torch.nextafter(y, torch.tensor(torch.inf))
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "~last-alone",
    ),
    Fault(
        "integers in the wrong place",
        """
        def run(*, x, w, shift):
            y = x * w + shift
            return y, y[:, 0] - y[:, 1]
        """,
        "deterministic-mismatch",
        "toy#integer/small.*edge",
        gate="G2",
    ),
    Fault(
        "integers in the wrong place on the second call",
        """
        calls = []
        def run(*, x, w, shift):
            calls.append(x)
            y = x * w + shift
            return y, y[:, 0] - y[:, -1] + (len(calls) == 2)
        """,
        "history-dependent",
        "replaying 2 calls",
        gate="G2",
    ),
    Fault(
        "a sample that no earlier gate called",
        """
        seen = set()
        def run(*, x, w, shift):
            y = x * w + shift
            if float(x[0, 0]) == FORBIDDEN:
                y[0, 0] += 1
            return y, y[:, 0] - y[:, -1]
        """,
        "deterministic-mismatch",
        "culprit in process 0",
        gate="G12",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught_and_named(bench, fault):
    unseen = bench.kernel.make_inputs(bench.workloads[0], bench.budget.cases)["x"][0, 0]
    result = bench.ask(fault.gate, fault.body.replace("FORBIDDEN", repr(float(unseen))))
    assert (result.outcome, result.finding) == ("fail", fault.finding), result.reason
    assert_matches(fault.text, result.reason)
    document = bench.document(result)
    assert [case.kind for case in document.cases].count("equal") < len(document.cases)
    assert result.bounds == ()


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


def test_the_mismatch_holds_both_bit_patterns(bench):
    mismatch = bench.ask("G4", FAULTS[0].body).mismatch
    assert (mismatch.tensor, mismatch.kind, mismatch.first_index) == ("y", "bits", (1, 2))
    assert int(mismatch.expected_bits, 16) ^ int(mismatch.actual_bits, 16) == 1


LOTTERY = """
    import pathlib
    counter = pathlib.Path(COUNTER)
    process = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(process + 1))
    calls = 0
    def run(*, x, w, shift):
        global calls
        calls += 1
        y = x * w + shift
        RULE
        return y, y[:, 0] - y[:, -1]
"""


@pytest.mark.parametrize(
    "rule",
    [
        # The sweep and its replay are the processes 0 and 1; the call alone runs in 2 and 3.
        "y = y + 1 if process < 2 else y",
        "y = y + (1 if process < 2 else 2) * (calls > 2 or process > 1)",
        "y = y + (process != 1)",
    ],
    ids=["wrong-from-the-start-in-some", "wrong-in-two-ways", "replay-is-right"],
)
def test_what_processes_disagree_about_is_nondeterministic_not_history(bench, tmp_path, rule):
    body = LOTTERY.replace("COUNTER", repr(str(tmp_path / "count"))).replace("RULE", rule)
    result = bench.ask("G4", body)
    assert (result.outcome, result.finding) == ("fail", "nondeterministic"), result.reason


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


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.DOTALL), f"{pattern!r} is not in {text!r}"
