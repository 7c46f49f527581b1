"""Forms of exp that orders differ in."""

from typing import Final

import torch
from torch import Tensor

from bitgate.kernels import arithmetic

# Beyond these float32 would be subnormal or infinite; float32 numbers, as are log2(e) and ln 2.
_LOWEST: Final = float.fromhex("-0x1.5d58a0p+6")
_HIGHEST: Final = float.fromhex("0x1.62e430p+6")
_LOG2_E: Final = float.fromhex("0x1.715476p+0")
_LN2: Final = float.fromhex("0x1.62e430p-1")
# Of x, lowest power first; the engine writes them in decimal digits.
_FAST: Final = (1.0, 0.999999701, 0.499991506, 0.166676521, 0.0418978221, 0.00828929059)


def fast_exp(x: Tensor) -> Tensor:
    """The exp of vLLM's CPU kernels with AVX-512: csrc/cpu/cpu_arch_macros.h of vLLM 0.32.0.

    n = floor(x * log2(e) + 1/2), r = x - n * ln 2 (one constant), a polynomial of degree 5 by
    fused multiply-adds, times 2^(n - 1) and times 2.
    """

    def constant(value: float) -> Tensor:
        return torch.full_like(x, value)

    below = x < _LOWEST
    y = x.clamp(_LOWEST, _HIGHEST)
    n = arithmetic.fma(y, constant(_LOG2_E), constant(0.5)).floor()
    r = arithmetic.fma(-n, constant(_LN2), y)
    p = constant(_FAST[5])
    for coefficient in _FAST[4::-1]:
        p = arithmetic.fma(r, p, constant(coefficient))
    power = torch.where(below, 0.0, torch.ldexp(constant(1.0), (n - 1.0).int()))
    return p * power * 2.0


def libm_exp(x: Tensor) -> Tensor:
    """A correctly rounded exp in float32, which a good C library's nearly always is."""
    return x.double().exp().float()
