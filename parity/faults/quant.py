"""Faults of the quantiser: scales that depend on the neighbours, and other roundings.

Target `moe_quant` under a contract that promises a token's bits whatever the others are: its scheme
is `token` or `group`.
"""

from functools import cache

import torch

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Fault, Fired, Memory, Run
from bitgate.parity.faults.checks import Rows, Sample

_OP = "moe_quant"
_ROWS = Rows(inputs=("x",), outputs=("codes", "scales"))


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""
    target = checks.operator(
        MOE_QUANT,
        MOE_FP8_1.name,
        _some,
        _some,
        checks.alone(_some, _ROWS),
        checks.strided(_some),
    )
    return Area(name="quant", targets=(target,), faults=FAULTS)


@cache
def _some() -> tuple[Sample, ...]:
    """Rows of very different sizes: one has an outlier beside the others."""
    stream = IntegerStream(0xF8)
    x = integer_tensor(stream, (64, 320), high=255, scale_log2=9)
    x = torch.ldexp(x, torch.from_numpy(stream.integers((64, 320), -4, 0)))
    x[5, 7] = 300.0
    plain: Constants = {"group": 128, "rounding": "divide", "scale_rule": "amax"}
    rules: tuple[Constants, ...] = (
        {**plain, "scheme": "token"},
        {**plain, "scheme": "group"},
        {**plain, "scheme": "group", "scale_rule": "ue8m0"},
    )
    return tuple(
        Sample(name=f"{one['scheme']}, {one['scale_rule']}", given={"x": x}, constants=one)
        for one in rules
    )


def _whole_tensor(correct: Run, fired: Fired) -> Run:
    """The scale of a token is that of all tokens of the call."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        if constants.get("scheme") != "token":
            return correct(given, constants, memory)
        largest = given["x"].abs().amax(1)
        fired(bool((largest != largest[0]).any()))
        made = correct(given, {**constants, "scheme": "tensor"}, Memory())
        scales = made["scales"].expand(len(given["x"]), 1)
        return {
            "codes": memory.take("codes", tuple(made["codes"].shape), made["codes"].dtype).copy_(
                made["codes"]
            ),
            "scales": memory.take("scales", tuple(scales.shape), scales.dtype).copy_(scales),
        }

    return run


def _other(correct: Run, fired: Fired, *, name: str, was: str, becomes: str) -> Run:
    """One named rule in the place of another."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        if fired(constants.get(name) == was):
            constants = {**constants, name: becomes}
        return correct(given, constants, memory)

    return run


def _all(run: Run) -> list[Tensors]:
    return [checks.fresh(run, sample) for sample in _some()]


FAULTS = (
    Fault(
        id="B15",
        title="a mode called batch invariant quantises by the largest element of all tokens",
        trigger="one request alone, and with an outlier beside it",
        sources=("vllm issue 57016",),
        target=_OP,
        plant=_whole_tensor,
        witness=_all,
        caught_by=("fixtures", "bits", "alone"),
    ),
    Fault(
        id="C6",
        title="codes from x times the reciprocal of the scale, where x is divided by it",
        trigger="a quotient that rounds otherwise: one in two thousand",
        sources=("vllm 0.33 beside 0.10.2",),
        target=_OP,
        plant=lambda correct, fired: _other(
            correct, fired, name="rounding", was="divide", becomes="reciprocal"
        ),
        witness=_all,
        caught_by=("bits",),
    ),
    Fault(
        id="C7",
        title="continuous scales where the checkpoint wants powers of two",
        trigger="a scale rule of ue8m0",
        sources=("sglang PR 33005",),
        target=_OP,
        plant=lambda correct, fired: _other(
            correct, fired, name="scale_rule", was="ue8m0", becomes="amax"
        ),
        witness=_all,
        caught_by=("bits",),
    ),
)
