"""moe-torch/1: the loop is what transformers runs, and the sorted form has the same bits.

What holds for the arguments of every implementation of moe_experts is tested here, too.
"""

from collections.abc import Iterator

import pytest
import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.experts import experts_loop, experts_sorted
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

INFINITE = float("inf")
EVERY = [pytest.param(load(one.target), id=one.name) for one in MOE_EXPERTS.implementations]


def point(case: str = "random", **axes: int) -> Workload:
    shape = {"hidden": 64, "intermediate": 32, "experts": 8, "top_k": 2, "tokens": 16} | axes
    return Workload(
        op="moe_experts", axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case
    )


def differing(left: torch.Tensor, right: torch.Tensor) -> int:
    assert left.shape == right.shape
    return int((left.view(torch.int16) != right.view(torch.int16)).sum())


def model_experts(family: str, workload: Workload, limit: float) -> torch.nn.Module:
    """The experts module of transformers, run by its own eager loop."""
    hidden, intermediate, experts = (
        workload.axis(name) for name in ("hidden", "intermediate", "experts")
    )
    if family == "deepseek_v4":
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as source

        config = source.DeepseekV4Config(
            hidden_size=hidden,
            moe_intermediate_size=intermediate,
            n_routed_experts=experts,
            swiglu_limit=limit,
        )
        kind = source.DeepseekV4Experts
    else:
        from transformers.models.qwen3_moe import modeling_qwen3_moe as source

        config = source.Qwen3MoeConfig(
            hidden_size=hidden, moe_intermediate_size=intermediate, num_experts=experts
        )
        kind = source.Qwen3MoeExperts
    config._experts_implementation = "eager"
    return kind(config).to(torch.bfloat16)


def run_model(module: torch.nn.Module, inputs: Tensors) -> torch.Tensor:
    with torch.no_grad():
        module.gate_up_proj.copy_(inputs["w_gate_up"])
        module.down_proj.copy_(inputs["w_down"])
        result: torch.Tensor = module(inputs["x"], inputs["topk_ids"], inputs["topk_weights"])
    return result


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread, unless a test asks for more by indirect parametrisation."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 1))
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("family", "limit"), [("deepseek_v4", 10.0), ("deepseek_v4", 1.5), ("qwen3_moe", INFINITE)]
)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_the_bits_are_those_of_the_model(family: str, limit: float, weights: torch.dtype) -> None:
    compared = 0
    for tokens in (1, 2, 5, 33):
        workload = point(tokens=tokens)
        module = model_experts(family, workload, limit)
        for index in range(3):
            inputs = MOE_EXPERTS.make_inputs(workload, index)
            inputs["topk_weights"] = inputs["topk_weights"].to(weights)
            expected = run_model(module, inputs)
            for implementation in (experts_loop, experts_sorted):
                ours = implementation(**inputs, swiglu_limit=limit)
                assert differing(expected, ours) == 0
                compared += ours.numel()
    assert compared == 2 * 41 * 64 * 3


def test_a_limit_is_seen_by_the_comparison_with_the_model() -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    module = model_experts("deepseek_v4", point(), 10.0)
    assert differing(run_model(module, inputs), experts_loop(**inputs, swiglu_limit=1.5)) > 0


@pytest.mark.parametrize("threads", [1, 2], indirect=True, ids=["1 thread", "2 threads"])
@pytest.mark.parametrize(
    "workload",
    [
        point(tokens=1),
        point(tokens=16),
        point(tokens=64, experts=32),
        point(tokens=3, hidden=97, intermediate=33, top_k=5),
        point(tokens=300, hidden=40, intermediate=20, experts=5, top_k=4),
        point("padding", tokens=40, top_k=3),
    ],
    ids=lambda workload: workload.key,
)
def test_sorting_changes_no_bit(workload: Workload) -> None:
    for index in range(5):
        inputs = MOE_EXPERTS.make_inputs(workload, index)
        loop = experts_loop(**inputs, swiglu_limit=10.0)
        assert differing(loop, experts_sorted(**inputs, swiglu_limit=10.0)) == 0
        assert loop.count_nonzero() > 0


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 16, 64, 256, 1000])
def test_sorting_changes_no_bit_over_forty_seeds(tokens: int) -> None:
    for index in range(40):
        inputs = MOE_EXPERTS.make_inputs(point(tokens=tokens, experts=32), index)
        loop = experts_loop(**inputs, swiglu_limit=10.0)
        assert differing(loop, experts_sorted(**inputs, swiglu_limit=10.0)) == 0


@pytest.mark.parametrize("top_k", [2, 3, 6])
def test_an_expert_that_a_token_names_twice(top_k: int) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(tokens=20, top_k=top_k), 1)
    inputs["topk_ids"][:, 1:] = inputs["topk_ids"][:, :1]
    inputs["topk_ids"][3:7, -1] = (inputs["topk_ids"][3:7, 0] + 1) % 8
    module = model_experts("deepseek_v4", point(), 10.0)
    expected = run_model(module, inputs)
    for implementation in (experts_loop, experts_sorted):
        assert differing(expected, implementation(**inputs, swiglu_limit=10.0)) == 0


@pytest.mark.parametrize("implementation", EVERY)
def test_padding_is_skipped(implementation: object) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(tokens=6, top_k=2), 0)
    alone = {**inputs, "topk_ids": inputs["topk_ids"][:, :1]}
    alone["topk_weights"] = inputs["topk_weights"][:, :1]
    expected = implementation(**alone, swiglu_limit=10.0)
    for padding in (-1, 8):
        padded = {**inputs, "topk_ids": inputs["topk_ids"].clone()}
        padded["topk_ids"][:, 1] = padding
        assert differing(implementation(**padded, swiglu_limit=10.0), expected) == 0
    nothing = {**inputs, "topk_ids": torch.full((6, 2), -1)}
    assert implementation(**nothing, swiglu_limit=10.0).count_nonzero() == 0


@pytest.mark.parametrize("implementation", EVERY)
def test_the_weight_of_padding_counts_for_nothing(implementation: object) -> None:
    inputs = MOE_EXPERTS.make_inputs(point("padding", tokens=12, top_k=3), 0)
    expected = implementation(**inputs, swiglu_limit=10.0)
    padded = (inputs["topk_ids"] < 0) | (inputs["topk_ids"] == 8)
    assert padded.any()
    weights = torch.tensor([float("nan"), float("inf"), -1.0]).repeat(len(padded.nonzero()))
    inputs["topk_weights"][padded] = weights[: len(padded.nonzero())]
    assert differing(implementation(**inputs, swiglu_limit=10.0), expected) == 0
    # Where it is no padding it does count.
    for weight in (float("nan"), float("inf"), -1.0):
        inputs["topk_weights"][~padded] = weight
        assert differing(implementation(**inputs, swiglu_limit=10.0), expected) > 0


@pytest.mark.parametrize("implementation", EVERY)
def test_no_tokens_give_no_rows(implementation: object) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(tokens=0), 0)
    assert implementation(**inputs, swiglu_limit=10.0).shape == (0, 64)


@pytest.mark.parametrize("implementation", EVERY)
def test_arguments_are_left_alone(implementation: object) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    implementation(**inputs, swiglu_limit=10.0)
    assert all(torch.equal(before[name], inputs[name]) for name in inputs)


@pytest.mark.parametrize("implementation", EVERY)
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda t: t.float(), "expected x in bfloat16, got float32"),
        ("x", lambda _: None, "expected x as a torch tensor, got NoneType"),
        ("topk_ids", lambda t: t.int(), "expected topk_ids in int64, got int32"),
        ("topk_weights", lambda t: t.double(), "expected topk_weights in float32, got float64"),
        ("x", lambda t: t[:, :-1], "w_gate_up: expected axis hidden of 63, got 64"),
        ("topk_weights", lambda t: t[:, :1], "topk_weights: expected axis top_k of 2, got 1"),
        ("w_down", lambda t: t[:-1], "w_down: expected axis experts of 8, got 7"),
        ("w_down", lambda t: t[0], r"w_down as \[experts, hidden, intermediate\], got"),
        ("topk_ids", lambda t: t + 5, r"topk_ids: expected 0 to 7 .*got \d+ to 1\d"),
        ("topk_ids", lambda t: t - 7, r"topk_ids: expected 0 to 7 .*got -\d"),
    ],
)
def test_wrong_arguments_are_named(
    implementation: object, name: str, change: object, message: str
) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(tokens=16), 0)
    inputs[name] = change(inputs[name])
    with pytest.raises(UsageError, match=message):
        implementation(**inputs, swiglu_limit=10.0)


@pytest.mark.parametrize("implementation", EVERY)
@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), True, None, "10"])
def test_a_limit_that_is_not_positive(implementation: object, limit: float) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    with pytest.raises(UsageError, match="swiglu_limit to be a positive number"):
        implementation(**inputs, swiglu_limit=limit)
