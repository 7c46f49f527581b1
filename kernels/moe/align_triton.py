"""`moe_align` in Triton: count, then place; programs that own experts, no atomics.

Each program reads all ids, so the order inside an expert is that of the pairs, whatever runs when.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import bind, output
from bitgate.kernels.arithmetic_triton import block_of, launch
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.align import MOE_ALIGN, check, check_map
from bitgate.kernels.moe.align_layouts import DEFAULT_LAYOUT, layout_of


@triton.jit
def local_of(expert_map, expert, valid, experts):
    """`expert_map[expert]`, and -1 where that is no expert, or what it says is none."""
    local = tl.load(expert_map + expert, mask=valid, other=-1)
    return tl.where((local >= 0) & (local < experts), local, -1)


@triton.jit
def group_of(ids, expert_map, pair, pairs, experts, DROPS: tl.constexpr):
    """The groups of pairs, below 0 or from `experts` on for those that are dropped."""
    chosen = tl.load(ids + pair, mask=pair < pairs, other=-1)
    if DROPS:
        chosen = local_of(expert_map, chosen, (chosen >= 0) & (chosen < experts), experts)
    return chosen


@triton.jit
def align_count_kernel(
    ids,
    expert_map,
    counts,
    sorted_pairs,
    expert_ids,
    pairs,
    blocks,
    experts,
    BLOCK_M: tl.constexpr,
    DROPS: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """`counts = bincount(group)` for ROWS experts, and a share of the outputs filled."""
    first = tl.program_id(0) * ROWS
    expert = first + tl.arange(0, ROWS)
    lane = tl.arange(0, CHUNK)
    total = tl.zeros((ROWS,), tl.int32)
    for start in range(0, pairs, CHUNK):
        chosen = group_of(ids, expert_map, start + lane, pairs, experts, DROPS)
        total += tl.sum((expert[:, None] == chosen[None, :]).to(tl.int32), axis=1)
    tl.store(counts + expert, total, mask=expert < experts)
    # `sorted_pairs = full(pairs)`, `expert_ids = full(tail)`
    places = blocks * BLOCK_M
    tail = tl.full((CHUNK,), TAIL, tl.int32)
    if not DROPS:
        tail = local_of(expert_map, tail, tail >= 0, experts)
    for start in range(tl.program_id(0) * CHUNK, places, tl.num_programs(0) * CHUNK):
        at = start + lane
        tl.store(sorted_pairs + at, tl.zeros((CHUNK,), tl.int32) + pairs, mask=at < places)
        tl.store(expert_ids + at, tail, mask=at < blocks)


@triton.jit
def align_place_kernel(
    ids,
    expert_map,
    counts,
    sorted_pairs,
    expert_ids,
    padded,
    pairs,
    experts,
    BLOCK_M: tl.constexpr,
    DROPS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The places of the pairs and blocks of ROWS experts, from the counts of all."""
    expert = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # `needed`, `first_block`
    other = tl.arange(0, EXPERTS)
    needed = (tl.load(counts + other, mask=other < experts, other=0) + BLOCK_M - 1) // BLOCK_M
    earlier = other[None, :] < expert[:, None]
    first = tl.sum(tl.where(earlier, needed[None, :], 0), axis=1)
    own = tl.sum(tl.where(other[None, :] == expert[:, None], needed[None, :], 0), axis=1)
    # `padded = needed.sum() * block_m`
    if tl.program_id(0) == 0:
        tl.store(padded, tl.sum(needed, axis=0) * BLOCK_M)
    # `expert_ids[first_block : first_block + needed] = name_of[expert]`
    lane = tl.arange(0, CHUNK)
    name = expert
    if not DROPS:
        name = local_of(expert_map, expert, expert < experts, experts)
    for start in range(0, tl.max(own, axis=0), CHUNK):
        block = (start + lane)[None, :]
        named = tl.zeros((ROWS, CHUNK), tl.int32) + name[:, None]
        tl.store(expert_ids + first[:, None] + block, named, mask=block < own[:, None])
    # `sorted_pairs[first_block * block_m + rank] = pair`: the pairs that ascend decide the ranks
    place = first * BLOCK_M
    for start in range(0, pairs, CHUNK):
        pair = start + lane
        chosen = group_of(ids, expert_map, pair, pairs, experts, DROPS)
        mine = (expert[:, None] == chosen[None, :]) & (expert < experts)[:, None]
        rank = tl.cumsum(mine.to(tl.int32), axis=1) - 1
        value = tl.zeros((ROWS, CHUNK), tl.int32) + pair[None, :]
        tl.store(sorted_pairs + place[:, None] + rank, value, mask=mine)
        place += tl.sum(mine.to(tl.int32), axis=1)


def moe_align(
    *,
    topk_ids: Tensor,
    expert_map: Tensor,
    block_m: int,
    layout: str = DEFAULT_LAYOUT,
    sorted_pairs: Tensor | None = None,
    expert_ids: Tensor | None = None,
    padded: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`moe_align` as MOE_ALIGN defines it, into the given outputs or new ones.

    On a device the values of expert_map are not checked, because that would wait for them: an entry
    that is no local expert counts as -1, and experts with the same entry share its group, or in a
    layout that does not drop keep their own.

    Raises:
        UsageError: an argument is not what MOE_ALIGN says, or memory overlaps.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    pairs, blocks = check(topk_ids, expert_map, block_m, layout)
    if interpreting():
        check_map(expert_map)
    wanted = {"sorted_pairs": sorted_pairs, "expert_ids": expert_ids, "padded": padded}
    given = {name: tensor for name, tensor in wanted.items() if tensor is not None}
    extents = {"blocks": blocks, "block_m": block_m, "one": 1}
    reason = "see AlignLayout.capacity"
    bind("moe_align", MOE_ALIGN.outputs, given, fixed=extents, reason=reason)
    alias.check("moe_align", {"topk_ids": topk_ids, "expert_map": expert_map}, given)
    shapes = ((blocks * block_m,), (blocks,), (1,))
    sorted_pairs, expert_ids, padded = (
        output("moe_align", name, tensor, shape, topk_ids, torch.int32)
        for (name, tensor), shape in zip(wanted.items(), shapes, strict=True)
    )
    inputs = (topk_ids.contiguous(), expert_map.contiguous())
    rules, experts = layout_of(layout), len(expert_map)
    counts = torch.empty(experts, dtype=torch.int32, device=topk_ids.device)
    # Interpreted programs run one after another: one for all experts, on a device one for each.
    rows = triton.next_power_of_2(experts) if interpreting() else 1
    grid = (triton.cdiv(experts, rows),)
    # What a program reads in one step, or fills, whichever is more.
    chunk = block_of(max(pairs, triton.cdiv(blocks * block_m, grid[0])), 1024)
    sizes = {
        "BLOCK_M": block_m,
        "DROPS": int(rules.drops_nonlocal),
        "ROWS": rows,
        "CHUNK": chunk,
    }
    launch(
        align_count_kernel,
        grid,
        *inputs,
        counts,
        sorted_pairs,
        expert_ids,
        pairs,
        blocks,
        experts,
        TAIL=rules.tail,
        **sizes,
    )
    launch(
        align_place_kernel,
        grid,
        *inputs,
        counts,
        sorted_pairs,
        expert_ids,
        padded,
        pairs,
        experts,
        EXPERTS=triton.next_power_of_2(experts),
        **sizes,
    )
    return sorted_pairs, expert_ids, padded
