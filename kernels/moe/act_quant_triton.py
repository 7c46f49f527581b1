"""`moe_act_quant` under `moe-fp8/1` in Triton, one launch.

Rows are 64-bit: those of a large batch times their length exceed 2**31.
"""

from torch import Tensor, float8_e4m3fn, float32, int8

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import bits16, launch, round_bf16, widen
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe.act import ALPHA, Activation
from bitgate.kernels.moe.act_quant import check
from bitgate.kernels.moe.act_triton import OAI, activated
from bitgate.kernels.moe.quant_rules import SCHEMES
from bitgate.kernels.moe.quant_steps_triton import codes_of, groups_of, magnitude, scale_of
from bitgate.kernels.moe.quant_triton import tile_of


@triton.jit(do_not_specialize=["zero"])
def act_quant_kernel(
    gate_up,
    codes,
    scales,
    rows,
    intermediate,
    group,
    limit,
    alpha,
    amax_floor,
    scale_floor,
    zero,
    KIND: tl.constexpr,
    ROUND_BETWEEN: tl.constexpr,
    ROUND_PRODUCT: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    UE8M0: tl.constexpr,
    RECIPROCAL: tl.constexpr,
):
    """One program per TILE groups of `group` elements."""
    at, exists, row, column, live = groups_of(rows, intermediate, group, TILE, WIDTH)

    # `gate, up = halves(gate_up)`
    source = gate_up + row * 2 * intermediate
    if KIND == OAI:
        gate = source + 2 * column
        up = gate + 1
    else:
        gate = source + column
        up = gate + intermediate
    gate = widen(tl.load(gate, mask=live, other=0))
    up = widen(tl.load(up, mask=live, other=0))

    # `product = activated(gate, up)`; where nothing is, it is that of zeros: 0 for every kind
    product = activated(gate, up, limit, alpha, zero, KIND, ROUND_BETWEEN)
    if ROUND_PRODUCT:
        product = widen(round_bf16(product))

    # `quantised(product, scheme, group, scale_rule, rounding)`
    scale = scale_of(tl.max(magnitude(product), 1), amax_floor, scale_floor, UE8M0)
    tl.store(scales + at, scale, mask=exists)
    code = codes_of(product, scale, RECIPROCAL)
    tl.store(codes + row * intermediate + column, code, mask=live)


def moe_act_quant(
    *,
    gate_up: Tensor,
    swiglu_limit: float,
    scheme: str,
    group: int,
    scale_rule: str,
    rounding: str,
    kind: str = "silu",
    round_between: int = 1,
    alpha: float = ALPHA,
    round_product: int = 1,
    codes: Tensor | None = None,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_act_quant` as MOE_ACT_QUANT defines it, into the given codes and scales or new ones.

    gate_up need not be contiguous (it is copied), the outputs must be, and may not overlap it.

    Raises:
        UsageError: an argument is not what MOE_ACT_QUANT says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    op = "moe_act_quant"
    settings = Activation(
        swiglu_limit=swiglu_limit, kind=kind, round_between=round_between, alpha=alpha, op=op
    )
    given = {name: one for name, one in (("codes", codes), ("scales", scales)) if one is not None}
    shape = check({"gate_up": gate_up} | given, scheme, group, scale_rule, rounding, round_product)
    alias.check(op, {"gate_up": gate_up}, {"codes": codes, "scales": scales})
    rows, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    codes = output(op, "codes", codes, (rows, intermediate), gate_up, float8_e4m3fn)
    scales = output(op, "scales", scales, shape, gate_up, float32)
    length = group if scheme == "group" else intermediate
    tile, width, num_warps = tile_of(length)
    launch(
        act_quant_kernel,
        (triton.cdiv(scales.numel(), tile),),
        bits16(gate_up),
        codes.view(int8),
        scales,
        rows,
        intermediate,
        length,
        settings.limit,
        settings.slope,
        SCHEMES[scheme].amax,
        SCHEMES[scheme].scale,
        0,
        num_warps=num_warps,
        KIND=settings.number,
        ROUND_BETWEEN=settings.round_between,
        ROUND_PRODUCT=round_product,
        TILE=tile,
        WIDTH=width,
        UE8M0=scale_rule == "ue8m0",
        RECIPROCAL=rounding == "reciprocal",
    )
    return codes, scales
