"""Inputs of moe_act made from integers, and fixtures that are exact."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

CASES = ("random", "edges")

# Zeros, both ends of silu, its minimum near -1.28, the limits 7 and 10, and their neighbours.
_TINY, _HUGE = 2.0**-133, 3.3e38
_EDGES = np.array(
    [
        *(0.0, -0.0, _TINY, -_TINY, 1.0, -1.28125, 17.0, -17.0, 87.0, -87.0, 87.5, -87.5),
        *(7.0, 7.03125, -7.0, 9.9375, 10.0, 10.0625, -10.0, -10.0625, 1e30, -1e30, _HUGE, -_HUGE),
    ]
)


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: intermediate, rows. Case `random`: of many magnitudes, from 1/64 to 16, so that a limit of
    10 clamps some. Case `edges`: every gate that is special beside ups that are, in an order of the
    sample.

    Raises:
        UsageError: unknown case or dtype.
    """
    require_workload(workload, CASES)
    stream = IntegerStream(workload.seed(index))
    shape = (workload.axis("rows"), 2 * workload.axis("intermediate"))
    if workload.case == "edges":
        chosen = stream.integers(shape, 0, len(_EDGES) - 1)
        return {"gate_up": torch.from_numpy(_EDGES[chosen]).to(torch.bfloat16)}
    values = integer_tensor(stream, shape, high=255, scale_log2=4)
    return {"gate_up": torch.ldexp(values, torch.from_numpy(stream.integers(shape, -6, 0)))}


def _workload(rows: int, intermediate: int, case: str = "random") -> Workload:
    axes = (("intermediate", intermediate), ("rows", rows))
    return Workload(op="moe_act", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        *(_workload(1, width) for width in (32, 511, 768)),
        _workload(16, 64),
        _workload(33, 40),
        _workload(9, 448, "edges"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Gates where the sigmoid is exactly 0 or 1: 0, at least 32, at most -128; for every kind.

    exp(-32) vanishes beside 1 in float32, and exp(128) is infinite. Finds swapped halves, halves
    where pairs alternate, a missing clamp of either half, a clamp on the wrong side of silu (of the
    limit 2, which silu does not keep), a missing up + 1, an unwritten channel and a wrong row.
    """
    return (
        *(_case("silu", 64, 1, rows, width) for rows, width in ((1, 1), (3, 7), (5, 768))),
        _case("silu", 64, 0, 3, 257),
        *(_case("swiglu-oai", 64, 0, rows, width) for rows, width in ((1, 1), (3, 7), (2, 511))),
        *(_case("swiglu-step", 2, between, 3, 257) for between in (0, 1)),
    )


def _case(kind: str, limit: int, round_between: int, rows: int, width: int) -> IntegerCase:
    stream = IntegerStream(1000 * rows + width)
    gate = 32 * stream.integers((rows, width), -4, 4)
    # Below -limit and above it, and never the gate's own.
    up = stream.integers((rows, width), -limit - 16, limit + 16)
    gate = np.where((gate < 0) & (gate > -128), 0, gate)
    clamped = np.clip(up, -limit, limit) + (kind == "swiglu-oai")
    expected = np.clip(gate, 0, limit) * clamped
    # A gate of at most -128 gives -0, and so does 0 times a negative up.
    signs = np.where((gate < 0) != (clamped < 0), -1.0, 1.0)
    values = np.copysign(expected.astype(np.float64), np.where(expected == 0, signs, expected))
    alternating = kind == "swiglu-oai"
    gate_up = np.stack([gate, up], -1 if alternating else 1).reshape(rows, 2 * width)
    return IntegerCase(
        name=f"{kind}-{rows}x{width}" + ("-rounded" if round_between else ""),
        inputs={"gate_up": torch.from_numpy(gate_up).to(torch.bfloat16)},
        constants={
            "swiglu_limit": float(limit),
            "kind": kind,
            "round_between": round_between,
            "alpha": 1.702,
        },
        expected={"out": torch.from_numpy(values).to(torch.bfloat16)},
    )
