"""`moe_dequant_mxfp4` under `mxfp4/1`: the truth in plain torch. Nothing rounds, so it is exact."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.mxfp4 import GROUP, check


def moe_dequant_mxfp4(*, codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers of packed 4-bit codes; see MOE_DEQUANT_MXFP4.

    Args:
        codes: [..., k / 2] uint8, of each byte the low nibble first.
        scales: [..., k / 32] uint8, exponent + 127; 255 is NaN.

    Returns:
        [..., k] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_DEQUANT_MXFP4 says.
    """
    shape = check(codes, scales)
    code = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).int()
    scale = scales.int().repeat_interleave(GROUP, dim=-1)
    return bits(code, scale).to(torch.int16).view(torch.bfloat16).reshape(shape)


def bits(code: Tensor, scale: Tensor) -> Tensor:
    """The bfloat16 bit patterns of codes times 2^(scale - 127), all int32."""
    # From 2 on a code is (1 + half) * 2^(exponent - 1); 1 is 2^-1.
    exponent, half = (code & 7) >> 1, code & 1
    significand = torch.where(exponent > 0, 128 | half << 6, 128)
    stored = scale + exponent - 1
    # A stored exponent below 1 is that of the subnormal numbers: the significand shifts instead.
    subnormal = significand >> (1 - stored).clamp(min=0)
    result = torch.where(stored > 0, stored << 7 | significand & 127, subnormal)
    result = torch.where(stored > 254, 0x7F80, result)
    result = torch.where((code & 7) == 0, 0, result) | (code >> 3) << 15
    return torch.where(scale == 255, arithmetic.NAN_BITS_BF16, result)
