"""Inputs of moe_align, and fixtures whose result is written down by counting alone."""

from collections.abc import Sequence

import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.contract import block_capacity
from bitgate.kernels.moe.experts_data import CASES, pad, route
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

EXPERTS = 64


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The ids of sample `index`, drawn as those of moe_experts.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts.
    """
    if workload.case not in CASES or workload.dtype != "bfloat16":
        raise UsageError(
            f"{workload.key}: expected dtype bfloat16 and a case of {', '.join(CASES)}"
        )
    tokens, experts, top_k = (workload.axis(name) for name in ("tokens", "experts", "top_k"))
    if not 0 < top_k <= experts:
        raise UsageError(f"{workload.key}: top_k must be 1 to {experts} (the number of experts)")
    stream = IntegerStream(workload.seed(index))
    ids = route(stream, tokens, experts, top_k)
    if workload.case == "padding":
        ids = pad(stream, ids, experts)
    return {"topk_ids": torch.from_numpy(ids)}


def _workload(tokens: int, top_k: int, case: str = "random") -> Workload:
    axes = (("experts", EXPERTS), ("tokens", tokens), ("top_k", top_k))
    return Workload(op="moe_align", axes=axes, dtype="bfloat16", case=case)


SUITE = (_workload(1, 8), _workload(37, 6), _workload(300, 2), _workload(33, 4, "padding"))


def aligned(ids: Sequence[int], experts: int, block_m: int) -> Tensors:
    """The outputs of moe_align for flat ids, group by group in plain Python."""
    pairs = len(ids)
    sorted_pairs: list[int] = []
    expert_ids: list[int] = []
    for expert in range(experts):
        group = [pair for pair, chosen in enumerate(ids) if chosen == expert]
        blocks = -(-len(group) // block_m)
        expert_ids += [expert] * blocks
        sorted_pairs += group + [pairs] * (blocks * block_m - len(group))
    unused = block_capacity(pairs, experts, block_m) - len(expert_ids)
    return {
        "sorted_pairs": _int32(sorted_pairs + [pairs] * (unused * block_m)),
        "expert_ids": _int32(expert_ids + [-1] * unused),
        "padded": _int32([len(sorted_pairs)]),
    }


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _case(name: str, ids: list[list[int]], experts: int, block_m: int) -> IntegerCase:
    flat = [chosen for row in ids for chosen in row]
    return IntegerCase(
        name=name,
        inputs={"topk_ids": torch.tensor(ids, dtype=torch.int64).reshape(len(ids), -1)},
        constants={"experts": experts, "block_m": block_m},
        expected=aligned(flat, experts, block_m),
    )


def integer_cases() -> tuple[IntegerCase, ...]:
    """One expert for all, whole blocks, blocks over by one, dropped pairs, and an expert twice."""
    spread = [[(7 * token + 3 * slot) % 11 for slot in range(3)] for token in range(40)]
    return (
        _case("one-expert", [[0], [0], [0], [0]], 1, 16),
        _case("one-pair", [[3]], 5, 16),
        _case("whole-blocks", [[token % 2, 2] for token in range(32)], 3, 16),
        _case("over-by-one", [[token % 2, 2] for token in range(34)], 3, 16),
        _case("spread", spread, 12, 16),
        _case("larger-blocks", spread, 11, 64),
        # Ids beyond the experts, above and below, also ones that are no padding mark.
        _case("dropped", [[-1, 2, 9], [4, -7, 0], [4, 4, 2], [-1, 4, 100], [3, 0, 5]], 4, 16),
        _case("dropped-just-above", [[3, 1], [2, 3], [0, 4], [3, 3]], 3, 16),
        _case("all-dropped", [[-1, 4], [4, -1]], 4, 16),
    )
