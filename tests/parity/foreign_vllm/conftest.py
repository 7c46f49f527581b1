"""What the tests of vLLM's operators share. How much differed is told at the end of the run."""

import os
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

from bitgate.kernels.spec import Tensors
from bitgate.parity import foreign_vllm
from bitgate.parity.compare import compare_tensors

FOUND = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def operators() -> ModuleType:
    """`bitgate.parity.foreign_vllm` once vLLM's CPU build is imported, which takes seconds."""
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with warnings.catch_warnings(action="ignore"):
        foreign_vllm.vllm("model_executor.kernels.mhc")
    return foreign_vllm


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests may ask torch for more; afterwards there are as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def note(request) -> Callable[[str], None]:
    """Takes a line that is shown at the end of the run."""
    lines: list[str] = request.config.stash.setdefault(FOUND, [])
    return lines.append


@pytest.fixture
def differing(note) -> Callable[[str, Tensors, Tensors], dict[str, int]]:
    """Counts the elements with other bits, per tensor, and notes them under a subject."""

    def count(subject: str, expected: Tensors, actual: Tensors) -> dict[str, int]:
        comparison = compare_tensors(subject, expected, actual)
        assert comparison.compared == len(expected)
        assert all(mismatch.kind == "bits" for mismatch in comparison.mismatches)
        counts = dict.fromkeys(expected, 0)
        counts |= {found.tensor: found.differing for found in comparison.mismatches}
        told = (f"{counts[name]} of {value.numel()} {name}" for name, value in expected.items())
        note(f"{subject}: {', '.join(told)}")
        return counts

    return count


def pytest_terminal_summary(terminalreporter, config) -> None:
    found = config.stash.get(FOUND, [])
    if found:
        terminalreporter.section("elements with other bits")
        for line in found:
            terminalreporter.write_line(line)
