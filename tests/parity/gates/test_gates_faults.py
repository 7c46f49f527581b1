"""Each planted fault is caught by the named gate and gets its right name."""

from dataclasses import dataclass

import pytest


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
def test_a_planted_fault_is_caught_and_named(catch, fault):
    catch(fault)


def test_the_mismatch_holds_both_bit_patterns(bench):
    mismatch = bench.ask("G4", FAULTS[0].body).mismatch
    assert (mismatch.tensor, mismatch.kind, mismatch.first_index) == ("y", "bits", (1, 2))
    assert int(mismatch.expected_bits, 16) ^ int(mismatch.actual_bits, 16) == 1
