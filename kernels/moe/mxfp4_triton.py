"""`moe_dequant_mxfp4` under `mxfp4/1` in Triton, one launch, headed by its reference lines.

Rows are 64-bit: those of all experts times their length exceed 2**31.
"""

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import NAN_BITS_BF16, block_of, launch, rows_of
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.mxfp4 import check


@triton.jit
def dequant_mxfp4_kernel(codes, scales, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per block of rows and block of their numbers; width is a multiple of 32."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    k = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (row < rows) & (k < width)

    # `code = stack([codes & 15, codes >> 4]); scale = scales.repeat_interleave(32)`
    pair = tl.load(codes + row * (width // 2) + k // 2, mask=live, other=0).to(tl.int32)
    code = (pair >> (k % 2 * 4)) & 15
    scale = tl.load(scales + row * (width // 32) + k // 32, mask=live, other=0).to(tl.int32)

    # `exponent, half = (code & 7) >> 1, code & 1; stored = scale + exponent - 1`
    exponent = (code & 7) >> 1
    significand = tl.where(exponent > 0, 128 | (code & 1) << 6, 128)
    stored = scale + exponent - 1

    # `subnormal = significand >> (1 - stored).clamp(min=0)`
    subnormal = significand >> tl.maximum(1 - stored, 0)
    bits = tl.where(stored > 0, stored << 7 | significand & 127, subnormal)
    bits = tl.where(stored > 254, 0x7F80, bits)
    bits = tl.where((code & 7) == 0, 0, bits) | (code >> 3) << 15
    bits = tl.where(scale == 255, NAN_BITS_BF16, bits)
    tl.store(out + row * width + k, bits.to(tl.int16), mask=live)


def moe_dequant_mxfp4(*, codes: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """`moe_dequant_mxfp4` as MOE_DEQUANT_MXFP4 defines it, into the given out or a new one.

    Inputs need not be contiguous (they are copied), out must be, and may not overlap them.

    Raises:
        UsageError: an argument is not what MOE_DEQUANT_MXFP4 says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    shape = check(codes, scales, out)
    alias.check("moe_dequant_mxfp4", {"codes": codes, "scales": scales}, {"out": out})
    out = output("moe_dequant_mxfp4", "out", out, shape, codes, torch.bfloat16)
    width = shape[-1]
    rows = out.numel() // width if width else 0
    block = block_of(width, 4096 if interpreting() else 1024)
    tile = rows_of(block)
    launch(
        dequant_mxfp4_kernel,
        (triton.cdiv(rows, tile), triton.cdiv(width, block)),
        codes.contiguous(),
        scales.contiguous(),
        out.view(torch.int16),
        rows,
        width,
        ROWS=tile,
        BLOCK=block,
    )
    return out
