"""Inputs of moe_experts_fp8: those of moe_experts, quantised; its fixtures, exact in float8."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe import experts_data
from bitgate.kernels.moe.experts_fixtures import integer_cases as bf16_cases
from bitgate.kernels.moe.gemm_fp8_data import quantised_weights, uneven
from bitgate.kernels.moe.quant_reference import dequantised
from bitgate.kernels.moe.quant_weight_reference import moe_quant_weight
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

BLOCK: Final = 128


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`: those of moe_experts, with a factor for each scale's elements.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts.
    """
    inputs = experts_data.make_inputs(workload, index)
    block_n, block_k = workload.axis("block_n"), workload.axis("block_k")
    stream = IntegerStream(workload.seed(index))
    x = uneven(stream, inputs["x"], 1, block_k)
    weights: Tensors = {}
    for name in ("gate_up", "down"):
        w = uneven(stream, inputs[f"w_{name}"], block_n, block_k)
        codes, scales = quantised_weights(w, block_n, block_k)
        weights |= {f"w_{name}": codes, f"{name}_scales": scales}
    choices = {name: inputs[name] for name in ("topk_ids", "topk_weights")}
    return {"x": x, **choices, **weights}


def _workload(case: str = "random", **axes: int) -> Workload:
    shape = {"experts": 4, "top_k": 2, "block_n": BLOCK, "block_k": BLOCK} | axes
    return Workload(
        op="moe_experts_fp8", axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case
    )


SUITE = (
    _workload(tokens=1, hidden=128, intermediate=64),
    _workload(tokens=9, hidden=192, intermediate=72),
    _workload("padding", tokens=17, hidden=160, intermediate=192),
)


def integer_cases() -> tuple[IntegerCase, ...]:
    """The fixtures of moe_experts under scales of powers of two, unequal among neighbours.

    There every row and activation has few enough bits to be a float8 number, scaled by the least
    power of two that its largest element allows, so quantising changes nothing. The result is the
    one that moe_experts' fixtures compute with integers alone.
    """
    schemes = {"small": "group", "wide": "group", "clamped": "token", "padding": "tensor"}
    return tuple(_case(one, schemes[one.name]) for one in bf16_cases() if one.name in schemes)


def _case(case: IntegerCase, scheme: str) -> IntegerCase:
    given = case.inputs
    constants = dict(case.constants) | {
        "block_k": BLOCK,
        "block_n": BLOCK,
        "rounding": "divide",
        "scale_rule": "ue8m0",
        "scheme": scheme,
    }
    inputs = {name: given[name] for name in ("x", "topk_ids", "topk_weights")}
    for name in ("gate_up", "down"):
        codes, scales = _exact_codes(given[f"w_{name}"], scheme)
        inputs |= {f"w_{name}": codes, f"{name}_scales": scales}
    return IntegerCase(
        name=f"{case.name}-{scheme}",
        inputs=inputs,
        constants=constants,
        expected=case.expected,
    )


def _exact_codes(w: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Codes and power-of-two scales that are worth exactly w."""
    experts, n, k = w.shape
    rows, columns = (BLOCK, BLOCK) if scheme == "group" else (1, k)
    if scheme == "group":
        codes, scales = moe_quant_weight(
            w=w, block_n=BLOCK, block_k=BLOCK, scale_rule="ue8m0", rounding="divide"
        )
    else:
        codes, scales = w.to(torch.float8_e4m3fn), torch.ones(experts, n, 1)
    # Every other scale is twice as large, and its codes half.
    factors = torch.from_numpy(sum(np.indices(scales.shape)) % 2 + 1).float()
    wide = factors.repeat_interleave(rows, 1).repeat_interleave(columns, 2)[:, :n, :k]
    codes, scales = (codes.float() / wide).to(torch.float8_e4m3fn), scales * factors
    if not torch.equal(dequantised(codes, scales, rows, columns), w.double()):
        raise ValueError("fixture: a weight is not exact in float8; make it smaller")
    return codes, scales
