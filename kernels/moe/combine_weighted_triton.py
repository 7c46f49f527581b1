"""`moe_combine_weighted` under `moe-gather/1` in Triton, one launch, headed by its reference lines.

Rows are 64-bit: those of a large batch times their length exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import (
    bits16,
    block_of,
    fence,
    launch,
    round_bf16,
    rows_of,
    widen,
)
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.combine_weighted import check


@triton.jit(do_not_specialize=["zero"])
def combine_weighted_kernel(
    y,
    topk_ids,
    topk_weights,
    out,
    tokens,
    hidden,
    experts,
    zero,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per block of tokens and block of their hidden numbers."""
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (token < tokens)[:, None] & (h < hidden)

    # `acc = zeros; for slot in range(top_k):`
    acc = tl.zeros((ROWS, BLOCK), tl.float32)
    for slot in tl.static_range(TOP_K):
        pair = token * TOP_K + slot
        chosen = tl.load(topk_ids + pair, mask=token < tokens, other=-1)
        kept = (chosen >= 0) & (chosen < experts)

        # `product = y[:, slot] * topk_weights[:, slot]; acc = where(kept, acc + product, acc)`
        weight = tl.load(topk_weights + pair, mask=kept, other=0)[:, None]
        kept = kept[:, None]
        row = widen(tl.load(y + pair[:, None] * hidden + h, mask=live & kept, other=0))
        acc = tl.where(kept, acc + fence(row * weight, zero), acc)

    # `round_bf16(acc)`
    tl.store(out + token[:, None] * hidden + h, round_bf16(acc), mask=live)


def moe_combine_weighted(
    *,
    y: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    experts: int,
    out: Tensor | None = None,
) -> Tensor:
    """`moe_combine_weighted` as MOE_COMBINE_WEIGHTED defines it, into the given out or a new one.

    Inputs need not be contiguous (they are copied), out must be, and may not overlap them.

    Raises:
        UsageError: an argument is not what MOE_COMBINE_WEIGHTED says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    check(y, topk_ids, topk_weights, experts, out)
    given = {"y": y, "topk_ids": topk_ids, "topk_weights": topk_weights}
    alias.check("moe_combine_weighted", given, {"out": out})
    tokens, top_k, hidden = y.shape
    out = output("moe_combine_weighted", "out", out, (tokens, hidden), y)
    block = block_of(hidden, 4096 if interpreting() else 1024)
    rows = rows_of(block)
    launch(
        combine_weighted_kernel,
        (triton.cdiv(tokens, rows), triton.cdiv(hidden, block)),
        bits16(y),
        topk_ids.contiguous(),
        topk_weights.contiguous(),
        out.view(torch.int16),
        tokens,
        hidden,
        experts,
        0,
        TOP_K=top_k,
        ROWS=rows,
        BLOCK=block,
    )
    return out
