"""How far the experts over float8 weights may be off: the value in float64, and a proved bound.

The roundings are followed one by one, as in `experts_oracle`. What quantising the activation can
change is half a unit of the code for each element, under the largest scale that its tile can get:
by far the largest part of the bound. So the bound finds what is wrong, a scale or an expert, and
says little about an order; the bits and the accumulators of each matmul are for that.
"""

import torch
from torch import Tensor

from bitgate.kernels.arithmetic import E4M3_MAX
from bitgate.kernels.moe.experts_oracle import FP32, TINY, gated, rounded, summation
from bitgate.kernels.moe.quant_reference import dequantised, moe_quant, tiled
from bitgate.kernels.moe.quant_rules import SCHEMES, UE8M0_FLOOR
from bitgate.kernels.moe.staged import Scaling

# Half a unit of a code's 3 stored bits, at most a 17th; half the step below the normal numbers;
# and what the roundings of scale and quotient in float32 can add.
_CODE, _SMALLEST, _QUOTIENT = 1 / 17, 2.0**-10, 1 + 2.0**-20


def experts_fp8_float64(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    gate_up_scales: Tensor,
    w_down: Tensor,
    down_scales: Tensor,
    swiglu_limit: float,
    scaling: Scaling,
    unit: float = FP32,
) -> tuple[Tensor, Tensor]:
    """The exact experts and the largest error that `moe-fp8/1` can make.

    The value is that of x as it is quantised, whose bits are the same everywhere, of exact sums and
    of activations that are not quantised.

    Args:
        x: as for moe_experts_fp8, and so are the others.
        topk_ids: see there.
        topk_weights: see there.
        w_gate_up: see there.
        gate_up_scales: see there.
        w_down: see there.
        down_scales: see there.
        swiglu_limit: see there.
        scaling: how rows are quantised and what has a scale.
        unit: what one addition in a matrix instruction can lose of the magnitudes that it adds.

    Returns:
        (value, bound), both [tokens, hidden] float64: |out - value| <= bound for every
        implementation of the contract, in any order inside a matmul.
    """
    codes, scales = moe_quant(x=x, **scaling.quantiser)  # type: ignore[arg-type]
    rows = exact_rows(codes, scales, scaling)
    first = exact_weights(w_gate_up, gate_up_scales, scaling)
    second = exact_weights(w_down, down_scales, scaling)
    experts, (tokens, top_k) = len(second), topk_ids.shape
    # Of every pair, token by token; those of no expert stay 0.
    hidden, error = (torch.zeros(tokens * top_k, second.shape[2]).double() for _ in range(2))
    chosen = topk_ids.reshape(-1)
    for expert in range(experts):
        mine = torch.where(chosen == expert)[0]
        row = rows[mine // top_k]
        both, off = _matmul(row, torch.zeros_like(row), first[expert], unit)
        hidden[mine], error[mine] = gated(both, rounded(both, off), swiglu_limit)
    error = _quantised(hidden, error, scaling)
    value, bound, magnitude = (torch.zeros(tokens, second.shape[1]).double() for _ in range(3))
    for expert in range(experts):
        mine = torch.where(chosen == expert)[0]
        term, off = _matmul(hidden[mine], error[mine], second[expert], unit)
        weight = topk_weights.reshape(-1)[mine, None].double()
        term, off = term * weight, off * weight.abs()
        off = rounded(term, off)
        for total, part in ((value, term), (bound, off), (magnitude, term.abs() + off)):
            total.index_add_(0, mine // top_k, part)
    return value, rounded(value, bound + summation(top_k) * magnitude) + TINY


def exact_rows(codes: Tensor, scales: Tensor, scaling: Scaling) -> Tensor:
    """What quantised rows [rows, k] are worth, float64."""
    k = codes.shape[1]
    wide = scales.expand(len(codes), -1)
    return dequantised(codes, wide, 1, scaling.block_k if scaling.scheme == "group" else k)


def exact_weights(codes: Tensor, scales: Tensor, scaling: Scaling) -> Tensor:
    """What weights [experts, n, k] are worth, float64."""
    if scaling.scheme == "group":
        return dequantised(codes, scales, scaling.block_n, scaling.block_k)
    return dequantised(codes, scales, -(-codes.shape[1] // scales.shape[1]), codes.shape[2])


def _matmul(rows: Tensor, rows_error: Tensor, weight: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Rows @ weight.T and the error of the scaled accumulator, whatever its promotion interval."""
    value = rows @ weight.T
    carried = rows_error @ weight.abs().T
    magnitude = rows.abs() @ weight.abs().T + carried
    # A step has 16 terms at least, and adds once more in float32 after its two scales.
    steps = -(-rows.shape[1] // 16)
    lost = summation(17 * steps, unit) + summation(steps + 3)
    return value, carried + lost * magnitude + TINY


def _quantised(hidden: Tensor, error: Tensor, scaling: Scaling) -> Tensor:
    """The error after the activation was quantised, as far as it may be off already."""
    largest = hidden.abs() + error
    floors = SCHEMES[scaling.scheme]
    tiles = tiled(largest, scaling.scheme, scaling.block_k)
    scale = tiles.amax(-1).clamp(min=floors.amax) / E4M3_MAX
    scale = scale.clamp(min=floors.scale)
    if scaling.scale_rule == "ue8m0":
        scale = 2 * scale.clamp(min=UE8M0_FLOOR)
    step = scale[..., None].expand(tiles.shape).reshape(largest.shape[0], -1)
    step = step[:, : largest.shape[1]]
    return (
        error
        + _QUOTIENT * torch.maximum(_CODE * largest, _SMALLEST * step)
        + (_QUOTIENT - 1) * largest
    )
