"""Inputs of moe_combine made from integers, and fixtures whose every step is exact."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

EXPERTS = 12
CASES = ("random", "exponents", "padding")

_NAN_ROW = float("nan")


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: hidden, tokens, top_k; ids are of EXPERTS experts. Case `random`: terms within five
    octaves. Case `exponents`: terms that cancel over sixty, so that the order of additions shows;
    with terms of about one size float32 hides it. Case `padding`: a quarter of the slots are
    masked, by -1 or EXPERTS, and hold NaN; the first token's are all masked.

    Raises:
        UsageError: unknown case or dtype.
    """
    require_workload(workload, CASES)
    stream = IntegerStream(workload.seed(index))
    tokens, top_k, hidden = (workload.axis(name) for name in ("tokens", "top_k", "hidden"))
    shape = (tokens, top_k, hidden)
    y = integer_tensor(stream, shape, high=255, scale_log2=7)
    ids = stream.integers((tokens, top_k), 0, EXPERTS - 1)
    octaves = (-30, 30) if workload.case == "exponents" else (-4, 0)
    y = torch.ldexp(y, torch.from_numpy(stream.integers(shape, *octaves)))
    if workload.case == "exponents":
        # The negative of an earlier term, so that what was lost beside it matters.
        y[:, 1::2] = torch.where(
            torch.from_numpy(stream.integers(y[:, 1::2].shape, 0, 1)) == 1,
            -y[:, 0 : top_k - top_k % 2 : 2],
            y[:, 1::2],
        )
    if workload.case == "padding":
        dice = stream.integers(ids.shape, 0, 7)
        dice[:1] = 0
        ids = np.where(dice == 0, -1, np.where(dice == 1, EXPERTS, ids))
        y[torch.from_numpy(dice < 2)] = _NAN_ROW
    return {"y": y, "topk_ids": torch.from_numpy(ids)}


def _workload(tokens: int, top_k: int, hidden: int, case: str = "random") -> Workload:
    axes = (("hidden", hidden), ("tokens", tokens), ("top_k", top_k))
    return Workload(op="moe_combine", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        _workload(1, 1, 64),
        _workload(5, 2, 33),
        _workload(33, 4, 64),
        _workload(17, 8, 48),
        _workload(9, 3, 40, "padding"),
        _workload(9, 6, 96, "exponents"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Small integers, whose sum bfloat16 holds, with NaN in masked rows; and sums that cancel.

    Finds a wrong token or slot, a mask that is off by one or misses a side, a leaking row and slots
    in another order.
    """
    shapes = ((1, 1, 3), (4, 2, 16), (7, 5, 33), (6, 16, 8))
    steps = (_case(5, 3, 33, "bf16-step"), _case(4, 4, 16, "bf16-step"))
    return (*(_case(*shape) for shape in shapes), *steps, _cancelling(), _stepping())


def _case(tokens: int, top_k: int, hidden: int, accumulate: str = "fp32") -> IntegerCase:
    stream = IntegerStream(tokens * 10_000 + top_k * 100 + hidden)
    y = stream.integers((tokens, top_k, hidden), -15, 15)
    # From two below the experts to two above them.
    ids = stream.integers((tokens, top_k), -2, 6)
    kept = (ids >= 0) & (ids < 5)
    expected = np.where(kept[:, :, None], y, 0).sum(axis=1)
    values = torch.from_numpy(y).to(torch.bfloat16)
    values[torch.from_numpy(~kept)] = _NAN_ROW
    return IntegerCase(
        name=f"{tokens}x{top_k}x{hidden}-{accumulate}",
        inputs={"y": values, "topk_ids": torch.from_numpy(ids)},
        constants={"experts": 5, "accumulate": accumulate},
        expected={"out": torch.from_numpy(expected).to(torch.bfloat16)},
    )


def _cancelling() -> IntegerCase:
    """2^66, -2^66 and 3: the 3 is lost beside 2^66, and stays where it comes last."""
    big = 2.0**66
    rows = [[big, -big, 3.0], [-big, big, 3.0], [3.0, big, -big], [big, 3.0, -big], [3.0, 3.0, 3.0]]
    return IntegerCase(
        name="cancelling",
        inputs={
            "y": torch.tensor(rows).unsqueeze(-1).to(torch.bfloat16),
            "topk_ids": torch.zeros(5, 3, dtype=torch.int64),
        },
        constants={"experts": 1, "accumulate": "fp32"},
        expected={"out": torch.tensor([[3.0], [3.0], [0.0], [0.0], [9.0]]).to(torch.bfloat16)},
    )


def _stepping() -> IntegerCase:
    """256, 1 and 1 make 258, but 256 where every sum is rounded: 257 lies half way, 256 is even."""
    rows = [[256.0, 1.0, 1.0, 0.0], [256.0, 1.0, 1.0, -1.0], [1.0, 1.0, 256.0, 0.0]]
    return IntegerCase(
        name="stepping",
        inputs={
            "y": torch.tensor(rows).unsqueeze(-1).to(torch.bfloat16),
            "topk_ids": torch.zeros(3, 4, dtype=torch.int64),
        },
        constants={"experts": 1, "accumulate": "bf16-step"},
        expected={"out": torch.tensor([[256.0], [255.0], [258.0]]).to(torch.bfloat16)},
    )
