"""The alignment rules of each engine, as data; a new engine is one more line of LAYOUTS."""

from dataclasses import dataclass
from typing import Final

from bitgate.kernels.arguments import shown
from bitgate.records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignLayout:
    """How an engine arranges pairs of experts that live on another rank, and unused blocks.

    Attributes:
        name: the engine and the version whose rules these are.
        drops_nonlocal: pairs without a local expert are left out and the groups are those of the
            local experts; otherwise the groups are those of all experts, and the map is applied to
            the experts of the blocks afterwards, so that blocks without a local expert have -1.
        tail: the expert of blocks without pairs. Where the map is applied afterwards it is applied
            to these, too.
        one_block_a_pair: fewer pairs than experts are given a block each and no more.
        source: where the rules stand.
    """

    name: str
    drops_nonlocal: bool
    tail: int
    one_block_a_pair: bool
    source: str

    def capacity(self, pairs: int, experts: int, block_m: int) -> int:
        """How many blocks the engine reserves: what the pairs can fill at most, or more.

        The engine's own sorted pairs may be shorter by less than a block, which none of them fills.
        """
        filled_up = min(pairs, experts) if self.one_block_a_pair else experts
        return -(-(pairs + filled_up * (block_m - 1)) // block_m)


LAYOUTS: Final = (
    AlignLayout(
        name="vllm-0.33",
        drops_nonlocal=True,
        tail=-1,
        one_block_a_pair=True,
        source="moe_align_block_size.py and csrc/moe/moe_align_sum_kernels.cu of vLLM 0.33.0, with "
        "ignore_invalid_experts as its Triton experts set it; pull requests 29642 (local experts "
        "alone, capacity of few pairs) and 35161 (-1 for unused blocks)",
    ),
    AlignLayout(
        name="vllm-0.13",
        drops_nonlocal=True,
        tail=0,
        one_block_a_pair=True,
        source="the same files of vLLM 0.13.0 to 0.16.0, before 35161",
    ),
    AlignLayout(
        name="vllm-0.10.2",
        drops_nonlocal=False,
        tail=0,
        one_block_a_pair=False,
        source="moe_align_block_size.py and csrc/moe/moe_align_sum_kernels.cu of vLLM 0.10.2",
    ),
)
DEFAULT_LAYOUT: Final = LAYOUTS[0].name


def layout_of(name: str) -> AlignLayout:
    """The rules of one engine. Raises UsageError that lists the known ones."""
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    known = ", ".join(layout.name for layout in LAYOUTS)
    raise UsageError(f"moe_align: expected layout of {known}, got {shown(name)}")
