"""same_alignment: another order inside a group is the same alignment, and nothing else is."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.align_data import make_inputs
from bitgate.kernels.moe.align_layouts import LAYOUTS
from bitgate.kernels.moe.align_reference import moe_align
from bitgate.kernels.moe.align_sets import Alignment, same_alignment
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

BLOCK_M = 16
NAMES = [layout.name for layout in LAYOUTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    alignment: Alignment
    pairs: int


def aligned(layout: str, case: str = "rank-0", tokens: int = 100) -> Aligned:
    axes = (("experts", 12), ("tokens", tokens), ("top_k", 4))
    workload = Workload(op="moe_align", axes=axes, dtype="bfloat16", case=case)
    alignment = moe_align(**make_inputs(workload, 0), block_m=BLOCK_M, layout=layout)
    return Aligned(alignment=alignment, pairs=4 * tokens)


def groups(one: Aligned) -> list[tuple[int, int]]:
    """The covered places of each group that has pairs of a local expert."""
    _, experts, padded = one.alignment
    blocks = experts[: int(padded) // BLOCK_M].tolist()
    found, first = [], 0
    for block in range(1, len(blocks) + 1):
        if block == len(blocks) or blocks[block] != blocks[first]:
            if blocks[first] >= 0:
                found.append((first * BLOCK_M, block * BLOCK_M))
            first = block
    return found


def handed_out(one: Aligned) -> Alignment:
    """As atomics hand the places out: the pairs of each local group in another order."""
    sorted_pairs, experts, padded = (part.clone() for part in one.alignment)
    for first, last in groups(one):
        group = sorted_pairs[first:last]
        count = int((group != one.pairs).sum())
        order = IntegerStream(first).words(count).argsort(kind="stable")
        sorted_pairs[first : first + count] = group[:count][torch.from_numpy(order)]
    return sorted_pairs, experts, padded


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("case", ["random", "rank-0", "padding", "twice", "none-local"])
def test_another_order_inside_a_group_is_the_same(case: str, layout: str) -> None:
    one = aligned(layout, case)
    other = handed_out(one)
    assert case == "none-local" or not torch.equal(one.alignment[0], other[0])
    for first, second in ((one.alignment, other), (other, one.alignment)):
        result = same_alignment(first, second, pairs=one.pairs, block_m=BLOCK_M)
        assert result.same, result.differences
    expected = int((one.alignment[0] < one.pairs).sum())
    assert (result.pairs, result.blocks) == (expected, len(one.alignment[1]))


def test_an_engine_without_whole_blocks_is_the_same() -> None:
    """vLLM's sorted pairs are as long as its capacity, which may end within an unused block."""
    one = aligned("vllm-0.10.2")
    sorted_pairs, experts, padded = one.alignment
    cut = sorted_pairs[: one.pairs + 12 * (BLOCK_M - 1)]
    assert len(cut) < len(sorted_pairs)
    assert same_alignment(
        one.alignment, (cut, experts, padded), pairs=one.pairs, block_m=BLOCK_M
    ).same


def test_no_tokens_compare_the_tail() -> None:
    one = aligned("vllm-0.10.2", tokens=0)
    result = same_alignment(one.alignment, one.alignment, pairs=0, block_m=BLOCK_M)
    assert (result.same, result.pairs, result.blocks) == (True, 0, 12)


# --- controls ------------------------------------------------------------------------------------

Fault = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[tuple[int, int]]], object]


def swap_groups(pairs: torch.Tensor, _e: object, _p: object, at: list[tuple[int, int]]) -> None:
    pairs[[at[0][0], at[1][0]]] = pairs[[at[1][0], at[0][0]]]


def twice(pairs: torch.Tensor, _e: object, _p: object, at: list[tuple[int, int]]) -> None:
    pairs[at[0][0] + 1] = pairs[at[0][0]]


def dropped(pairs: torch.Tensor, _e: object, _p: object, at: list[tuple[int, int]]) -> None:
    pairs[at[0][0]] = pairs.max()


def padding_first(pairs: torch.Tensor, _e: object, _p: object, at: list[tuple[int, int]]) -> None:
    first, last = at[0]
    pairs[first:last] = pairs[first:last].flip(0)


def beyond(pairs: torch.Tensor, _e: object, padded: torch.Tensor, _at: object) -> None:
    pairs[int(padded) + 3] = 0


def other_expert(_s: object, experts: torch.Tensor, _p: object, at: list[tuple[int, int]]) -> None:
    experts[at[0][0] // BLOCK_M] += 1


def other_tail(_s: object, experts: torch.Tensor, _p: object, _at: object) -> None:
    experts[-1] = 5


def shorter(_s: object, _e: object, padded: torch.Tensor, _at: object) -> None:
    padded -= BLOCK_M


FAULTS: dict[str, tuple[Fault, str]] = {
    "a pair of another expert": (swap_groups, r"expert \d+, blocks \d+ to \d+: expected pairs \d+"),
    "a pair twice": (twice, r"expert \d+, .*expected pairs \d+, got \d+ "),
    "a pair left out": (dropped, r"expected pairs \d+, got 400 \(400 is padding\)"),
    "padding before the pairs": (padding_first, r"expected padding at places .* got 0"),
    "a pair after the end": (beyond, r"actual: entries after the \d+ covered ones are not 400"),
    "another expert": (other_expert, r"block \d+: expected expert \d+, got \d+"),
    "another tail": (other_tail, r"block \d+: expected expert -1, got 5"),
    "a block less": (shorter, r"padded: expected \d+, got \d+"),
}


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault: str, layout: str) -> None:
    one = aligned(layout)
    plant, message = FAULTS[fault]
    wrong = tuple(part.clone() for part in handed_out(one))
    if fault == "another tail" and layout != "vllm-0.33":
        message = r"block \d+: expected expert (-1|0), got 5"
    plant(*wrong, groups(one))
    result = same_alignment(one.alignment, wrong, pairs=one.pairs, block_m=BLOCK_M)
    assert not result.same
    assert re.search(message, "\n".join(result.differences)), result.differences


def test_many_differences_are_counted() -> None:
    one = aligned("vllm-0.33")
    sorted_pairs, experts, padded = one.alignment
    result = same_alignment(
        one.alignment, (sorted_pairs, experts + 1, padded), pairs=one.pairs, block_m=BLOCK_M
    )
    assert len(result.differences) == 9
    assert result.differences[-1] == f"and {len(experts) - 8} more"
    fewer = (sorted_pairs, experts[:-1], padded)
    result = same_alignment(one.alignment, fewer, pairs=one.pairs, block_m=BLOCK_M)
    assert result.differences == (f"blocks: expected {len(experts)}, got {len(experts) - 1}",)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        (0, torch.zeros(32, dtype=torch.int64), "actual: expected sorted_pairs in int32"),
        (1, torch.zeros(2, 2, dtype=torch.int32), r"expert_ids in int32 with one axis.*\[2, 2\]"),
        (2, torch.zeros(2, dtype=torch.int32), "expected one padded, got 2"),
        (2, torch.tensor([8], dtype=torch.int32), "whole blocks of 16 within .* got 8"),
        (2, torch.tensor([-16], dtype=torch.int32), "got -16"),
        (2, torch.tensor([1 << 20], dtype=torch.int32), "got 1048576"),
    ],
)
def test_what_is_no_alignment_is_refused(part: int, value: torch.Tensor, message: str) -> None:
    one = aligned("vllm-0.33")
    wrong = list(one.alignment)
    wrong[part] = value
    with pytest.raises(UsageError, match=message):
        same_alignment(one.alignment, tuple(wrong), pairs=one.pairs, block_m=BLOCK_M)
