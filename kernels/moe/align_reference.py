"""`moe_align` by one stable sort in torch: the truth, and fast enough for every reference."""

import torch
from torch import Tensor

from bitgate.kernels.moe.align import check
from bitgate.kernels.moe.contract import UNUSED_BLOCK, block_capacity


def moe_align(*, topk_ids: Tensor, experts: int, block_m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Group the pairs of token and slot by expert; see MOE_ALIGN.

    Args:
        topk_ids: [tokens, top_k] int64; pairs with an id below 0 or from `experts` on are dropped.
        experts: how many there are, at least 1.
        block_m: rows of a block, as in TileConfig.

    Returns:
        sorted_pairs [blocks * block_m], expert_ids [blocks] and padded [1], all int32; `blocks` is
        what the pairs can fill at most.

    Raises:
        UsageError: an argument is not what MOE_ALIGN says.
    """
    pairs = check(topk_ids, experts, block_m)
    blocks = block_capacity(pairs, experts, block_m)
    device = topk_ids.device
    sorted_pairs = torch.full((blocks * block_m,), pairs, dtype=torch.int32, device=device)
    expert_ids = torch.full((blocks,), UNUSED_BLOCK, dtype=torch.int32, device=device)

    flat = topk_ids.reshape(-1)
    group = torch.where((flat >= 0) & (flat < experts), flat, experts)
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group, minlength=experts + 1)[:experts]
    needed = (counts + block_m - 1) // block_m
    first_pair, first_block = counts.cumsum(0) - counts, needed.cumsum(0) - needed
    order = order[: int(counts.sum())]
    group = group[order]
    rank = torch.arange(len(order), device=device) - first_pair[group]
    sorted_pairs[first_block[group] * block_m + rank] = order.to(torch.int32)
    used = torch.repeat_interleave(torch.arange(experts, device=device), needed)
    expert_ids[: len(used)] = used.to(torch.int32)
    padded = (needed.sum() * block_m).to(torch.int32).reshape(1)
    return sorted_pairs, expert_ids, padded
