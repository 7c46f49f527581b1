"""`moe_act` under `moe-bf16/1` in Triton, one launch. Each block is headed by its reference line.

Rows are 64-bit: those of a large batch times their length exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import (
    bits16,
    block_of,
    exp,
    launch,
    round_bf16,
    rows_of,
    sigmoid,
    widen,
)
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.act import ALPHA, KINDS, Activation, check

OAI = tl.constexpr(KINDS.index("swiglu-oai"))
STEP = tl.constexpr(KINDS.index("swiglu-step"))


@triton.jit
def activated(gate, up, limit, alpha, zero, KIND: tl.constexpr, ROUND_BETWEEN: tl.constexpr):
    """act_reference.activated: float32 tiles to float32, before the last rounding.

    KIND is the kind's place in KINDS; zero must arrive at run time.
    """
    up = tl.where(up > limit, limit, up)
    up = tl.where(up < -limit, -limit, up)
    if KIND != STEP:
        gate = tl.where(gate > limit, limit, gate)

    # `factor = gate * sigmoid(gate * alpha); up = up + 1.0`, or `gate / (1.0 + exp(0.0 - gate))`
    if KIND == OAI:
        factor = gate * sigmoid(gate * alpha, zero)
        up = up + 1.0
    else:
        factor = tl.div_rn(gate, 1.0 + exp(0.0 - gate, zero))
    if KIND == STEP:
        factor = tl.where(factor > limit, limit, factor)

    # `factor = round_bf16(factor).float()`
    if ROUND_BETWEEN:
        factor = widen(round_bf16(factor))
    return factor * up


@triton.jit(do_not_specialize=["zero"])
def act_kernel(
    gate_up,
    out,
    rows,
    intermediate,
    limit,
    alpha,
    zero,
    KIND: tl.constexpr,
    ROUND_BETWEEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per block of rows and block of the intermediate numbers."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    i = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (row < rows) & (i < intermediate)

    # `gate, up = halves(gate_up)`
    source = gate_up + row * 2 * intermediate
    if KIND == OAI:
        gate = source + 2 * i
        up = gate + 1
    else:
        gate = source + i
        up = gate + intermediate
    gate = widen(tl.load(gate, mask=live, other=0))
    up = widen(tl.load(up, mask=live, other=0))

    # `round_bf16(activated(gate, up))`
    product = activated(gate, up, limit, alpha, zero, KIND, ROUND_BETWEEN)
    tl.store(out + row * intermediate + i, round_bf16(product), mask=live)


def moe_act(
    *,
    gate_up: Tensor,
    swiglu_limit: float,
    kind: str = "silu",
    round_between: int = 1,
    alpha: float = ALPHA,
    out: Tensor | None = None,
) -> Tensor:
    """`moe_act` as MOE_ACT defines it, into the given out or a new one.

    gate_up need not be contiguous (it is copied), out must be, and may not overlap it.

    Raises:
        UsageError: an argument is not what MOE_ACT says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    settings = Activation(
        swiglu_limit=swiglu_limit, kind=kind, round_between=round_between, alpha=alpha
    )
    intermediate = check(gate_up, out)
    alias.check("moe_act", {"gate_up": gate_up}, {"out": out})
    rows = gate_up.shape[0]
    out = output("moe_act", "out", out, (rows, intermediate), gate_up)
    block = block_of(intermediate, 4096 if interpreting() else 1024)
    tile = rows_of(block)
    launch(
        act_kernel,
        (triton.cdiv(rows, tile), triton.cdiv(intermediate, block)),
        bits16(gate_up),
        out.view(torch.int16),
        rows,
        intermediate,
        settings.limit,
        settings.slope,
        0,
        KIND=settings.number,
        ROUND_BETWEEN=settings.round_between,
        ROWS=tile,
        BLOCK=block,
    )
    return out
