"""The staged pipeline on one rank of an expert-parallel layer: global ids and a map of experts."""

import pytest
import torch

from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.staged import Settings, run
from bitgate.kernels.moe.staged_reference import TILE, experts_tile
from bitgate.kernels.spec import Tensors
from bitgate.records.types import Workload

INF = float("inf")
AXES = {"tokens": 33, "hidden": 64, "intermediate": 32, "experts": 8, "top_k": 2}
LOCAL = [1, 3, 4, 6]


def layer() -> Tensors:
    point = Workload(op="moe_experts", axes=tuple(sorted(AXES.items())), dtype="bfloat16")
    return MOE_EXPERTS.make_inputs(point, 0)


def mapped(local: list[int]) -> torch.Tensor:
    expert_map = torch.full((AXES["experts"],), -1, dtype=torch.int32)
    expert_map[local] = torch.arange(len(local), dtype=torch.int32)
    return expert_map


def on_rank(inputs: Tensors, expert_map: torch.Tensor) -> torch.Tensor:
    weights = {name: inputs[name][LOCAL].contiguous() for name in ("w_gate_up", "w_down")}
    tensors = {**inputs, **weights, "expert_map": expert_map}
    return run(TILE, tensors, Settings(act={"swiglu_limit": INF}))


def by_local_ids(inputs: Tensors) -> torch.Tensor:
    weights = {name: inputs[name][LOCAL].contiguous() for name in ("w_gate_up", "w_down")}
    ids = mapped(LOCAL)[inputs["topk_ids"]].long()
    return experts_tile(**{**inputs, **weights, "topk_ids": ids}, swiglu_limit=INF)


def test_a_rank_computes_what_the_ids_of_its_own_experts_give():
    inputs = layer()
    assert torch.equal(on_rank(inputs, mapped(LOCAL)), by_local_ids(inputs))


@pytest.mark.parametrize("local", [[3, 1, 4, 6], [0, 2, 5, 7]], ids=["swapped", "other rank"])
def test_another_map_changes_the_result(local):
    inputs = layer()
    assert not torch.equal(on_rank(inputs, mapped(local)), by_local_ids(inputs))
