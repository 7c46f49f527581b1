"""`moe_quant` under `moe-fp8/1`: the truth in plain torch, its values in float64 and a bound."""

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.quant import check
from bitgate.kernels.moe.quant_rules import SCHEMES, UE8M0_FLOOR, Floors

# Half a unit of a code's 3 stored bits is at most a 17th, at the tie 1 + 2^-4; below 2^-6 it is
# half the step 2^-9. The quotient before it was rounded at most twice in float32.
_CODE, _SMALLEST = 1 / 17, 2.0**-10
_QUOTIENT = 1 + 2.0**-22


def moe_quant(
    *, x: Tensor, scheme: str, group: int, scale_rule: str, rounding: str, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Rows in float8 and their scales; see MOE_QUANT.

    Args:
        x: [rows, k] bfloat16.
        scheme: static, tensor, token or group.
        group: elements of a group under scheme group, 64 or 128; the others have no use for it.
        scale_rule: amax or ue8m0.
        rounding: divide or reciprocal.
        scale: of the whole tensor, under scheme static.

    Returns:
        (codes [rows, k] float8_e4m3fn, scales float32 of the shape that the scheme has).

    Raises:
        UsageError: an argument is not what MOE_QUANT says.
    """
    check({"x": x}, scheme, group, scale_rule, rounding, scale)
    if scheme == "static":
        scales = torch.full((1, 1), float(scale), dtype=torch.float32, device=x.device)
        return codes_of(x.float(), scales, rounding), scales
    return quantised(x.float(), scheme, group, scale_rule, rounding)


def quantised(
    values: Tensor, scheme: str, group: int, scale_rule: str, rounding: str
) -> tuple[Tensor, Tensor]:
    """Codes and scales of float32 [rows, k], by their own magnitudes."""
    rows, k = values.shape
    tiles = tiled(values, scheme, group)
    scales = scale_of(amax_of(tiles), SCHEMES[scheme], scale_rule)
    codes = codes_of(tiles, scales[..., None], rounding)
    return codes.reshape(rows, codes.numel() // max(rows, 1) or k)[:, :k].contiguous(), scales


def tiled(values: Tensor, scheme: str, group: int) -> Tensor:
    """[rows, k] as [scales' rows, scales' columns, elements of a tile], short groups with +0."""
    rows, k = values.shape
    if scheme == "tensor":
        return values.reshape(1, 1, rows * k)
    if scheme == "token":
        return values[:, None]
    padded = functional.pad(values, (0, -k % group))
    return padded.reshape(rows, -(-k // group), group)


def amax_of(tiles: Tensor) -> Tensor:
    """The largest magnitude over the last axis, 0 of none; a NaN is larger than all numbers."""
    magnitude = tiles.contiguous().view(torch.int32) & 0x7FFFFFFF
    if not magnitude.shape[-1]:
        return tiles.new_zeros(tiles.shape[:-1])
    return magnitude.amax(-1).view(torch.float32)


def scale_of(amax: Tensor, floors: Floors, scale_rule: str) -> Tensor:
    """The scales of tiles with these largest magnitudes, float32; one NaN."""
    amax = torch.where(amax < floors.amax, floors.amax, amax)
    # By a tensor: torch's GPU division by a number multiplies with its rounded reciprocal.
    scale = amax / torch.full_like(amax, arithmetic.E4M3_MAX)
    scale = torch.where(scale < floors.scale, floors.scale, scale)
    if scale_rule == "ue8m0":
        scale = torch.where(scale < UE8M0_FLOOR, UE8M0_FLOOR, scale)
        scale = arithmetic.ceil_power_of_two(scale)
    return arithmetic.canonical(scale)


def codes_of(values: Tensor, scales: Tensor, rounding: str) -> Tensor:
    """Float32 values in units of scales that broadcast to them, in float8."""
    divisor = torch.where(scales == 0, 1.0, scales)
    if rounding == "divide":
        return arithmetic.round_e4m3(values / divisor)
    return arithmetic.round_e4m3(values * (torch.ones_like(divisor) / divisor))


def dequantised(codes: Tensor, scales: Tensor, block_n: int, block_k: int) -> Tensor:
    """Codes times their scales, exact in float64.

    Args:
        codes: [..., n, k] float8_e4m3fn.
        scales: [..., ceil(n / block_n), ceil(k / block_k)] float32.
        block_n: rows that share a scale: 1 for tokens and groups, all for a tensor.
        block_k: elements of a row that share one.

    Returns:
        [..., n, k] float64.
    """
    return codes.double() * spread(scales, codes, block_n, block_k)


def spread(scales: Tensor, codes: Tensor, block_n: int, block_k: int) -> Tensor:
    """The scale of each element, float64; arguments as for `dequantised`."""
    n, k = codes.shape[-2:]
    wide = scales.double().repeat_interleave(block_n, -2).repeat_interleave(block_k, -1)
    return wide[..., :n, :k]


def error_bound(x: Tensor, scales: Tensor, block_n: int, block_k: int) -> Tensor:
    """How far `dequantised` may lie from x where nothing exceeds 448 scales, [..., n, k] float64.

    Half a unit of the code, and what one or two roundings of the quotient can add to it.
    """
    size, step = x.double().abs(), spread(scales, x, block_n, block_k)
    return _QUOTIENT * torch.maximum(_CODE * size, _SMALLEST * step) + (_QUOTIENT - 1) * size
