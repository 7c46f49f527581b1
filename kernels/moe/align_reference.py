"""`moe_align` by one stable sort in torch: the truth, and fast enough for every reference."""

import torch
from torch import Tensor

from bitgate.kernels.moe.align import check, check_map
from bitgate.kernels.moe.align_layouts import DEFAULT_LAYOUT, layout_of


def moe_align(
    *, topk_ids: Tensor, expert_map: Tensor, block_m: int, layout: str = DEFAULT_LAYOUT
) -> tuple[Tensor, Tensor, Tensor]:
    """Group the pairs of token and slot by expert; see MOE_ALIGN.

    Args:
        topk_ids: [tokens, top_k] int64; pairs with an id below 0 or from the number of experts on
            are dropped.
        expert_map: [experts] int32, the number of each expert among the local ones, or -1.
        block_m: rows of a block, as in TileConfig.
        layout: the engine whose rules hold, one of LAYOUTS.

    Returns:
        sorted_pairs [blocks * block_m], expert_ids [blocks] and padded [1], all int32; `blocks` is
        the layout's capacity.

    Raises:
        UsageError: an argument is not what MOE_ALIGN says.
    """
    pairs, blocks = check(topk_ids, expert_map, block_m, layout)
    check_map(expert_map)
    rules, experts, device = layout_of(layout), len(expert_map), topk_ids.device
    everyone = torch.arange(experts, dtype=torch.int32, device=device)
    # Where pairs go, and what the blocks of a group are called.
    group_of, name_of = (expert_map, everyone) if rules.drops_nonlocal else (everyone, expert_map)
    tail = rules.tail if rules.drops_nonlocal else int(name_of[rules.tail])
    sorted_pairs = torch.full((blocks * block_m,), pairs, dtype=torch.int32, device=device)
    expert_ids = torch.full((blocks,), tail, dtype=torch.int32, device=device)

    flat = topk_ids.reshape(-1)
    known = (flat >= 0) & (flat < experts)
    group = torch.where(known, group_of[torch.where(known, flat, 0)], -1).long()
    group = torch.where(group < 0, experts, group)
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group, minlength=experts + 1)[:experts]
    needed = (counts + block_m - 1) // block_m
    first_pair, first_block = counts.cumsum(0) - counts, needed.cumsum(0) - needed
    order = order[: int(counts.sum())]
    group = group[order]
    rank = torch.arange(len(order), device=device) - first_pair[group]
    sorted_pairs[first_block[group] * block_m + rank] = order.to(torch.int32)
    used = torch.repeat_interleave(name_of, needed)
    expert_ids[: len(used)] = used
    padded = (needed.sum() * block_m).to(torch.int32).reshape(1)
    return sorted_pairs, expert_ids, padded
