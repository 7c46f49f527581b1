"""Inputs of moe_route_hash made from integers, and fixtures whose weights are exact."""

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, require_workload
from bitgate.kernels.moe.experts_data import route
from bitgate.kernels.moe.route_data import logits_of, numbers
from bitgate.kernels.moe.route_rules import SELECTED
from bitgate.kernels.spec import Constants, IntegerCase, Tensors
from bitgate.records.types import Workload

TOP_K = 6
CASES = ("random", "vanishing", "padding", "twice")


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: experts, tokens, top_k, vocab. The logits are those of moe_route in the cases of the same
    name; the table names distinct experts for each of `vocab` tokens, in case `twice` any.

    Raises:
        UsageError: unknown case or dtype, or top_k is not 1 to the number of experts.
    """
    case = workload.case
    require_workload(workload, CASES, "float32")
    names = ("tokens", "experts", "top_k", "vocab")
    tokens, experts, top_k, vocab = (workload.axis(name) for name in names)
    stream = IntegerStream(workload.seed(index))
    logits = logits_of(stream, numbers(stream, (tokens, experts), 21), case)
    if case == "twice":
        table = stream.integers((vocab, top_k), 0, experts - 1)
    else:
        table = route(stream, vocab, experts, top_k)
    return {
        "logits": logits,
        "table": torch.from_numpy(table),
        "token_ids": torch.from_numpy(stream.integers((tokens,), 0, vocab - 1)),
    }


def _workload(tokens: int, experts: int, vocab: int, case: str = "random") -> Workload:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", TOP_K), ("vocab", vocab))
    return Workload(op="moe_route_hash", axes=axes, dtype="float32", case=case)


SUITES = {
    "default": (
        _workload(1, 256, 1000),
        _workload(33, 384, 500),
        _workload(64, 8, 64),
        _workload(17, 64, 97, "vanishing"),
        _workload(24, 16, 97, "padding"),
        _workload(31, 60, 97, "twice"),
    ),
}


def integer_cases() -> tuple[IntegerCase, ...]:
    """Roots of squares, zeros and ones of sigmoid, and an expert that a row names twice.

    They find ids by score, a table read by position, a bias, and a missing scale or sum.
    """
    return (
        _case(
            "roots",
            [[4096, 64, 64, -128], [-128, 256, 1024, 256], [-128] * 4],
            [2, 0, 1],
            [(1, 1), (0, 3), (2, 1)],
            # Scores 64, 8, 8 and 0; then 0, 16, 32 and 16.
            [[(2, 0.75), (1, 0.75)], [(1, 0.75), (1, 0.75)], [(0, 0.0), (3, 0.0)]],
            {"renormalize": 1, "scale": 1.5, "score": "sqrt-softplus"},
        ),
        _case(
            "sigmoid",
            [[0, 128, -128, 0], [128, 0, 0, 0]],
            [4, 1],
            [(3, 3, 3), (0, 2, 1), (1, 1, 1), (2, 0, 3), (1, 0, 2)],
            [[(1, 2.0), (0, 1.0), (2, 0.0)], [(0, 2.0), (2, 1.0), (1, 1.0)]],
            {"renormalize": 0, "scale": 2.0, "score": "sigmoid"},
        ),
        _case(
            "selected",
            [[1000, 7, 1000, 7], [5, 5, -1000, 5]],
            [0, 1],
            [(3, 1), (2, 0)],
            [[(3, 0.5), (1, 0.5)], [(2, 0.0), (0, 1.0)]],
            {"renormalize": 1, "scale": 1.0, "score": SELECTED},
        ),
    )


def _case(
    name: str,
    logits: list[list[int]],
    token_ids: list[int],
    table: list[tuple[int, ...]],
    chosen: list[list[tuple[int, float]]],
    constants: Constants,
) -> IntegerCase:
    """`chosen` are (id, weight) by token and slot."""
    pairs = np.array(chosen)
    return IntegerCase(
        name=name,
        inputs={
            "logits": torch.tensor(logits, dtype=torch.float32),
            "table": torch.tensor(table, dtype=torch.int64),
            "token_ids": torch.tensor(token_ids, dtype=torch.int64),
        },
        constants={"top_k": len(table[0]), **constants},
        expected={
            "topk_weights": torch.from_numpy(pairs[:, :, 1]).float(),
            "topk_ids": torch.from_numpy(pairs[:, :, 0]).long(),
        },
    )
