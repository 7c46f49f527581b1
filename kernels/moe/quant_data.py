"""Inputs of moe_quant made from integers, and fixtures whose scales are powers of two."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.spec import Constant, IntegerCase, Tensors
from bitgate.records.types import Workload

GROUP = 128
CASES = ("random", "edges")

Floats = npt.NDArray[np.float64]
Shape = tuple[int, int]


def magnitudes() -> Floats:
    """The numbers of float8_e4m3fn from 0 to 448, by the integers of their codes."""
    code = np.arange(arithmetic.E4M3_MAX_CODE + 1)
    exponent, fraction = code >> 3, code & 7
    significand = np.where(exponent == 0, fraction, fraction + 8)
    numbers: Floats = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - 10)
    return numbers


def midpoints() -> Floats:
    """What lies midway between two neighbouring numbers of float8_e4m3fn; bfloat16 holds it."""
    numbers = magnitudes()
    return (numbers[:-1] + numbers[1:]) / 2


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: group, k, rows. Case `random`: of many magnitudes, from 1/64 to 16. Case `edges`: each
    group of a row is of one kind: zeros; ties of float8 and the bfloat16 on either side of them,
    beside 448, all times one power of two; a largest element that is a power of two; subnormals;
    both sides of the floor 1e-10; the largest numbers.

    Raises:
        UsageError: unknown case or dtype.
    """
    require_workload(workload, CASES)
    stream = IntegerStream(workload.seed(index))
    rows, k, group = (workload.axis(name) for name in ("rows", "k", "group"))
    if workload.case == "random":
        values = integer_tensor(stream, (rows, k), high=255, scale_log2=4)
        return {"x": torch.ldexp(values, torch.from_numpy(stream.integers((rows, k), -6, 0)))}
    groups = -(-k // group)
    x = edge_tiles(stream, rows * groups, group).view(rows, groups * group)
    return {"x": x[:, :k].contiguous()}


def edge_tiles(stream: IntegerStream, count: int, size: int) -> torch.Tensor:
    """Bfloat16 [count, size], each row of one of the kinds of case `edges`."""
    shape = (count, size)
    kinds = stream.integers((count, 1), 0, len(_EDGES) - 1)
    drawn = np.choose(kinds, [edge(stream, shape) for edge in _EDGES])
    signs = 1 - 2 * stream.integers(shape, 0, 1)
    return torch.from_numpy(drawn * signs).to(torch.bfloat16)


def _beside(stream: IntegerStream, values: Floats, largest: float) -> Floats:
    """Values times one power of two a group, one of them replaced by the largest."""
    shape = values.shape
    at = stream.integers((shape[0], 1), 0, shape[1] - 1)
    placed = np.where(np.arange(shape[1]) == at, largest, values)
    return np.ldexp(placed, stream.integers((shape[0], 1), -20, 20))


def _zeros(stream: IntegerStream, shape: Shape) -> Floats:
    del stream
    return np.zeros(shape)


def _ties(stream: IntegerStream, shape: Shape) -> Floats:
    ties = torch.from_numpy(midpoints()).to(torch.bfloat16).view(torch.int16).numpy()
    near = ties[stream.integers(shape, 0, len(ties) - 1)] + stream.integers(shape, -1, 1)
    values = torch.from_numpy(near.astype(np.int16)).view(torch.bfloat16).double().numpy()
    return _beside(stream, values, arithmetic.E4M3_MAX)


def _powers(stream: IntegerStream, shape: Shape) -> Floats:
    return _beside(stream, stream.integers(shape, 0, 255) / 256, 1.0)


def _subnormal(stream: IntegerStream, shape: Shape) -> Floats:
    return np.ldexp(stream.integers(shape, 0, 127).astype(np.float64), -133)


def _at_the_floor(stream: IntegerStream, shape: Shape) -> Floats:
    # 1e-10 is 0.86 * 2^-33.
    return np.ldexp(stream.integers(shape, 0, 255).astype(np.float64), -41) * _share(stream, shape)


def _share(stream: IntegerStream, shape: Shape) -> Floats:
    """One or a half, by group."""
    return np.ldexp(1.0, -stream.integers((shape[0], 1), 0, 1))


def _largest(stream: IntegerStream, shape: Shape) -> Floats:
    return np.ldexp(stream.integers(shape, 0, 255).astype(np.float64), 120)


_EDGES: tuple[Callable[[IntegerStream, Shape], Floats], ...] = (
    _zeros,
    _ties,
    _powers,
    _subnormal,
    _at_the_floor,
    _largest,
)


def _workload(rows: int, k: int, case: str = "random") -> Workload:
    axes = (("group", GROUP), ("k", k), ("rows", rows))
    return Workload(op="moe_quant", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        *(_workload(1, k) for k in (32, 448, 2880)),
        _workload(16, 768),
        _workload(33, 192, "edges"),
        _workload(12, 704, "edges"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Integers up to 16 that float8 holds, beside 448, times a power of two for each scale.

    Every quotient is then exact under every rule, divided or multiplied. Finds a scale of another
    tile, a tile that is cut elsewhere, a sign, an unwritten element, a maximum without magnitude.
    """
    tiles = (("group", 128), ("group", 64), ("token", 128), ("tensor", 128), ("static", 128))
    points = ((1, 1, "amax", "divide"), (3, 200, "amax", "reciprocal"), (5, 448, "ue8m0", "divide"))
    return tuple(
        _case((scheme, rule, rounding), group, rows, k)
        for scheme, group in tiles
        for rows, k, rule, rounding in points
    )


def _case(names: tuple[str, str, str], group: int, rows: int, k: int) -> IntegerCase:
    scheme, rule, rounding = names
    stream = IntegerStream(1000 * rows + k)
    width = group if scheme == "group" else k
    whole = scheme in ("tensor", "static")
    # At least 2^-17: above every floor.
    exponents = stream.integers((1 if whole else rows, -(-k // width)), -17, 30)
    numbers = stream.integers((rows, k), -16, 16)
    # The largest magnitude of each tile, of either sign, is its last element.
    last = np.minimum(np.arange(width - 1, k + width - 1, width), k - 1)
    numbers[:, last] = 448 * (1 - 2 * stream.integers((rows, len(last)), 0, 1))
    x = np.ldexp(numbers.astype(np.float64), np.repeat(exponents, width, axis=1)[:, :k])
    scales = np.ldexp(1.0, exponents).astype(np.float32)
    constants: dict[str, Constant] = {
        "scheme": scheme,
        "group": group,
        "scale_rule": rule,
        "rounding": rounding,
    }
    if scheme == "static":
        constants["scale"] = float(scales[0, 0])
    return IntegerCase(
        name=f"{scheme}-{group}-{rule}-{rounding}-{rows}x{k}",
        inputs={"x": torch.from_numpy(x).to(torch.bfloat16)},
        constants=constants,
        expected={
            "codes": torch.from_numpy(numbers.astype(np.float32)).to(torch.float8_e4m3fn),
            "scales": torch.from_numpy(scales),
        },
    )
