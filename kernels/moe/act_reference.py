"""`moe_act` under `moe-bf16/1`: the truth in plain torch, and float64 with a bound."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.act import ALPHA, Activation, check

_BF16 = 2.0**-8
_FP32 = 2.0**-24
# exp within 1.5 units, then a sum and a quotient.
_SILU = 4
# sigmoid as silu, and of swiglu-oai the product with gate, up + 1 and their product.
_GLU = 8
# Below -87 the sigmoid counts as 0; half the smallest bfloat16 is lost besides.
_CUT = 87.5 * 2.0**-125
_SMALLEST = 2.0**-134


def moe_act(
    *,
    gate_up: Tensor,
    swiglu_limit: float,
    kind: str = "silu",
    round_between: int = 1,
    alpha: float = ALPHA,
) -> Tensor:
    """The gated activation; see MOE_ACT.

    Args:
        gate_up: [rows, 2 * intermediate] bfloat16, the gate half first, or interleaved.
        swiglu_limit: gate or its silu is clamped above, up on both sides; inf clamps nothing.
        kind: "silu", "swiglu-oai" or "swiglu-step".
        round_between: 1 rounds to bfloat16 before the product, 0 does not.
        alpha: swiglu-oai's factor within the sigmoid.

    Returns:
        [rows, intermediate] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_ACT says.
    """
    settings = Activation(
        swiglu_limit=swiglu_limit, kind=kind, round_between=round_between, alpha=alpha
    )
    check(gate_up)
    gate, up = halves(gate_up.float(), settings)
    return arithmetic.round_bf16(activated(gate, up, settings))


def halves(gate_up: Tensor, settings: Activation) -> tuple[Tensor, Tensor]:
    """Gate and up, views of [..., 2 * intermediate], as the kind lays them out."""
    if settings.interleaved:
        return gate_up[..., 0::2], gate_up[..., 1::2]
    gate, up = gate_up.chunk(2, dim=-1)
    return gate, up


def activated(gate: Tensor, up: Tensor, settings: Activation) -> Tensor:
    """The activation of float32 gates and ups, float32: what the last rounding is applied to.

    Shared by every operator with an activation inside; `act_triton.activated` is the same in
    Triton.
    """
    limit = settings.limit
    up = torch.where(up > limit, limit, up)
    up = torch.where(up < -limit, -limit, up)
    if settings.kind != "swiglu-step":
        gate = torch.where(gate > limit, limit, gate)
    if settings.kind == "swiglu-oai":
        factor = gate * arithmetic.sigmoid(gate * settings.slope)
        up = up + 1.0
    else:
        factor = gate / (1.0 + arithmetic.exp(0.0 - gate))
    if settings.kind == "swiglu-step":
        factor = torch.where(factor > limit, limit, factor)
    if settings.round_between:
        factor = arithmetic.round_bf16(factor).float()
    return factor * up


def moe_act_float64(
    *,
    gate_up: Tensor,
    swiglu_limit: float,
    kind: str = "silu",
    round_between: int = 1,
    alpha: float = ALPHA,
) -> tuple[Tensor, Tensor]:
    """The exact activation and the largest error that the contract can make.

    The bound follows the roundings one by one: silu in float32 is within 4 * 2^-24 of the value,
    and each bfloat16 rounding within 2^-8. Of swiglu-oai, the product alpha * gate moves the
    exponent by |alpha * gate| * 2^-24, of which sigmoid passes on 1 - sigmoid. A clamp enlarges
    nothing.

    Args:
        gate_up: as for `moe_act`, and so are the others; finite.
        swiglu_limit: see there.
        kind: see there.
        round_between: see there.
        alpha: see there.

    Returns:
        (value, bound), both [rows, intermediate] float64: |out - value| <= bound.
    """
    settings = Activation(
        swiglu_limit=swiglu_limit, kind=kind, round_between=round_between, alpha=alpha
    )
    gate, up = halves(gate_up.double(), settings)
    limit = settings.limit
    up = up.clamp(-limit, limit)
    if kind == "swiglu-oai":
        gate, up = gate.clamp(max=limit), up + 1.0
        z = settings.slope * gate
        factor = gate * torch.sigmoid(z)
        units = _GLU + 1.01 * z.abs() * torch.sigmoid(-z)
        cut = _CUT / settings.slope
    else:
        gate = gate if kind == "swiglu-step" else gate.clamp(max=limit)
        factor = gate * torch.sigmoid(gate)
        units, cut = torch.full_like(factor, _SILU), _CUT
    # A clamp of the factor comes after its error: it is then at most the limit's.
    error = units * _FP32 * factor.abs() + cut + _SMALLEST
    if kind == "swiglu-step":
        factor = factor.clamp(max=limit)
    if round_between:
        error = error + _BF16 * (factor.abs() + error)
    value, error = factor * up, error * up.abs()
    error = error + _FP32 * (value.abs() + error)
    return value, error + _BF16 * (value.abs() + error) + cut + _SMALLEST
