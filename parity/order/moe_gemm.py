"""What `moe_gemm` alone decides after its sum: bias, routing weight and rounding."""

from typing import Final

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.spec import Tensors
from bitgate.parity.order.base import Dimension, Option, State


def _biased(state: State, value: Tensor) -> Tensor:
    """The value plus the bias of each pair's expert, where the layer has one; +0 without expert."""
    bias = state.tensors.get("bias")
    if bias is None:
        return value
    expert = state["expert"]
    return torch.where(expert[:, None] >= 0, value + bias[expert.clamp(min=0)].float(), 0.0)


BIAS: Final = Dimension(
    name="bias",
    asks="when is the bias added, where there is one?",
    options=(
        Option(
            name="before",
            text="before the routing weight multiplies",
            run=lambda s: {"biased": _biased(s, s["acc"]), "late": torch.tensor(0)},
        ),
        Option(
            name="after",
            text="after the routing weight has multiplied",
            run=lambda s: {"biased": s["acc"], "late": torch.tensor(1)},
            applies=lambda s: "bias" in s.tensors and bool(s.constants["apply_weights"]),
        ),
    ),
    reads=("acc",),
)


def _finished(state: State, value: Tensor) -> Tensors:
    return {"out": arithmetic.round_bf16(_biased(state, value) if state["late"] else value)}


def _weights(state: State) -> Tensor:
    weights = state["weights"].float()[:, None]
    return weights if state.constants["apply_weights"] else torch.ones_like(weights)


def _row(state: State, weight: Tensor) -> Tensors:
    return _finished(state, arithmetic.round_bf16(state["biased"]).float() * weight)


def _weighs(state: State) -> bool:
    return bool(state.constants["apply_weights"])


GEMM_WEIGHT: Final = Dimension(
    name="weight",
    asks="what does the routing weight multiply, where it is applied?",
    options=(
        Option(
            name="accumulator",
            text="the float32 accumulator",
            run=lambda s: _finished(s, s["biased"] * _weights(s)),
        ),
        Option(
            name="row",
            text="the bfloat16 row, rounded a second time",
            run=lambda s: _row(s, _weights(s)),
            applies=_weighs,
        ),
        Option(
            name="row-bf16",
            text="the bfloat16 row, the weight in bfloat16, rounded a second time",
            run=lambda s: _row(s, arithmetic.round_bf16(_weights(s)).float()),
            applies=_weighs,
        ),
    ),
    reads=("biased", "late"),
    gives=("out",),
)
