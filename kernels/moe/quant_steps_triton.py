"""The steps of `quant_reference` for Triton kernels, under the same names."""

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import canonical, ceil_power_of_two, round_e4m3
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe import quant_rules

E4M3_MAX = tl.constexpr(arithmetic.E4M3_MAX)
UE8M0_FLOOR = tl.constexpr(quant_rules.UE8M0_FLOOR)


@triton.jit
def groups_of(rows, k, group, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """The tiles of this program, TILE groups of at most WIDTH elements in the order of memory.

    Answers the number of each group and whether it exists, both [TILE], and of its elements the
    row [TILE, 1], column and whether they exist, both [TILE, WIDTH].
    """
    groups = (k - 1) // group + 1  # the sum k + group could be too large
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = at // groups
    inside = tl.arange(0, WIDTH)[None, :]
    column = (at % groups).to(tl.int32)[:, None] * group + inside
    live = (row < rows)[:, None] & (inside < group) & (column < k)
    return at, row < rows, row[:, None], column, live


@triton.jit
def magnitude(x):
    """|x| as the integer of its bits, which orders NaN above all numbers."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(largest, amax_floor, scale_floor, UE8M0: tl.constexpr):
    """quant_reference.scale_of; `largest` is the magnitude as `magnitude` gives it."""
    amax = largest.to(tl.float32, bitcast=True)
    amax = tl.where(amax < amax_floor, amax_floor, amax)
    scale = tl.div_rn(amax, tl.full(amax.shape, E4M3_MAX, tl.float32))
    scale = tl.where(scale < scale_floor, scale_floor, scale)
    if UE8M0:
        scale = tl.where(scale < UE8M0_FLOOR, UE8M0_FLOOR, scale)
        scale = ceil_power_of_two(scale)
    return canonical(scale)


@triton.jit
def codes_of(values, scale, RECIPROCAL: tl.constexpr):
    """quant_reference.codes_of, as int8 bit patterns; `scale` has one number a row of values."""
    divisor = tl.where(scale == 0.0, 1.0, scale)
    if RECIPROCAL:
        quotient = values * tl.div_rn(tl.full(divisor.shape, 1.0, tl.float32), divisor)[:, None]
    else:
        quotient = tl.div_rn(values, tl.broadcast_to(divisor[:, None], values.shape))
    return round_e4m3(quotient)
