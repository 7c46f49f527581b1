"""Whether two alignments say the same where an engine is free in the order inside a group.

An engine that counts with atomics hands out the places of an expert's group in another order each
time. That changes no result, because each row of a matmul is independent. Everything else is
compared exactly: how many places are covered, the expert of every block, which pairs a group has
and how often, and that its padding follows its pairs. A group is a run of blocks of one expert, so
neighbouring experts that are elsewhere, whose blocks all have -1, are one group.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from bitgate.records.errors import UsageError

_SHOWN = 8

Alignment = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentComparison:
    """What was compared, and where two alignments differ: the first places, in words.

    `pairs` are those that the expected alignment places, `blocks` those that were looked at, with
    the ones without pairs.
    """

    pairs: int
    blocks: int
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the two name the same pairs for every expert."""
        return not self.differences


def same_alignment(
    expected: Alignment, actual: Alignment, *, pairs: int, block_m: int
) -> AlignmentComparison:
    """Compare two alignments with the places inside of each group in any order.

    Args:
        expected: sorted_pairs [at least the covered places], expert_ids [blocks] and padded [1], as
            moe_align returns them; int32, on any device.
        actual: likewise. The entries of sorted_pairs after the covered ones are padding in both,
            and there may be more of them in one; the blocks are as many.
        pairs: how many there are, which is the padding value.
        block_m: rows of a block.

    Raises:
        UsageError: an alignment is none: another dtype or rank, or it covers more than it has, or
            no whole number of blocks.
    """
    ours, theirs = _read("expected", expected, block_m), _read("actual", actual, block_m)
    found = _compare_blocks(ours, theirs)
    for name, one in (("expected", ours), ("actual", theirs)):
        if (one.sorted_pairs[one.padded :] != pairs).any():
            found.append(f"{name}: entries after the {one.padded} covered ones are not {pairs}")
    # Only where the blocks agree do the groups face each other.
    if not found:
        for first, last in _groups(ours.experts[: ours.padded // block_m]):
            place = slice(first * block_m, last * block_m)
            text = _compare_group(ours.sorted_pairs[place], theirs.sorted_pairs[place], pairs)
            if text:
                expert = int(ours.experts[first])
                found.append(f"expert {expert}, blocks {first} to {last - 1}: {text}")
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]
    placed = int((ours.sorted_pairs[: ours.padded] != pairs).sum())
    return AlignmentComparison(pairs=placed, blocks=len(ours.experts), differences=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    sorted_pairs: Ints
    experts: Ints
    padded: int


def _read(name: str, alignment: Alignment, block_m: int) -> _Read:
    for part, tensor in zip(("sorted_pairs", "expert_ids", "padded"), alignment, strict=True):
        if tensor.dtype != torch.int32 or tensor.dim() != 1:
            raise UsageError(
                f"same_alignment: {name}: expected {part} in int32 with one axis, got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
    sorted_pairs, experts, covered = (tensor.cpu().numpy().astype(np.int64) for tensor in alignment)
    if covered.shape != (1,):
        raise UsageError(f"same_alignment: {name}: expected one padded, got {len(covered)}")
    padded = int(covered[0])
    if padded % block_m or not 0 <= padded <= min(len(sorted_pairs), len(experts) * block_m):
        raise UsageError(
            f"same_alignment: {name}: expected padded to be whole blocks of {block_m} within "
            f"{len(sorted_pairs)} places and {len(experts)} blocks, got {padded}"
        )
    return _Read(sorted_pairs=sorted_pairs, experts=experts, padded=padded)


def _compare_blocks(ours: _Read, theirs: _Read) -> list[str]:
    found = []
    if ours.padded != theirs.padded:
        found.append(f"padded: expected {ours.padded}, got {theirs.padded}")
    if len(ours.experts) != len(theirs.experts):
        found.append(f"blocks: expected {len(ours.experts)}, got {len(theirs.experts)}")
        return found
    found += [
        f"block {block}: expected expert {ours.experts[block]}, got {theirs.experts[block]}"
        for block in np.flatnonzero(ours.experts != theirs.experts)
    ]
    return found


def _groups(experts: Ints) -> list[tuple[int, int]]:
    """The first block of each run of one expert, and the block after its last."""
    starts = np.flatnonzero(np.diff(experts, prepend=-2)).tolist()
    return list(pairwise([*starts, len(experts)]))


def _compare_group(expected: Ints, actual: Ints, pairs: int) -> str:
    """What differs between the places of one group, or nothing."""
    ours, theirs = Counter(expected.tolist()), Counter(actual.tolist())
    missing, extra = sorted((ours - theirs).elements()), sorted((theirs - ours).elements())
    if missing or extra:
        return f"expected pairs {_some(missing)}, got {_some(extra)} ({pairs} is padding)"
    places, others = np.flatnonzero(expected == pairs), np.flatnonzero(actual == pairs)
    if not np.array_equal(places, others):
        return f"expected padding at places {_some(places.tolist())}, got {_some(others.tolist())}"
    return ""


def _some(values: list[int]) -> str:
    shown = ", ".join(map(str, values[:_SHOWN])) or "none"
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown
