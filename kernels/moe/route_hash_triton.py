"""`moe_route_hash` under `moe-bf16/1` in Triton, one launch, headed by its reference lines."""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import block_of, launch, rows_of
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.route_hash import check, check_values
from bitgate.kernels.moe.route_rules import SCORES, RouteRules
from bitgate.kernels.moe.route_steps_triton import SELECTED, gather, scores_of, weigh


@triton.jit(do_not_specialize=["vocab", "top_k", "renormalize", "zero"])
def route_hash_kernel(
    logits,
    table,
    token_ids,
    topk_weights,
    topk_ids,
    tokens,
    experts,
    vocab,
    top_k,
    renormalize,
    scale,
    zero,
    SCORE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """One program per block of tokens; WIDTH = 2^LEVELS covers the experts, SLOTS top_k."""
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, WIDTH)[None, :]
    slot = tl.arange(0, SLOTS)[None, :]
    live = (token < tokens)[:, None] & (expert < experts)
    place = token[:, None] * experts + expert
    logit = tl.load(logits + place, mask=live, other=float("-inf"))
    scores = scores_of(logit, zero, SCORE, ROWS, WIDTH, LEVELS)

    # `ids = table[token_ids]`, -1 where that is nothing
    name = tl.load(token_ids + token, mask=token < tokens, other=-1)
    known = ((name >= 0) & (name < vocab))[:, None] & (slot < top_k)
    ids = tl.load(table + name[:, None] * top_k + slot, mask=known, other=-1)
    ids = tl.where((ids >= 0) & (ids < experts), ids, -1).to(tl.int32)

    # `scores.gather(1, ids)`
    chosen = tl.zeros((ROWS, SLOTS), tl.float32)
    for j in range(top_k):
        here = expert == tl.sum(tl.where(slot == j, ids, 0), axis=1)[:, None]
        chosen = tl.where(slot == j, gather(scores, here)[:, None], chosen)
    if SCORE == SELECTED:
        chosen = tl.where(ids < 0, float("-inf"), chosen)

    weights = weigh(chosen, slot, top_k, renormalize, scale, zero, SCORE, ROWS)
    out = token[:, None] * top_k + slot
    wanted = (token < tokens)[:, None] & (slot < top_k)
    tl.store(topk_weights + out, weights, mask=wanted)
    tl.store(topk_ids + out, ids.to(tl.int64), mask=wanted)


def moe_route_hash(
    *,
    logits: Tensor,
    table: Tensor,
    token_ids: Tensor,
    top_k: int,
    renormalize: int,
    scale: float,
    score: str,
    topk_weights: Tensor | None = None,
    topk_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_route_hash` as MOE_ROUTE_HASH defines it, into the given outputs or new ones.

    Inputs need not be contiguous (they are copied), outputs must be, and may overlap nothing.

    Raises:
        UsageError: an argument is not what MOE_ROUTE_HASH says, overlapping memory, or,
            interpreted, a token id that is not in the table or an entry that is no expert.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    rules = RouteRules(
        op="moe_route_hash", top_k=top_k, renormalize=renormalize, scale=scale, score=score
    )
    inputs = {"logits": logits, "table": table, "token_ids": token_ids}
    outputs = {"topk_weights": topk_weights, "topk_ids": topk_ids}
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    check(inputs | given, rules)
    alias.check("moe_route_hash", inputs, outputs)
    if interpreting():
        check_values(logits, table, token_ids)
    tokens, experts = logits.shape
    shape = (tokens, top_k)
    topk_weights = output("moe_route_hash", "topk_weights", topk_weights, shape, logits)
    topk_ids = output("moe_route_hash", "topk_ids", topk_ids, shape, logits, torch.int64)
    width = block_of(experts, 1 << 20)
    rows = rows_of(width)
    launch(
        route_hash_kernel,
        (triton.cdiv(tokens, rows),),
        logits.contiguous(),
        table.contiguous(),
        token_ids.contiguous(),
        topk_weights,
        topk_ids,
        tokens,
        experts,
        len(table),
        top_k,
        renormalize,
        float(scale),
        0,
        SCORE=SCORES.index(score),
        ROWS=rows,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        SLOTS=block_of(top_k, 1 << 20),
    )
    return topk_weights, topk_ids
