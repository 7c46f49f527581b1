"""`moe_route` under `moe-bf16/1` in Triton, one launch, headed by its reference lines.

Rows are 64-bit: those of a large batch times the experts exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import block_of, launch, rows_of
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe.route import check
from bitgate.kernels.moe.route_rules import GROUP_RANKS, SCORES, RouteRules
from bitgate.kernels.moe.route_steps_triton import (
    LOWEST,
    first_of,
    gather,
    kept,
    ordered,
    scores_of,
    weigh,
)

NO_GROUPS = tl.constexpr(GROUP_RANKS.index("none"))
TOP2 = tl.constexpr(GROUP_RANKS.index("top2"))


@triton.jit(do_not_specialize=["top_k", "groups", "keep_groups", "size", "renormalize", "zero"])
def route_kernel(
    logits,
    correction_bias,
    topk_weights,
    topk_ids,
    tokens,
    experts,
    top_k,
    groups,
    keep_groups,
    size,
    renormalize,
    scale,
    zero,
    SCORE: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    GROUPS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """One program per block of tokens; WIDTH = 2^LEVELS covers the experts, SLOTS top_k.

    GROUPS covers the groups, of `size` experts each.
    """
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, WIDTH)[None, :]
    live = (token < tokens)[:, None] & (expert < experts)
    place = token[:, None] * experts + expert
    logit = tl.load(logits + place, mask=live, other=float("-inf"))
    scores = scores_of(logit, zero, SCORE, ROWS, WIDTH, LEVELS)

    # `keys = ordered(scores + correction_bias)`, and those of groups that are not kept
    bias = tl.load(correction_bias + expert, mask=expert < experts, other=0.0)
    keys = tl.where(expert < experts, ordered(scores + bias), LOWEST)
    if RANK != NO_GROUPS:
        keep = kept(keys, expert, groups, keep_groups, size, RANK == TOP2, ROWS, WIDTH, GROUPS)
        keys = tl.where(keep, keys, LOWEST)

    # `sort(keys, descending=True, stable=True)`, one round a slot, and `scores.gather(1, ids)`
    slot = tl.arange(0, SLOTS)[None, :]
    ids = tl.zeros((ROWS, SLOTS), tl.int32)
    chosen = tl.zeros((ROWS, SLOTS), tl.float32)
    for j in range(top_k):
        # No key of an expert is the lowest number, so that a lane beyond them never wins.
        best = first_of(keys, expert, tl.max(keys, axis=1), WIDTH)[:, None]
        here = expert == best
        keys = tl.where(here, LOWEST, keys)
        ids = tl.where(slot == j, best, ids)
        chosen = tl.where(slot == j, gather(scores, here)[:, None], chosen)

    weights = weigh(chosen, slot, top_k, renormalize, scale, zero, SCORE, ROWS)
    out = token[:, None] * top_k + slot
    wanted = (token < tokens)[:, None] & (slot < top_k)
    tl.store(topk_weights + out, weights, mask=wanted)
    tl.store(topk_ids + out, ids.to(tl.int64), mask=wanted)


def moe_route(
    *,
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    renormalize: int,
    scale: float,
    score: str,
    groups: int = 1,
    keep_groups: int = 1,
    group_rank: str = "none",
    topk_weights: Tensor | None = None,
    topk_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_route` as MOE_ROUTE defines it, into the given outputs or new ones.

    Inputs need not be contiguous (they are copied), outputs must be, and may overlap nothing.

    Raises:
        UsageError: an argument is not what MOE_ROUTE says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    rules = RouteRules(
        op="moe_route",
        top_k=top_k,
        renormalize=renormalize,
        scale=scale,
        score=score,
        groups=groups,
        keep_groups=keep_groups,
        group_rank=group_rank,
    )
    inputs = {"logits": logits, "correction_bias": correction_bias}
    outputs = {"topk_weights": topk_weights, "topk_ids": topk_ids}
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    check(inputs | given, rules)
    alias.check("moe_route", inputs, outputs)
    tokens, experts = logits.shape
    shape = (tokens, top_k)
    topk_weights = output("moe_route", "topk_weights", topk_weights, shape, logits)
    topk_ids = output("moe_route", "topk_ids", topk_ids, shape, logits, torch.int64)
    width = block_of(experts, 1 << 20)
    rows = rows_of(width)
    launch(
        route_kernel,
        (triton.cdiv(tokens, rows),),
        logits.contiguous(),
        correction_bias.contiguous(),
        topk_weights,
        topk_ids,
        tokens,
        experts,
        top_k,
        groups,
        keep_groups,
        experts // groups,
        renormalize,
        float(scale),
        0,
        SCORE=SCORES.index(score),
        RANK=GROUP_RANKS.index(group_rank),
        ROWS=rows,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        GROUPS=block_of(groups, 1 << 20),
        SLOTS=block_of(top_k, 1 << 20),
    )
    return topk_weights, topk_ids
