"""`moe_quant` under `moe-fp8/1` in Triton. Each block is headed by its reference line.

Rows are 64-bit: those of a large batch times their length exceed 2**31.
"""

from torch import Tensor, float8_e4m3fn, float32, int8

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import bits16, block_of, launch, rows_of, widen
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe import quant_whole_triton
from bitgate.kernels.moe.quant import check
from bitgate.kernels.moe.quant_rules import SCHEMES
from bitgate.kernels.moe.quant_steps_triton import codes_of, groups_of, magnitude, scale_of


@triton.jit
def group_kernel(
    x,
    codes,
    scales,
    rows,
    k,
    group,
    amax_floor,
    scale_floor,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    UE8M0: tl.constexpr,
    RECIPROCAL: tl.constexpr,
):
    """One program per TILE groups of `group` elements."""
    # `tiled(values, scheme, group)`
    at, exists, row, column, live = groups_of(rows, k, group, TILE, WIDTH)
    values = widen(tl.load(x + row * k + column, mask=live, other=0))

    # `scale_of(amax_of(tiles), SCHEMES[scheme], scale_rule)`
    scale = scale_of(tl.max(magnitude(values), 1), amax_floor, scale_floor, UE8M0)
    tl.store(scales + at, scale, mask=exists)

    # `codes_of(tiles, scales[..., None], rounding)`
    code = codes_of(values, scale, RECIPROCAL)
    tl.store(codes + row * k + column, code, mask=live)


def tile_of(group: int) -> tuple[int, int, int]:
    """How many groups a program takes, a power of two that covers one, and how many warps."""
    width = block_of(group, 1 << 30)
    return rows_of(width), width, min(16, max(4, width // 512))


def moe_quant(
    *,
    x: Tensor,
    scheme: str,
    group: int,
    scale_rule: str,
    rounding: str,
    scale: float = 1.0,
    codes: Tensor | None = None,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_quant` as MOE_QUANT defines it, into the given codes and scales or new ones.

    x need not be contiguous (it is copied), the outputs must be, and may not overlap it.

    Raises:
        UsageError: an argument is not what MOE_QUANT says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    given = {name: one for name, one in (("codes", codes), ("scales", scales)) if one is not None}
    shape = check({"x": x} | given, scheme, group, scale_rule, rounding, scale)
    alias.check("moe_quant", {"x": x}, {"codes": codes, "scales": scales})
    rows, k = x.shape
    codes = output("moe_quant", "codes", codes, (rows, k), x, float8_e4m3fn)
    scales = output("moe_quant", "scales", scales, shape, x, float32)
    rules = {"UE8M0": scale_rule == "ue8m0", "RECIPROCAL": rounding == "reciprocal"}
    if scheme in ("static", "tensor"):
        given_scale = float(scale) if scheme == "static" else None
        quant_whole_triton.quantise(x, given_scale, codes, scales, rules)
        return codes, scales
    length = group if scheme == "group" else k
    tile, width, num_warps = tile_of(length)
    launch(
        group_kernel,
        (triton.cdiv(scales.numel(), tile),),
        bits16(x),
        codes.view(int8),
        scales,
        rows,
        k,
        length,
        SCHEMES[scheme].amax,
        SCHEMES[scheme].scale,
        num_warps=num_warps,
        TILE=tile,
        WIDTH=width,
        **rules,
    )
    return codes, scales
