"""Inputs of moe_act_quant, which are moe_act's, and fixtures whose scales are powers of two."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe import act_data
from bitgate.kernels.moe.quant_data import GROUP
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

LIMIT = 448


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`: those of `act_data.make_inputs`, whose axes are among these.

    Axes: group, intermediate, rows.

    Raises:
        UsageError: unknown case or dtype.
    """
    return act_data.make_inputs(workload, index)


def _workload(rows: int, intermediate: int, case: str = "random") -> Workload:
    axes = (("group", GROUP), ("intermediate", intermediate), ("rows", rows))
    return Workload(op="moe_act_quant", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        *(_workload(1, width) for width in (32, 511, 768)),
        _workload(16, 192),
        _workload(9, 448, "edges"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Gates where silu is the identity or zero, and products that are exact in float8.

    A tile's gates are 32, 64, 128 or 256, or 0, or -128, whose silu is -0; its ups are integers up
    to 16, and one is beyond the limit 448, so that the scale is the gate. Finds what the fixtures
    of moe_act and moe_quant find, a missing clamp of up, and a scale taken before the product.
    """
    return tuple(
        _case(scheme, group, rule, rounding, product)
        for scheme, group, rule, rounding, product in (
            ("group", 128, "amax", "divide", 1),
            ("group", 64, "ue8m0", "reciprocal", 0),
            ("token", 128, "amax", "reciprocal", 1),
            ("token", 64, "ue8m0", "divide", 0),
        )
    )


def _case(scheme: str, group: int, rule: str, rounding: str, product: int) -> IntegerCase:
    rows, width = 5, 200
    stream = IntegerStream(group + product)
    tile = group if scheme == "group" else width
    scale = 32 << stream.integers((rows, -(-width // tile)), 0, 3)
    wide = scale.repeat(tile, 1)[:, :width]
    gate = wide * stream.integers((rows, width), 0, 1)
    gate = np.where(stream.integers((rows, width), 0, 3) == 0, -128, gate)
    up = stream.integers((rows, width), -16, 16)
    last = np.minimum(np.arange(tile - 1, width + tile - 1, tile), width - 1)
    gate[:, last] = scale
    up[:, last] = 512 * (1 - 2 * stream.integers((rows, len(last)), 0, 1))
    clamped = np.clip(up, -LIMIT, LIMIT)
    numbers = np.where(gate > 0, clamped, 0).astype(np.float32)
    codes = np.copysign(numbers, np.where((gate < 0) != (clamped < 0), -1, 1)).astype(np.float32)
    return IntegerCase(
        name=f"{scheme}-{group}-{rule}-{rounding}-{'bf16' if product else 'fp32'}",
        inputs={"gate_up": torch.from_numpy(np.concatenate([gate, up], 1)).to(torch.bfloat16)},
        constants={
            "swiglu_limit": float(LIMIT),
            "scheme": scheme,
            "group": group,
            "scale_rule": rule,
            "rounding": rounding,
            "round_product": product,
        },
        expected={
            "codes": torch.from_numpy(codes).to(torch.float8_e4m3fn),
            "scales": torch.from_numpy(scale.astype(np.float32)),
        },
    )
