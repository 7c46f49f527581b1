"""Inputs of moe_combine_weighted made from integers, and fixtures whose every step is exact."""

from dataclasses import replace

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe import combine_data
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

_NAN = float("nan")
_UNIT = 1 << 24


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes and cases are those of moe_combine: `random`, `exponents` and `padding`, where masked slots
    hold NaN in the row and in the weight. Weights have 24 significant bits and lie below 1.

    Raises:
        UsageError: unknown case or dtype.
    """
    inputs = combine_data.make_inputs(workload, index)
    stream = IntegerStream(workload.seed(index) ^ 0x5DEECE66D)
    ids = inputs["topk_ids"]
    drawn = stream.integers(tuple(ids.shape), 1, _UNIT - 1).astype(np.float32)
    weights = torch.from_numpy(drawn / np.float32(_UNIT))
    masked = (ids < 0) | (ids >= combine_data.EXPERTS)
    return inputs | {"topk_weights": torch.where(masked, _NAN, weights)}


SUITES = {
    name: tuple(replace(one, op="moe_combine_weighted") for one in workloads)
    for name, workloads in combine_data.SUITES.items()
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Small integers times quarters, whose sum bfloat16 holds, with NaN in masked slots.

    Finds a wrong token, slot or weight, no weight, the weight of one slot for all, a mask that is
    off by one or misses a side, a leaking row or weight, and slots in another order. A single slot
    with a weight that is not 1 is there, because engines take a short cut for it.
    """
    shapes = ((1, 1, 3), (5, 1, 16), (4, 2, 16), (7, 5, 33), (6, 16, 8))
    return (*(_case(*shape) for shape in shapes), _cancelling())


def _case(tokens: int, top_k: int, hidden: int) -> IntegerCase:
    stream = IntegerStream(tokens * 10_000 + top_k * 100 + hidden + 7)
    y = stream.integers((tokens, top_k, hidden), -3, 3)
    quarters = stream.integers((tokens, top_k), 1, 4) if top_k > 1 else np.full((tokens, 1), 6)
    # From two below the experts to two above them; a single slot counts.
    ids = stream.integers((tokens, top_k), -2, 6) if top_k > 1 else np.arange(tokens)[:, None]
    kept = (ids >= 0) & (ids < 5)
    expected = np.where(kept[:, :, None], y * quarters[:, :, None], 0).sum(axis=1) / 4
    masked = torch.from_numpy(~kept)
    rows = torch.from_numpy(y).to(torch.bfloat16)
    rows[masked] = _NAN
    weights = torch.from_numpy(quarters).float() / 4
    weights[masked] = _NAN
    return IntegerCase(
        name=f"{tokens}x{top_k}x{hidden}",
        inputs={"y": rows, "topk_ids": torch.from_numpy(ids), "topk_weights": weights},
        constants={"experts": 5},
        expected={"out": torch.from_numpy(expected).to(torch.bfloat16)},
    )


def _cancelling() -> IntegerCase:
    """2^65 twice, minus 2^66, and 3 halved: the 3 stays only where it comes last."""
    rows = [[2.0**65, -(2.0**66), 6.0], [-(2.0**65), 2.0**66, 6.0], [2.0**65, 12.0, -(2.0**66)]]
    weights = [[2.0, 1.0, 0.5], [2.0, 1.0, 0.5], [2.0, 0.5, 1.0]]
    return IntegerCase(
        name="cancelling",
        inputs={
            "y": torch.tensor(rows).unsqueeze(-1).to(torch.bfloat16),
            "topk_ids": torch.zeros(3, 3, dtype=torch.int64),
            "topk_weights": torch.tensor(weights),
        },
        constants={"experts": 1},
        expected={"out": torch.tensor([[3.0], [3.0], [0.0]]).to(torch.bfloat16)},
    )
