"""Inputs of moe_dequant_mxfp4 made from integers, and fixtures whose results are integers."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, require_workload
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

CASES = ("random", "edges")

# Both ends of the scales: subnormal results, infinite ones and NaN.
_EDGES = np.array([0, 1, 2, 3, 126, 127, 251, 252, 253, 254, 255])
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12])


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: groups, rows. Case `random`: every code, and the scales of weights, 2^-16 to 2^0. Case
    `edges`: every code with the scales at which the result is subnormal, infinite or NaN.

    Raises:
        UsageError: unknown case or dtype.
    """
    require_workload(workload, CASES)
    stream = IntegerStream(workload.seed(index))
    rows, groups = workload.axis("rows"), workload.axis("groups")
    codes = stream.integers((rows, 16 * groups), 0, 255)
    if workload.case == "edges":
        scales = _EDGES[stream.integers((rows, groups), 0, len(_EDGES) - 1)]
    else:
        scales = stream.integers((rows, groups), 111, 127)
    return {"codes": _bytes(codes), "scales": _bytes(scales)}


def _bytes(values: np.typing.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.uint8))


def _workload(rows: int, groups: int, case: str = "random") -> Workload:
    axes = (("groups", groups), ("rows", rows))
    return Workload(op="moe_dequant_mxfp4", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        _workload(1, 1),
        _workload(5, 3),
        _workload(64, 8),
        _workload(17, 24),
        _workload(33, 7, "edges"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Scales from 1 / 2 up, with which every number is a small integer.

    Finds swapped nibbles, a wrong value of a code, a lost sign, a wrong scale or group and an
    unwritten number.
    """
    return tuple(_case(*shape) for shape in ((1, 1), (3, 5), (7, 24)))


def _case(rows: int, groups: int) -> IntegerCase:
    stream = IntegerStream(1000 * rows + groups)
    codes = stream.integers((rows, 32 * groups), 0, 15)
    scales = stream.integers((rows, groups), 128, 131)
    sizes = _DOUBLED[codes % 8] << np.repeat(scales - 128, 32, axis=1)
    values = np.where(codes < 8, 1.0, -1.0) * sizes
    packed = codes[:, 0::2] + 16 * codes[:, 1::2]
    return IntegerCase(
        name=f"{rows}x{groups}",
        inputs={"codes": _bytes(packed), "scales": _bytes(scales)},
        constants={},
        expected={"out": torch.from_numpy(values).to(torch.bfloat16)},
    )
