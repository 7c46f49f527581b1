"""Grouped routing chooses vLLM's experts, and weighs them as vLLM does but for roundings.

Found with vLLM 0.32.0: the same experts for all 500 tokens of six shapes, three of them routed as
DeepSeek-V2 and three as V3; each weight within the two error bounds of the other.
"""

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_oracle import moe_route_float64
from bitgate.kernels.moe.route_reference import moe_route
from bitgate.records.types import Workload

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def theirs(operators: ModuleType) -> Any:
    with warnings.catch_warnings(action="ignore"):
        router = operators.vllm("model_executor.layers.fused_moe.router.grouped_topk_router")
    # What torch.compile wraps; compiled, the softmax has other roundings.
    return router.grouped_topk._torchdynamo_orig_callable


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
@pytest.mark.parametrize(
    ("experts", "keep_groups", "top_k"), [(256, 4, 8), (64, 3, 6), (160, 3, 6)]
)
def test_the_experts_are_those_of_vllm(
    theirs: Any, experts: int, keep_groups: int, top_k: int, score: str
) -> None:
    axes = (("experts", experts), ("tokens", 500), ("top_k", top_k))
    workload = Workload(op="moe_route", axes=axes, dtype="float32")
    inputs = MOE_ROUTE.make_inputs(workload, 0)
    biased = score == "sigmoid"
    if not biased:
        inputs["correction_bias"] = torch.zeros(experts)
    renormalize, scale = (1, 2.5) if biased else (0, 16.0)
    weights, ids = theirs(
        inputs["logits"],
        inputs["logits"],
        top_k,
        bool(renormalize),
        8,
        keep_groups,
        score,
        scale,
        inputs["correction_bias"] if biased else None,
    )
    rules: dict[str, Any] = {"renormalize": renormalize, "scale": scale, "score": score}
    groups = {"groups": 8, "keep_groups": keep_groups, "group_rank": "top2" if biased else "max"}
    ours, chosen = moe_route(**inputs, top_k=top_k, **rules, **groups)
    # vLLM's order of the slots is that of torch.topk, which ours is not among equals.
    order, mine = ids.long().argsort(1), chosen.argsort(1)
    assert torch.equal(ids.long().gather(1, order), chosen.gather(1, mine))
    _, bound = moe_route_float64(logits=inputs["logits"], topk_ids=chosen, **rules)
    apart = (weights.gather(1, order).double() - ours.gather(1, mine).double()).abs()
    assert (apart <= 2 * bound.gather(1, mine)).all()
    # The control: the groups of the other rule are other experts.
    groups["group_rank"] = "max" if biased else "top2"
    _, others = moe_route(**inputs, top_k=top_k, **rules, **groups)
    assert not torch.equal(others.sort(1).values, chosen.sort(1).values)
