"""What the arguments of the experts and of their stages must look like."""

import torch
from torch import Tensor

_WEIGHT_DTYPES = (torch.float32, torch.bfloat16)


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
        TypeError: a tensor has another dtype.
        ValueError: shapes disagree, or the limit is not positive.
    """
    expect_dtype("x", x, torch.bfloat16)
    expect_dtype("topk_ids", topk_ids, torch.int64)
    expect_dtype("topk_weights", topk_weights, *_WEIGHT_DTYPES)
    expect_dtype("w_gate_up", w_gate_up, torch.bfloat16)
    expect_dtype("w_down", w_down, torch.bfloat16)
    ranks = [tensor.dim() for tensor in (x, topk_ids, topk_weights, w_gate_up, w_down)]
    if ranks != [2, 2, 2, 3, 3]:
        raise ValueError(
            "expected x, topk_ids, topk_weights with 2 and w_gate_up, w_down with 3 dimensions, "
            f"got {ranks}"
        )
    tokens, hidden = x.shape
    experts, _, intermediate = w_down.shape
    beside = f"x {tuple(x.shape)} and w_down {tuple(w_down.shape)}"
    expect_shape("topk_ids", topk_ids, (tokens, topk_ids.shape[1]), beside)
    expect_shape("topk_weights", topk_weights, (tokens, topk_ids.shape[1]), beside)
    expect_shape("w_gate_up", w_gate_up, (experts, 2 * intermediate, hidden), beside)
    expect_shape("w_down", w_down, (experts, hidden, intermediate), beside)
    if not swiglu_limit > 0:
        raise ValueError(f"swiglu_limit: expected a positive number or inf, got {swiglu_limit}")


def check_ids(topk_ids: Tensor, experts: int) -> None:
    """Check the values of topk_ids, which waits for a device to have made them.

    Raises:
        ValueError: an id is neither an expert nor padding (-1 or `experts`).
    """
    if topk_ids.numel():
        low, high = (int(value) for value in torch.aminmax(topk_ids))
        if low < -1 or high > experts:
            raise ValueError(
                f"topk_ids: expected 0 to {experts - 1} (-1 or {experts} for padding), "
                f"got {low} to {high}; were the ids made for another number of experts?"
            )


def expect_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raise TypeError unless the tensor has one of these dtypes."""
    if tensor.dtype not in dtypes:
        known = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: expected {known}, got {tensor.dtype}; convert it first")


def expect_shape(name: str, tensor: Tensor, shape: tuple[int, ...], beside: str) -> None:
    """Raise ValueError unless the tensor has this shape, which follows from what is `beside` it."""
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name}: expected shape {shape} beside {beside}, got {tuple(tensor.shape)}"
        )
