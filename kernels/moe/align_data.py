"""Inputs of moe_align, and fixtures whose result is written down by counting alone."""

from collections.abc import Sequence

import numpy as np
import torch

from bitgate.kernels.data import IntegerStream, require_workload
from bitgate.kernels.moe import experts_data
from bitgate.kernels.moe.align_layouts import DEFAULT_LAYOUT, LAYOUTS, layout_of
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

CASES = (*experts_data.CASES, "rank-0", "rank-1", "none-local", "one-expert", "twice")
EXPERTS = 64


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The ids of sample `index`, drawn as those of moe_experts, and a map of the experts.

    Axes: experts, tokens, top_k. All experts are local but in the cases `rank-0` and `rank-1`,
    where they are dealt to two ranks at random, and `none-local`. Case `padding`: about a quarter
    of the pairs are -1 or the number of experts. Case `one-expert`: all pairs name the same. Case
    `twice`: the slots of a token are drawn independently.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts where they differ.
    """
    case = workload.case
    require_workload(workload, CASES)
    tokens, experts, top_k = (workload.axis(name) for name in ("tokens", "experts", "top_k"))
    stream = IntegerStream(workload.seed(index))
    if case == "one-expert":
        ids = np.repeat(stream.integers((1, 1), 0, experts - 1), tokens * top_k, 0)
    elif case == "twice":
        ids = stream.integers((tokens, top_k), 0, experts - 1)
    else:
        ids = experts_data.route(stream, tokens, experts, top_k)
    if case == "padding":
        ids = experts_data.pad(stream, ids, experts)
    return {
        "topk_ids": torch.from_numpy(ids.reshape(tokens, top_k)),
        "expert_map": _map(stream, experts, case),
    }


def _map(stream: IntegerStream, experts: int, case: str) -> torch.Tensor:
    here = np.ones(experts, dtype=np.int64)
    if case.startswith("rank-"):
        here = stream.integers((experts,), 0, 1) == int(case[-1])
    if case == "none-local":
        here[:] = 0
    return torch.from_numpy(np.where(here, np.cumsum(here) - 1, -1).astype(np.int32))


def _workload(tokens: int, top_k: int, case: str = "random", experts: int = EXPERTS) -> Workload:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    return Workload(op="moe_align", axes=axes, dtype="bfloat16", case=case)


SUITES = {
    "default": (
        _workload(1, 8),
        _workload(37, 6),
        _workload(300, 2),
        _workload(33, 4, "padding"),
        _workload(257, 8, "rank-0", 128),
        _workload(17, 8, "rank-1", 60),
        _workload(16, 3, "none-local"),
        _workload(65, 1, "one-expert"),
        _workload(31, 9, "twice", 65),
    ),
}


def aligned(
    ids: Sequence[int],
    expert_map: Sequence[int],
    block_m: int,
    layout: str = DEFAULT_LAYOUT,
) -> Tensors:
    """The outputs of moe_align for flat ids, group by group in plain Python."""
    rules, pairs, experts = layout_of(layout), len(ids), len(expert_map)
    sorted_pairs: list[int] = []
    expert_ids: list[int] = []
    # Local experts by their number, or all.
    groups = list(range(experts))
    if rules.drops_nonlocal:
        groups = sorted((e for e in groups if expert_map[e] >= 0), key=lambda e: expert_map[e])
    pairs_of: dict[int, list[int]] = {}
    for pair, chosen in enumerate(ids):
        pairs_of.setdefault(chosen, []).append(pair)
    for expert in groups:
        group = pairs_of.get(expert, [])
        blocks = -(-len(group) // block_m)
        expert_ids += [expert_map[expert]] * blocks
        sorted_pairs += group + [pairs] * (blocks * block_m - len(group))
    tail = rules.tail if rules.drops_nonlocal else expert_map[rules.tail]
    unused = rules.capacity(pairs, experts, block_m) - len(expert_ids)
    return {
        "sorted_pairs": _int32(sorted_pairs + [pairs] * (unused * block_m)),
        "expert_ids": _int32(expert_ids + [tail] * unused),
        "padded": _int32([len(sorted_pairs)]),
    }


def _int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _case(
    name: str,
    ids: list[list[int]],
    experts: int | Sequence[int],
    block_m: int,
    layout: str = DEFAULT_LAYOUT,
) -> IntegerCase:
    """`experts` is a map, or the number of experts, which are all local."""
    flat = [chosen for row in ids for chosen in row]
    expert_map = range(experts) if isinstance(experts, int) else experts
    return IntegerCase(
        name=name if layout == DEFAULT_LAYOUT else f"{name}, {layout}",
        inputs={
            "topk_ids": torch.tensor(ids, dtype=torch.int64).reshape(len(ids), -1),
            "expert_map": _int32(expert_map),
        },
        constants={"block_m": block_m, "layout": layout},
        expected=aligned(flat, expert_map, block_m, layout),
    )


def integer_cases() -> tuple[IntegerCase, ...]:
    """One expert for all, whole blocks, blocks over by one, dropped pairs, and an expert twice.

    And for each layout: experts on another rank, none here, and local numbers that descend.
    """
    spread = [[(7 * token + 3 * slot) % 11 for slot in range(3)] for token in range(40)]
    maps = {
        "rank-0": (0, 1, 2, 3, 4, 5, *[-1] * 5),
        "rank-1": (*[-1] * 6, 0, 1, 2, 3, 4),
        "scattered": (-1, 3, -1, 0, 2, -1, -1, 1, -1, -1, 4),
        "none-local": (-1,) * 11,
    }
    return (
        # The four pairs of one expert: a kernel for XPU once kept the first alone.
        _case("one-expert", [[0], [0], [0], [0]], 1, 16),
        _case("one-pair", [[3]], 5, 16),
        _case("whole-blocks", [[token % 2, 2] for token in range(32)], 3, 16),
        _case("over-by-one", [[token % 2, 2] for token in range(34)], 3, 16),
        _case("spread", spread, 12, 16),
        _case("larger-blocks", spread, 11, 64),
        _case("odd-blocks", spread, 11, 7),
        # Ids beyond the experts, above and below, also ones that are no padding mark.
        _case("dropped", [[-1, 2, 9], [4, -7, 0], [4, 4, 2], [-1, 4, 100], [3, 0, 5]], 4, 16),
        _case("dropped-just-above", [[3, 1], [2, 3], [0, 4], [3, 3]], 3, 16),
        _case("all-dropped", [[-1, 4], [4, -1]], 4, 16),
        *(
            _case(name, spread, expert_map, 16, layout.name)
            for layout in LAYOUTS
            for name, expert_map in maps.items()
        ),
    )
