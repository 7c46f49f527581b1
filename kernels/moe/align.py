"""The definition of `moe_align`: pairs grouped by expert, each group filled up to whole blocks.

    pair = token * top_k + slot;  pairs of no expert (id < 0 or >= experts) are dropped
    sorted_pairs = for each expert, ascending: its pairs, ascending, then the padding value
                   tokens * top_k up to a multiple of block_m;  the rest is padding
    expert_ids[b] = the expert of block b;  -1 for blocks without pairs
    padded = how many entries of sorted_pairs the blocks with pairs cover

Nothing here is rounded, so every device and every implementation gives the same integers.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import align_data
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_ALIGN = Kernel(
    op="moe_align",
    summary="sort the pairs of token and slot by expert, in blocks of one expert each",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="sorted_pairs", dtype="int32", axes=("blocks*block_m",), role="out"),
        TensorSpec(name="expert_ids", dtype="int32", axes=("blocks",), role="out"),
        TensorSpec(name="padded", dtype="int32", axes=("one",), role="out"),
    ),
    constants=(("block_m", DEFAULT_CONFIG.block_m), ("experts", align_data.EXPERTS)),
    make_inputs=align_data.make_inputs,
    integer_cases=align_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_align-sort",
            op="moe_align",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.align_reference:moe_align",
            summary="one stable sort in torch; the truth",
        ),
        Implementation(
            name="moe_align-triton",
            op="moe_align",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.align_triton:moe_align",
            summary="two Triton kernels, count and place, one program per expert, no atomics",
        ),
    ),
    references={MOE_BF16_1.name: "moe_align-sort"},
    suites={"default": align_data.SUITE},
)


def check(topk_ids: torch.Tensor, experts: int, block_m: int) -> int:
    """Check the arguments of moe_align; return the number of pairs.

    Raises:
        UsageError: topk_ids is not as MOE_ALIGN says or has too many pairs for int32, or experts or
            block_m is not a positive int.
    """
    bind("moe_align", MOE_ALIGN.inputs, {"topk_ids": topk_ids})
    for name, value in (("experts", experts), ("block_m", block_m)):
        if type(value) is not int or value < 1:
            raise UsageError(f"moe_align: expected {name} of at least 1, an int, got {value!r}")
    pairs = topk_ids.numel()
    # Every place, padding included, is an int32.
    if pairs + experts * block_m >= 1 << 31:
        raise UsageError(
            f"moe_align: expected fewer than 2**31 places, got {pairs} pairs and {experts} experts "
            f"of blocks of {block_m}; split the tokens"
        )
    return pairs
