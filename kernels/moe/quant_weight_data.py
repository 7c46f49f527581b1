"""Inputs of moe_quant_weight made from integers, and fixtures whose scales are powers of two."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.moe.quant_data import CASES, edge_tiles
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

BLOCK = 128


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: block_k, block_n, experts, k, n. Case `random`: from -255/256 to 255/256, those of half
    the rows divided by 1024. Case `edges`: each row of a block is of one of the kinds of moe_quant.

    Raises:
        UsageError: unknown case or dtype.
    """
    require_workload(workload, CASES)
    stream = IntegerStream(workload.seed(index))
    experts, n, k = (workload.axis(name) for name in ("experts", "n", "k"))
    if workload.case == "edges":
        return {"w": edge_tiles(stream, experts * n, k).view(experts, n, k)}
    w = integer_tensor(stream, (experts, n, k), high=255, scale_log2=8)
    return {"w": torch.ldexp(w, torch.from_numpy(-10 * stream.integers((experts, n, 1), 0, 1)))}


def _workload(experts: int, n: int, k: int, case: str = "random") -> Workload:
    axes = (("block_k", BLOCK), ("block_n", BLOCK), ("experts", experts), ("k", k), ("n", n))
    return Workload(op="moe_quant_weight", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        _workload(1, 1, 1),
        _workload(2, 192, 64),
        _workload(1, 32, 2880),
        _workload(3, 40, 448),
        _workload(2, 130, 257, "edges"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Integers up to 16 beside 448, times a power of two for each block; exact under every rule.

    Finds a scale of another block or expert, blocks cut elsewhere, an unwritten element.
    """
    return tuple(
        _case(block_n, block_k, rule, rounding)
        for block_n, block_k, rule, rounding in (
            (128, 128, "amax", "reciprocal"),
            (128, 64, "amax", "divide"),
            (64, 128, "ue8m0", "reciprocal"),
        )
    )


def _case(block_n: int, block_k: int, rule: str, rounding: str) -> IntegerCase:
    experts, n, k = 3, 192, 200
    stream = IntegerStream(block_n + 1000 * block_k)
    # From 2^-13 on amax is above its floor of 1e-4.
    exponents = stream.integers((experts, -(-n // block_n), -(-k // block_k)), -13, 20)
    numbers = stream.integers((experts, n, k), -16, 16)
    rows = np.minimum(np.arange(block_n - 1, n + block_n - 1, block_n), n - 1)
    columns = np.minimum(np.arange(block_k - 1, k + block_k - 1, block_k), k - 1)
    largest = 448 * (1 - 2 * stream.integers((experts, len(rows), len(columns)), 0, 1))
    numbers[:, rows[:, None], columns] = largest
    spread = exponents.repeat(block_n, 1).repeat(block_k, 2)[:, :n, :k]
    w = np.ldexp(numbers.astype(np.float64), spread)
    return IntegerCase(
        name=f"{block_n}x{block_k}-{rule}-{rounding}",
        inputs={"w": torch.from_numpy(w).to(torch.bfloat16)},
        constants={
            "block_n": block_n,
            "block_k": block_k,
            "scale_rule": rule,
            "rounding": rounding,
        },
        expected={
            "codes": torch.from_numpy(numbers.astype(np.float32)).to(torch.float8_e4m3fn),
            "scales": torch.from_numpy(np.ldexp(1.0, exponents).astype(np.float32)),
        },
    )
