"""`moe_route` under `moe-bf16/1` in Triton, one launch, headed by its reference lines.

Rows are 64-bit: those of a large batch times the experts exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import (
    block_of,
    canonical,
    exp,
    launch,
    sigmoid,
    softplus,
    tree,
)
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.route import SCORES, check

SOFTMAX = tl.constexpr(SCORES.index("softmax"))
SIGMOID = tl.constexpr(SCORES.index("sigmoid"))
LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def softmax(logit, zero, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """route_reference.softmax over [ROWS, WIDTH]; lanes beyond the experts hold -inf."""
    usable = logit < float("inf")
    clean = tl.where(usable, logit, float("-inf"))
    largest = tl.max(clean, axis=1)
    regular = (tl.min(usable.to(tl.int32), axis=1) == 1) & (largest > float("-inf"))
    shifted = clean - tl.where(regular, largest, 0.0)[:, None]
    grown = exp(tl.where(regular[:, None], shifted, float("-inf")), zero)
    total = tl.where(regular, tree(grown, ROWS, WIDTH, LEVELS), 1.0)
    return tl.where(regular[:, None], tl.div_rn(grown, total[:, None] + tl.zeros_like(grown)), 0.0)


@triton.jit
def ordered(x):
    """route_reference.ordered."""
    bits = canonical(x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["top_k", "renormalize", "zero"])
def route_kernel(
    logits,
    correction_bias,
    topk_weights,
    topk_ids,
    tokens,
    experts,
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
    live = (token < tokens)[:, None] & (expert < experts)
    place = token[:, None] * experts + expert
    logit = tl.load(logits + place, mask=live, other=float("-inf"))

    # `scores = scores_of(logits, score)`
    if SCORE == SOFTMAX:
        scores = softmax(logit, zero, ROWS, WIDTH, LEVELS)
    elif SCORE == SIGMOID:
        scores = sigmoid(logit, zero)
    else:
        scores = tl.sqrt_rn(softplus(logit, zero))
    scores = tl.where(scores < float("inf"), scores, 0.0)

    # `sort(ordered(scores + correction_bias), descending=True, stable=True)`, one round a slot
    bias = tl.load(correction_bias + expert, mask=expert < experts, other=0.0)
    keys = tl.where(expert < experts, ordered(scores + bias), LOWEST)
    bits = scores.to(tl.int32, bitcast=True)
    slot = tl.arange(0, SLOTS)[None, :]
    ids = tl.zeros((ROWS, SLOTS), tl.int32)
    chosen = tl.zeros((ROWS, SLOTS), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for j in range(top_k):
        largest = tl.max(keys, axis=1)[:, None]
        # No key of an expert is the lowest number, so that a lane beyond them never wins.
        best = tl.min(tl.where(keys == largest, expert, WIDTH), axis=1)[:, None]
        here = expert == best
        keys = tl.where(here, LOWEST, keys)
        # `weights = scores.gather(1, ids)`, as bits: a sum of integers with one that is not 0
        weight = tl.sum(tl.where(here, bits, 0), axis=1).to(tl.float32, bitcast=True)
        ids = tl.where(slot == j, best, ids)
        chosen = tl.where(slot == j, weight[:, None], chosen)
        # `total = weights[:, :1]; for slot in range(1, top_k): total = total + weights[:, slot]`
        total = total + weight

    # `weights / where(total > 0.0, total, 1.0)`, and `weights * scale`
    divisor = tl.where((total > 0.0) & (renormalize == 1), total, 1.0)
    weights = tl.div_rn(chosen, divisor[:, None] + tl.zeros_like(chosen)) * scale
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
    topk_weights: Tensor | None = None,
    topk_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_route` as MOE_ROUTE defines it, into the given outputs or new ones.

    Inputs need not be contiguous (they are copied), outputs must be, and may overlap nothing.

    Raises:
        UsageError: an argument is not what MOE_ROUTE says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    inputs = {"logits": logits, "correction_bias": correction_bias}
    outputs = {"topk_weights": topk_weights, "topk_ids": topk_ids}
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    check(inputs | given, top_k, renormalize, scale, score)
    alias.check("moe_route", inputs, outputs)
    tokens, experts = logits.shape
    shape = (tokens, top_k)
    topk_weights = output("moe_route", "topk_weights", topk_weights, shape, logits)
    topk_ids = output("moe_route", "topk_ids", topk_ids, shape, logits, torch.int64)
    width = block_of(experts, 1 << 20)
    rows = max(1, (1 << 16 if interpreting() else 1024) // width)
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
        int(renormalize),
        float(scale),
        0,
        SCORE=SCORES.index(score),
        ROWS=rows,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        SLOTS=block_of(top_k, 1 << 20),
    )
    return topk_weights, topk_ids
