"""`moe_act` under `moe-bf16/1`: the truth in plain torch, and float64 with a bound."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.act import check

_BF16 = 2.0**-8
_FP32 = 2.0**-24
# exp within 1.5 units, then a sum and a quotient.
_SILU = 4 * _FP32
# Below -87 silu counts as 0; half the smallest bfloat16 is lost besides.
_SMALLEST = 87.5 * 2.0**-125 + 2.0**-134


def moe_act(*, gate_up: Tensor, swiglu_limit: float) -> Tensor:
    """The gated activation; see MOE_ACT.

    Args:
        gate_up: [rows, 2 * intermediate] bfloat16, the gate half first.
        swiglu_limit: gate is clamped above, up on both sides; inf clamps nothing.

    Returns:
        [rows, intermediate] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_ACT says.
    """
    check(gate_up, swiglu_limit)
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = clamped(gate, up, float(swiglu_limit))
    silu = arithmetic.round_bf16(gate / (1.0 + arithmetic.exp(0.0 - gate)))
    return arithmetic.round_bf16(silu.float() * up)


def clamped(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Gate at most `limit`, up between -limit and limit."""
    gate = torch.where(gate > limit, limit, gate)
    up = torch.where(up > limit, limit, up)
    return gate, torch.where(up < -limit, -limit, up)


def moe_act_float64(*, gate_up: Tensor, swiglu_limit: float) -> tuple[Tensor, Tensor]:
    """The exact activation and the largest error that the contract can make.

    The bound follows the roundings one by one: silu in float32 is within 4 * 2^-24 of the value,
    each bfloat16 rounding within 2^-8 of it, and the product of two bfloat16 is exact in float32.

    Args:
        gate_up: as for `moe_act`; finite.
        swiglu_limit: see there.

    Returns:
        (value, bound), both [rows, intermediate] float64: |out - value| <= bound.
    """
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = clamped(gate, up, float(swiglu_limit))
    silu = gate * torch.sigmoid(gate)
    error = _SILU * silu.abs() + _SMALLEST
    error = error + _BF16 * (silu.abs() + error)
    value, error = silu * up, error * up.abs()
    return value, error + _BF16 * (value.abs() + error) + _SMALLEST
