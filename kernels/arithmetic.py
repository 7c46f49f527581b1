"""The arithmetic that no device, thread count or vector width can change: numbers, and in torch.

Contracts whose bits are the same everywhere are made of these pieces. Only operations that IEEE 754
rounds alike on every device are used: + - * /, comparisons, integer operations and casts; the
square root goes through float64. `arithmetic_triton` holds the same pieces for Triton kernels.

exp(x) = 2^n * (1 + r + r^2 * Q(r)), n = round(x / ln 2), r = x - n * LN2_HIGH - n * LN2_LOW. It is
exactly 0 under -87 and inf above 87, and elsewhere within 1.5 * 2^-24 of the value. sigmoid(z) is
1 / (1 + exp(-z)). softplus(x) is max(x, 0) + 2 * (s + s * z * L(z)) with t = exp(-|x|),
s = t / (2 + t) and z = s * s, which is log(1 + t) as an area tangent; x itself above 17, exactly 0
under -87, and elsewhere within 3.5 * 2^-24 of the value. Sums over lanes are a tree of adjacent
pairs. Bfloat16 and float8_e4m3fn are made by integer arithmetic, to nearest even, and a NaN is
stored as the one canonical NaN; what float8 cannot hold, infinities too, becomes its largest, 448.
"""

from typing import Final

import torch

Tensor = torch.Tensor

# LN2_HIGH has 9 significant bits, so that n * LN2_HIGH is exact. Q is a minimax fit on
# |r| <= ln(2) / 2, lowest power first, rounded to float32.
EXP_LIMIT: Final = 87.0
LOG2_E: Final = float.fromhex("0x1.715476p+0")
LN2_HIGH: Final = 0.693359375
LN2_LOW: Final = float.fromhex("-0x1.bd0106p-13")
ROUND_MAGIC: Final = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer in the low bits
ROUND_MAGIC_BITS: Final = 0x4B400000
EXP_Q: Final = (
    float.fromhex("0x1.000000p-1"),
    float.fromhex("0x1.555554p-3"),
    float.fromhex("0x1.55548cp-5"),
    float.fromhex("0x1.111274p-7"),
    float.fromhex("0x1.6d8e6ep-10"),
    float.fromhex("0x1.9f077ap-13"),
)
# L is a minimax fit of the area tangent's series on z <= 1 / 9, lowest power first, rounded to
# float32; what it leaves out is below 2^-27 of the logarithm.
LOG_L: Final = (
    float.fromhex("0x1.555500p-2"),
    float.fromhex("0x1.99d27cp-3"),
    float.fromhex("0x1.1eb612p-3"),
    float.fromhex("0x1.1ef870p-3"),
)

HIGH_BITS: Final = -4096  # 0xFFFFF000 as a signed 32-bit integer
NAN_BITS: Final = 0x7FC00000
NAN_BITS_BF16: Final = 0x7FC0

E4M3_MAX: Final = 448.0
E4M3_MAX_CODE: Final = 0x7E
E4M3_NAN_CODE: Final = 0x7F
E4M3_BIAS_SHIFT: Final = (127 - 7) << 3  # float32's exponent, as its upper bits hold it, to e4m3's
E4M3_NORMAL_BITS: Final = 0x3C800000  # 2^-6, its smallest normal number
E4M3_LAST_EXPONENT: Final = 141  # a float32 significand is that many minus its exponent above 2^-9


def split(w: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 w as hi + lo, both exact: hi keeps sign, exponent and 11 stored significand bits."""
    hi = (w.contiguous().view(torch.int32) & HIGH_BITS).view(torch.float32)
    return hi, w - hi


def tree(lanes: Tensor) -> Tensor:
    """Sum over the last axis (a power of two) as a tree of adjacent pairs."""
    while lanes.shape[-1] > 1:
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    return lanes[..., 0]


def sqrt(x: Tensor) -> Tensor:
    """Correctly rounded float32 square root."""
    return x.double().sqrt().float()


def fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Float32 x * y + z, rounded once.

    The product is exact in float64. The sum there is rounded to odd, which a second rounding to 24
    bits cannot tell from the exact one: the error of an addition is exact, and says to which side.
    """
    product, addend = x.double() * y.double(), z.double()
    total = product + addend
    other = total - product
    error = (product - (total - other)) + (addend - other)
    bits = total.view(torch.int64)
    inexact_even = (error != 0) & (error == error) & (bits & 1 == 0)
    away = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where(inexact_even, bits + away, bits).view(torch.float64).float()


def canonical(x: Tensor) -> Tensor:
    """Float32 x with every NaN replaced by the canonical one."""
    nan = torch.full_like(x, NAN_BITS, dtype=torch.int32).view(torch.float32)
    return torch.where(x != x, nan, x)


def round_bf16(x: Tensor) -> Tensor:
    """Float32 x to bfloat16, nearest even, by integer arithmetic; canonical NaN."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(torch.int16)
    nan = torch.full_like(rounded, NAN_BITS_BF16)
    return torch.where(x != x, nan, rounded).view(torch.bfloat16)


def round_e4m3(x: Tensor) -> Tensor:
    """Float32 x to float8_e4m3fn, nearest even, at most 448, by integer arithmetic; one NaN."""
    bits = x.contiguous().view(torch.int32)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - E4M3_BIAS_SHIFT
    # Below the normal numbers the codes count units of 2^-9. At a shift of 25 nothing is left.
    significand = (size & 0x7FFFFF) | 0x800000
    shift = (E4M3_LAST_EXPONENT - (size >> 23)).clamp(21, 25)
    below_half = (torch.ones_like(shift) << (shift - 1)) - 1
    subnormal = (significand + below_half + ((significand >> shift) & 1)) >> shift
    code = torch.where(size < E4M3_NORMAL_BITS, subnormal, normal).clamp(max=E4M3_MAX_CODE)
    code = torch.where(x != x, E4M3_NAN_CODE, code | ((bits >> 24) & 0x80))
    return code.to(torch.uint8).view(torch.float8_e4m3fn)


def ceil_power_of_two(x: Tensor) -> Tensor:
    """The least power of two not below float32 x, which is at least 2^-126; inf, NaN stay."""
    bits = x.contiguous().view(torch.int32)
    power = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return torch.where(x != x, x, power)


def exp(x: Tensor) -> Tensor:
    """0 below -87, inf above 87, a fixed polynomial in between; a NaN stays one."""
    low = torch.where(x < -EXP_LIMIT, -EXP_LIMIT, x)
    y = torch.where(low > EXP_LIMIT, EXP_LIMIT, low)
    shifted = y * LOG2_E + ROUND_MAGIC
    n = shifted - ROUND_MAGIC
    r = (y - n * LN2_HIGH) - n * LN2_LOW
    q = torch.full_like(r, EXP_Q[5])
    for coefficient in EXP_Q[4::-1]:
        q = q * r + coefficient
    p = (q * (r * r) + r) + 1.0
    exponent = (shifted.view(torch.int32) - ROUND_MAGIC_BITS + 127) << 23
    result = p * exponent.view(torch.float32)
    result = torch.where(x < -EXP_LIMIT, 0.0, result)
    return torch.where(x > EXP_LIMIT, float("inf"), result)


def sigmoid(z: Tensor) -> Tensor:
    """1 / (1 + exp(-z)): exactly 0 below -87 and exactly 1 above 17."""
    return 1.0 / (1.0 + exp(0.0 - z))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)): x above 17, exactly 0 below -87."""
    t = exp(0.0 - x.abs())
    s = t / (2.0 + t)
    z = s * s
    series = torch.full_like(z, LOG_L[3])
    for coefficient in LOG_L[2::-1]:
        series = series * z + coefficient
    log = s + s * (z * series)
    return torch.where(x > 0.0, x, 0.0) + (log + log)
