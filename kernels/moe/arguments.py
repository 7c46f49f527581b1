"""What the arguments of moe_experts must look like, for every implementation of it."""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.spec import TensorSpec
from bitgate.records.errors import UsageError

INPUTS: Final = (
    TensorSpec(name="x", dtype="bfloat16", axes=("tokens", "hidden")),
    TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
    TensorSpec(name="topk_weights", dtype="float32", axes=("tokens", "top_k")),
    TensorSpec(
        name="w_gate_up",
        dtype="bfloat16",
        axes=("experts", "2*intermediate", "hidden"),
        role="param",
    ),
    TensorSpec(
        name="w_down", dtype="bfloat16", axes=("experts", "hidden", "intermediate"), role="param"
    ),
)


def check_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
) -> None:
    """Check everything about the arguments of moe_experts that can be seen without their values.

    Raises:
        UsageError: a tensor is not as INPUTS says (topk_weights may be bfloat16, too), or the limit
            is not a positive number.
    """
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "w_down": w_down}
    narrow = getattr(topk_weights, "dtype", None) == torch.bfloat16
    specs = tuple(
        replace(one, dtype="bfloat16") if narrow and one.name == "topk_weights" else one
        for one in INPUTS
    )
    bind("moe_experts", specs, tensors)
    if type(swiglu_limit) not in (int, float) or not swiglu_limit > 0:
        raise UsageError(
            f"moe_experts: expected swiglu_limit to be a positive number, or inf for none, got "
            f"{shown(swiglu_limit)}"
        )


def check_ids(topk_ids: Tensor, experts: int) -> None:
    """Check the values of topk_ids, which waits for a device to have made them.

    Raises:
        UsageError: an id is neither an expert nor padding (-1 or `experts`).
    """
    if topk_ids.numel():
        low, high = (int(value) for value in torch.aminmax(topk_ids))
        if low < -1 or high > experts:
            raise UsageError(
                f"topk_ids: expected 0 to {experts - 1} (-1 or {experts} for padding), "
                f"got {low} to {high}; were the ids made for another number of experts?"
            )
