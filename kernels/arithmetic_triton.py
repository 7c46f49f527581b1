"""The pieces of `arithmetic` for Triton kernels, and how kernels made of them are launched.

Each device function implements the function of `arithmetic` of its name. Tensors of bfloat16 arrive
as int16 and those of float8 as int8 bit patterns, so that no backend's conversion is trusted.
"""

from typing import Any

import numpy as np
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.records.errors import EnvironmentUnfit

LIMIT = tl.constexpr(arithmetic.EXP_LIMIT)
LOG2_E = tl.constexpr(arithmetic.LOG2_E)
LN2_HIGH = tl.constexpr(arithmetic.LN2_HIGH)
LN2_LOW = tl.constexpr(arithmetic.LN2_LOW)
ROUND_MAGIC = tl.constexpr(arithmetic.ROUND_MAGIC)
ROUND_MAGIC_BITS = tl.constexpr(arithmetic.ROUND_MAGIC_BITS)
Q0, Q1, Q2, Q3, Q4, Q5 = (tl.constexpr(value) for value in arithmetic.EXP_Q)
L0, L1, L2, L3 = (tl.constexpr(value) for value in arithmetic.LOG_L)
HIGH_BITS = tl.constexpr(arithmetic.HIGH_BITS)
NAN_BITS = tl.constexpr(arithmetic.NAN_BITS)
NAN_BITS_BF16 = tl.constexpr(arithmetic.NAN_BITS_BF16)
E4M3_MAX_CODE = tl.constexpr(arithmetic.E4M3_MAX_CODE)
E4M3_NAN_CODE = tl.constexpr(arithmetic.E4M3_NAN_CODE)
E4M3_BIAS_SHIFT = tl.constexpr(arithmetic.E4M3_BIAS_SHIFT)
E4M3_NORMAL_BITS = tl.constexpr(arithmetic.E4M3_NORMAL_BITS)
E4M3_LAST_EXPONENT = tl.constexpr(arithmetic.E4M3_LAST_EXPONENT)


@triton.jit
def widen(bits):
    """Bfloat16, as int16 bit patterns, to float32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def round_bf16(x):
    """arithmetic.round_bf16, as int16 bit patterns."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
    return tl.where(x != x, NAN_BITS_BF16, rounded).to(tl.int16)


@triton.jit
def round_e4m3(x):
    """arithmetic.round_e4m3, as int8 bit patterns."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - E4M3_BIAS_SHIFT
    significand = (size & 0x7FFFFF) | 0x800000
    shift = tl.minimum(tl.maximum(-(size >> 23) + E4M3_LAST_EXPONENT, 21), 25)
    below_half = (tl.full(shift.shape, 1, tl.int32) << (shift - 1)) - 1
    subnormal = (significand + below_half + ((significand >> shift) & 1)) >> shift
    code = tl.minimum(tl.where(size < E4M3_NORMAL_BITS, subnormal, normal), E4M3_MAX_CODE)
    return tl.where(x != x, E4M3_NAN_CODE, code | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def ceil_power_of_two(x):
    """arithmetic.ceil_power_of_two."""
    bits = x.to(tl.int32, bitcast=True)
    power = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(x != x, x, power)


@triton.jit
def canonical(x):
    """arithmetic.canonical."""
    nan = tl.full(x.shape, NAN_BITS, tl.int32).to(tl.float32, bitcast=True)
    return tl.where(x != x, nan, x)


@triton.jit
def high(w):
    """The hi of arithmetic.split; lo is w - hi."""
    return (w.to(tl.int32, bitcast=True) & HIGH_BITS).to(tl.float32, bitcast=True)


@triton.jit
def tree(lanes, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """arithmetic.tree over [ROWS, WIDTH = 2^LEVELS]."""
    for level in tl.static_range(LEVELS):
        even, odd = tl.split(tl.reshape(lanes, (ROWS, WIDTH >> (level + 1), 2)))
        lanes = even + odd
    return tl.reshape(lanes, (ROWS,))


@triton.jit
def fence(x, zero):
    """x, out of reach of an optimiser that would contract a multiply with an add.

    `zero` must arrive at run time: as a compile-time constant the fence folds away.
    """
    return (x.to(tl.int32, bitcast=True) ^ zero).to(tl.float32, bitcast=True)


@triton.jit
def exp(x, zero):
    """arithmetic.exp."""
    low = tl.where(x < -LIMIT, -LIMIT, x)
    y = tl.where(low > LIMIT, LIMIT, low)
    shifted = fence(y * LOG2_E, zero) + ROUND_MAGIC
    n = shifted - ROUND_MAGIC
    r = (y - n * LN2_HIGH) - fence(n * LN2_LOW, zero)
    q = fence(r * Q5, zero) + Q4
    q = fence(q * r, zero) + Q3
    q = fence(q * r, zero) + Q2
    q = fence(q * r, zero) + Q1
    q = fence(q * r, zero) + Q0
    p = (fence(q * (r * r), zero) + r) + 1.0
    exponent = (shifted.to(tl.int32, bitcast=True) - ROUND_MAGIC_BITS + 127) << 23
    result = p * exponent.to(tl.float32, bitcast=True)
    result = tl.where(x < -LIMIT, 0.0, result)
    return tl.where(x > LIMIT, float("inf"), result)


@triton.jit
def sigmoid(z, zero):
    """arithmetic.sigmoid."""
    one = tl.full(z.shape, 1.0, tl.float32)
    return tl.div_rn(one, one + exp(0.0 - z, zero))


@triton.jit
def softplus(x, zero):
    """arithmetic.softplus."""
    t = exp(0.0 - tl.abs(x), zero)
    s = tl.div_rn(t, 2.0 + t)
    z = s * s
    series = fence(z * L3, zero) + L2
    series = fence(series * z, zero) + L1
    series = fence(series * z, zero) + L0
    log = s + fence(s * (z * series), zero)
    return tl.where(x > 0.0, x, 0.0) + (log + log)


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, **constants: Any
) -> None:
    """Launch a kernel made of these pieces: multiply-add fusion is off wherever it is launched.

    Raises:
        EnvironmentUnfit: the tensors lie on the CPU and Triton does not interpret here.
    """
    on_cpu = any(isinstance(a, torch.Tensor) and a.device.type == "cpu" for a in arguments)
    if on_cpu and not interpreting():
        raise EnvironmentUnfit(
            "expected tensors on a device that Triton compiles for, got CPU tensors: set "
            "TRITON_INTERPRET=1 before Python starts, or choose an implementation without Triton"
        )
    # Interpreted by NumPy, an infinity or a NaN would warn; no device does.
    with np.errstate(all="ignore"):
        if 0 not in grid:
            kernel[grid](*arguments, enable_fp_fusion=False, num_warps=num_warps, **constants)


def block_of(extent: int, limit: int) -> int:
    """The smallest power of two that covers `extent`, from 16 up to `limit`."""
    return max(16, min(limit, 1 << (extent - 1).bit_length()))


def rows_of(width: int) -> int:
    """How many rows of `width` elements a program takes; in the interpreter a program is dear."""
    return max(1, (1 << 16 if interpreting() else 1024) // width)


def bits16(tensor: torch.Tensor) -> torch.Tensor:
    """A bfloat16 tensor as its int16 bit patterns, without a copy if it is contiguous."""
    return tensor.contiguous().view(torch.int16)
