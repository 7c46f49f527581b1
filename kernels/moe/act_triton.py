"""`moe_act` under `moe-bf16/1` in Triton, one launch. Each block is headed by its reference line.

Rows are 64-bit: those of a large batch times their length exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import bits16, block_of, exp, launch, round_bf16, widen
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.act import check


@triton.jit(do_not_specialize=["zero"])
def act_kernel(
    gate_up, out, rows, intermediate, limit, zero, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per block of rows and block of the intermediate numbers."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    i = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (row < rows) & (i < intermediate)
    source = gate_up + row * 2 * intermediate + i

    # `gate, up = clamped(gate, up, limit)`
    gate = widen(tl.load(source, mask=live, other=0))
    up = widen(tl.load(source + intermediate, mask=live, other=0))
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, up)
    up = tl.where(up < -limit, -limit, up)

    # `silu = round_bf16(gate / (1.0 + exp(0.0 - gate)))`
    silu = widen(round_bf16(tl.div_rn(gate, 1.0 + exp(0.0 - gate, zero))))

    # `round_bf16(silu * up)`
    tl.store(out + row * intermediate + i, round_bf16(silu * up), mask=live)


def moe_act(*, gate_up: Tensor, swiglu_limit: float, out: Tensor | None = None) -> Tensor:
    """`moe_act` as MOE_ACT defines it, into the given out or a new one.

    gate_up need not be contiguous (it is copied), out must be, and may not overlap it.

    Raises:
        UsageError: an argument is not what MOE_ACT says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    intermediate = check(gate_up, swiglu_limit, out)
    alias.check("moe_act", {"gate_up": gate_up}, {"out": out})
    rows = gate_up.shape[0]
    out = output("moe_act", "out", out, (rows, intermediate), gate_up)
    size = 1 << 16 if interpreting() else 1024
    block = block_of(intermediate, min(size, 4096))
    tile = max(1, size // block)
    launch(
        act_kernel,
        (triton.cdiv(rows, tile), triton.cdiv(intermediate, block)),
        bits16(gate_up),
        out.view(torch.int16),
        rows,
        intermediate,
        float(swiglu_limit),
        0,
        ROWS=tile,
        BLOCK=block,
    )
    return out
