"""The definition of `moe_align`: pairs grouped by expert, each group filled up to whole blocks.

    pair = token * top_k + slot;  local = expert_map[topk_ids[pair]], or -1 if that is none
    sorted_pairs = for each group, ascending: its pairs, ascending, then the padding value
                   tokens * top_k up to a multiple of block_m;  the rest is padding
    expert_ids[b] = the local expert of block b, or -1;  for blocks without pairs the tail
    padded = how many entries of sorted_pairs the blocks with pairs cover

`expert_map` has an entry for each expert of the layer: its number among the local ones, or -1 where
it lives on another rank; where all are local it is 0, 1, 2 and so on. `layout` names the engine
whose rules decide the rest (the table is LAYOUTS of `align_layouts`):

    vllm-0.33     groups are local experts, other pairs are dropped;  the tail is -1
    vllm-0.13     likewise, but for the tail, which is 0
    vllm-0.10.2   groups are all experts, and the map is applied to the blocks afterwards: those of
                  an expert elsewhere have -1, and the tail is expert_map[0]

Pairs whose id is below 0, or not below the number of experts, are dropped in all. An engine that
hands out the places of a group by an atomic counter gives the same pairs in another order:
`align_sets` compares with that freedom. Nothing here is rounded, so every device and every
implementation gives the same integers.
"""

import torch

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.moe import align_data
from bitgate.kernels.moe.align_layouts import DEFAULT_LAYOUT, layout_of
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_ALIGN = Kernel(
    op="moe_align",
    summary="sort the pairs of token and slot by expert, in blocks of one expert each",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="expert_map", dtype="int32", axes=("experts",), role="param"),
        TensorSpec(name="sorted_pairs", dtype="int32", axes=("blocks*block_m",), role="out"),
        TensorSpec(name="expert_ids", dtype="int32", axes=("blocks",), role="out"),
        TensorSpec(name="padded", dtype="int32", axes=("one",), role="out"),
    ),
    constants=(("block_m", DEFAULT_CONFIG.block_m), ("layout", DEFAULT_LAYOUT)),
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
    suites=align_data.SUITES,
)


def check(
    topk_ids: torch.Tensor, expert_map: torch.Tensor, block_m: int, layout: str
) -> tuple[int, int]:
    """Check what can be seen of moe_align's arguments without values; return pairs and blocks.

    Raises:
        UsageError: a tensor is not as MOE_ALIGN says or has too many pairs for int32, the map is
            empty, block_m is not a positive int, or layout is unknown.
    """
    tensors = {"topk_ids": topk_ids, "expert_map": expert_map}
    experts = bind("moe_align", MOE_ALIGN.inputs, tensors)["experts"]
    if experts < 1:
        raise UsageError("moe_align: expected an expert_map of at least 1 expert, got none")
    if type(block_m) is not int or block_m < 1:
        raise UsageError(f"moe_align: expected block_m of at least 1, an int, got {shown(block_m)}")
    pairs = topk_ids.numel()
    blocks = layout_of(layout).capacity(pairs, experts, block_m)
    # Every place, and what a loop over them in steps adds to the last one, is an int32.
    if pairs + (experts + 1) * block_m >= 1 << 30:
        raise UsageError(
            f"moe_align: expected fewer than 2**30 places, got {pairs} pairs and {experts} experts "
            f"of blocks of {shown(block_m)}; split the tokens"
        )
    return pairs, blocks


def check_map(expert_map: torch.Tensor) -> None:
    """Check the values of an expert_map, which waits for a device to have made them.

    Raises:
        UsageError: a value is neither -1 nor below the number of experts, or two experts have the
            same one.
    """
    experts = len(expert_map)
    low, high = (int(value) for value in torch.aminmax(expert_map))
    if low < -1 or high >= experts:
        raise UsageError(
            f"moe_align: expected an expert_map of -1 (not here) or 0 to {experts - 1}, got {low} "
            f"to {high}"
        )
    counts = torch.bincount(expert_map[expert_map >= 0].long(), minlength=1)
    if int(counts.max()) > 1:
        local = int(counts.argmax())
        both = (expert_map == local).nonzero().flatten().tolist()
        raise UsageError(
            f"moe_align: expected an expert_map with different local experts, got {local} for "
            f"experts {both}"
        )
