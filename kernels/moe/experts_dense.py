"""The experts as one dense loop without tiles, in float32 or float64: what is a result off?

Nothing is rounded to bfloat16, so an implementation's distance from it is what its roundings cost.
In float64 it is an accuracy oracle for any activation, with biases, weights on the input, and
float8 weights that are given dequantised; `experts_oracle` adds a proved bound for the arithmetic
of a contract. In float32 it is what a model's own code computes when it is not asked for speed.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels.moe.act import Activation
from bitgate.records.errors import UsageError


def experts_dense(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    activation: Activation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    weigh_input: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Every expert over the rows of its tokens, slot by slot.

    Args:
        x: [tokens, hidden] of any float dtype.
        topk_ids: [tokens, top_k] int64; what is not 0 to experts - 1 is left out.
        topk_weights: [tokens, top_k], of any float dtype.
        w_gate_up: [experts, 2 * intermediate, hidden], as the kind of the activation lays it out.
        w_down: [experts, hidden, intermediate].
        activation: kind, limit and alpha; its roundings do not take place.
        gate_up_bias: [experts, 2 * intermediate], where there is one.
        down_bias: [experts, hidden].
        weigh_input: the weights multiply the first matmul's result, and not the second's.
        dtype: float32 or float64, in which all of it is computed.

    Returns:
        [tokens, hidden] of that dtype.

    Raises:
        UsageError: another dtype.
    """
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"experts_dense: expected float32 or float64 to compute in, got {dtype}")
    out = torch.zeros(x.shape, dtype=dtype, device=x.device)
    weights = topk_weights.to(dtype)
    for expert, slot in torch.cartesian_prod(
        torch.arange(len(w_down)), torch.arange(topk_ids.shape[1])
    ).tolist():
        tokens = torch.where(topk_ids[:, slot] == expert)[0]
        if not len(tokens):
            continue
        gate_up = x[tokens].to(dtype) @ w_gate_up[expert].to(dtype).T
        if gate_up_bias is not None:
            gate_up = gate_up + gate_up_bias[expert].to(dtype)
        weight = weights[tokens, slot, None]
        if weigh_input:
            gate_up = gate_up * weight
        rows = activated(gate_up, activation) @ w_down[expert].to(dtype).T
        if down_bias is not None:
            rows = rows + down_bias[expert].to(dtype)
        out[tokens] += rows if weigh_input else rows * weight
    return out


def activated(gate_up: Tensor, activation: Activation) -> Tensor:
    """The activation of rows [rows, 2 * intermediate], in their own dtype, nothing rounded."""
    if activation.interleaved:
        gate, up = gate_up[..., 0::2], gate_up[..., 1::2]
    else:
        gate, up = gate_up.chunk(2, dim=-1)
    limit = activation.limit
    up = up.clamp(-limit, limit)
    if activation.kind == "swiglu-step":
        return functional.silu(gate).clamp(max=limit) * up
    gate = gate.clamp(max=limit)
    if activation.kind == "swiglu-oai":
        return gate * torch.sigmoid(activation.slope * gate) * (up + 1)
    return functional.silu(gate) * up
