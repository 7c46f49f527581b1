"""How far moe-torch/1 may be from the exact value: float64, with a bound that is proved.

Nothing is rounded in the float64 path. The bound follows the roundings of the contract one by one:
float32 accumulation of n terms loses at most n * 2**-24 of their magnitudes in any order, every
bfloat16 rounding at most 2**-8 of the value, and both are carried through the later steps.
"""

import torch
from torch import Tensor

_BF16 = 2.0**-8
_FP32 = 2.0**-24
# silu's steepest slope is 1.0998; torch evaluates it in float32 to a few units in the last place.
_SILU_SLOPE = 1.1
_SILU_EVALUATION = 8 * _FP32
# What is flushed or lost below the smallest normal float32, generously.
_TINY = 1e-30


def experts_float64(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
) -> tuple[Tensor, Tensor]:
    """The exact experts and the largest error that the contract can make.

    Args:
        x: as for `experts_loop`, and so are the others.
        topk_ids: see there.
        topk_weights: see there.
        w_gate_up: see there.
        w_down: see there.
        swiglu_limit: see there.

    Returns:
        (value, bound), both [tokens, hidden] float64: |out - value| <= bound for every
        implementation of moe-torch/1, on any host and in any order inside a matmul.
    """
    experts = w_gate_up.shape[0]
    value = torch.zeros(x.shape, dtype=torch.float64)
    bound = torch.zeros_like(value)
    inputs = x.double()
    for expert in range(experts):
        # A slot at a time: a token that names an expert twice then adds it twice.
        for slot in range(topk_ids.shape[1]):
            tokens = torch.where(topk_ids[:, slot] == expert)[0]
            if not len(tokens):
                continue
            term, error = _expert(
                inputs[tokens], w_gate_up[expert].double(), w_down[expert].double(), swiglu_limit
            )
            weight = topk_weights[tokens, slot, None].double()
            term, error = term * weight, error * weight.abs()
            error = error + _BF16 * (term.abs() + error)
            value[tokens] += term
            bound[tokens] += error + _BF16 * (value[tokens].abs() + bound[tokens] + error)
    return value, bound + _TINY


def _expert(rows: Tensor, w_gate_up: Tensor, w_down: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    both, both_error = _matmul(rows, torch.zeros_like(rows), w_gate_up)
    gate, up = both.chunk(2, dim=-1)
    gate_error, up_error = both_error.chunk(2, dim=-1)
    # A clamp never moves two numbers apart.
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    silu = gate * torch.sigmoid(gate)
    silu_error = _SILU_SLOPE * gate_error
    silu_error = silu_error + (_BF16 + _SILU_EVALUATION) * (silu.abs() + silu_error)
    product = silu * up
    error = silu_error * up.abs() + up_error * silu.abs() + silu_error * up_error
    error = error + _BF16 * (product.abs() + error)
    return _matmul(product, error, w_down)


def _matmul(rows: Tensor, rows_error: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The product rows @ weight.T with the error of its bfloat16 result, given that of the rows."""
    value = rows @ weight.T
    carried = rows_error @ weight.abs().T
    magnitude = rows.abs() @ weight.abs().T + carried
    error = carried + rows.shape[1] * _FP32 * magnitude
    return value, error + _BF16 * (value.abs() + error)
