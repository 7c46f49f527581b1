"""moe_route_hash: the table decides, the scores weigh, and what is out of range is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.loading import load
from bitgate.kernels.moe import route_hash_triton
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_hash import MOE_ROUTE_HASH
from bitgate.kernels.moe.route_hash_data import CASES
from bitgate.kernels.moe.route_hash_reference import moe_route_hash
from bitgate.kernels.moe.route_oracle import moe_route_float64
from bitgate.kernels.moe.route_reference import moe_route
from bitgate.kernels.moe.route_rules import SCORES, SELECTED
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Routed = tuple[torch.Tensor, torch.Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ROUTE_HASH.implementations]
CONSTANTS: dict[str, Any] = dict(MOE_ROUTE_HASH.constants)
NAN, INF = float("nan"), float("inf")


def inputs_at(
    tokens: int, experts: int, case: str = "random", top_k: int = 6, vocab: int = 97
) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k), ("vocab", vocab))
    workload = Workload(op="moe_route_hash", axes=axes, dtype="float32", case=case)
    return MOE_ROUTE_HASH.make_inputs(workload, 0)


def assert_same(expected: Routed, actual: Routed) -> None:
    first, second = MOE_ROUTE.named_outputs(expected), MOE_ROUTE.named_outputs(actual)
    result = compare_tensors("route", first, second)
    assert result.equal, result.mismatches


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("case", CASES)
def test_every_score_has_the_bits_of_the_replay(case: str, score: str) -> None:
    inputs = inputs_at(19, 60, case)
    constants = CONSTANTS | {"score": score}
    weights, ids = moe_route_hash(**inputs, **constants)
    assert torch.equal(ids, inputs["table"][inputs["token_ids"]])
    assert weights.isfinite().all()
    assert_same((weights, ids), route_hash_triton.moe_route_hash(**inputs, **constants))


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (8, 8), (65, 16), (896, 3)])
def test_other_numbers_of_experts_and_slots(experts: int, top_k: int) -> None:
    inputs = inputs_at(5, experts, top_k=top_k)
    constants = CONSTANTS | {"top_k": top_k, "renormalize": 0}
    expected = moe_route_hash(**inputs, **constants)
    assert_same(expected, route_hash_triton.moe_route_hash(**inputs, **constants))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("run", RUNS)
def test_a_table_of_the_best_experts_is_moe_route(run: Callable[..., Routed], score: str) -> None:
    """The two operators share the weights: with the ids of one, the other gives the same bits."""
    inputs = inputs_at(17, 64)
    constants = CONSTANTS | {"score": score}
    bias = torch.linspace(-0.5, 0.5, 64)
    routed = moe_route(logits=inputs["logits"], correction_bias=bias, **constants)
    order = torch.arange(17).flip(0)
    given = {"logits": inputs["logits"], "table": routed[1][order], "token_ids": order.clone()}
    assert_same(routed, run(**given, **constants))


@pytest.mark.parametrize("score", SCORES)
def test_the_weights_lie_within_the_bound(score: str) -> None:
    inputs, constants = inputs_at(65, 128), CONSTANTS | {"score": score}
    weights, ids = moe_route_hash(**inputs, **constants)
    names = ("renormalize", "scale", "score")
    exact = {name: constants[name] for name in names}
    value, bound = moe_route_float64(logits=inputs["logits"], topk_ids=ids, **exact)
    assert ((weights.double() - value).abs() <= bound).all()
    # The control: the weights of the next slot do not.
    assert ((weights.roll(1, 1).double() - value).abs() > bound).float().mean() > 0.9


def test_the_experts_are_those_of_the_model() -> None:
    """The router of transformers, whose weights may be 2 bounds apart and 1e-20 in the sum."""
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter

    config = DeepseekV4Config(hidden_size=32, vocab_size=97, num_experts_per_tok=6)
    model = DeepseekV4HashRouter(config)
    inputs = inputs_at(40, config.n_routed_experts)
    hidden = integer_tensor(IntegerStream(1), (1, 40, 32), high=255, scale_log2=8)
    weight = integer_tensor(IntegerStream(2), (config.n_routed_experts, 32), high=255, scale_log2=8)
    model.weight.data.copy_(weight)
    model.tid2eid.copy_(inputs["table"])
    logits, weights, ids = model(hidden.float(), inputs["token_ids"][None])
    inputs["logits"] = logits.detach()
    constants = CONSTANTS | {"scale": float(config.routed_scaling_factor)}
    ours, chosen = moe_route_hash(**inputs, **constants)
    assert torch.equal(ids, chosen)
    exact = {name: constants[name] for name in ("renormalize", "scale", "score")}
    _, bound = moe_route_float64(logits=inputs["logits"], topk_ids=ids, **exact)
    assert ((weights.double() - ours.double()).abs() <= 2 * bound).all()


@pytest.mark.parametrize("run", RUNS)
def test_a_row_that_names_an_expert_twice(run: Callable[..., Routed]) -> None:
    """A table that nobody filled is all zeros."""
    inputs = inputs_at(3, 16)
    inputs["table"].zero_()
    weights, ids = run(**inputs, **CONSTANTS)
    assert ids.count_nonzero() == 0
    assert torch.allclose(weights, torch.full_like(weights, 0.25))


@pytest.mark.parametrize("run", RUNS)
def test_broken_logits_give_weights_of_zero(run: Callable[..., Routed]) -> None:
    inputs = inputs_at(4, 16)
    inputs["logits"][0], inputs["logits"][1], inputs["logits"][2] = NAN, INF, -INF
    weights, ids = run(**inputs, **CONSTANTS)
    assert weights[:3].count_nonzero() == 0
    assert weights[3].sum().item() == pytest.approx(1.5)
    assert torch.equal(ids, inputs["table"][inputs["token_ids"]])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": torch.tensor([0, 97])}, "expected token_ids of 0 to 96, got 0 to 97"),
        ({"token_ids": torch.tensor([-1, 9])}, "expected token_ids of 0 to 96, got -1 to 9"),
        (
            {"table": torch.full((97, 6), 8)},
            "expected entries of the table of 0 to 7, got 8 to 8",
        ),
        ({"table": torch.full((97, 6), -1)}, "got -1 to -1"),
        ({"table": torch.zeros(97, 6, dtype=torch.int32)}, "expected table in int64, got int32"),
        ({"token_ids": torch.zeros(3, dtype=torch.int64)}, "token_ids: expected axis tokens of 2"),
        ({"token_ids": torch.zeros(2, dtype=torch.int32)}, "token_ids in int64, got int32"),
        ({"token_ids": None}, "token_ids as a torch tensor, got NoneType"),
        ({"top_k": 5}, "top_k of 6, as the table has columns, got 5"),
        ({"top_k": 2**20000}, "as the table has columns, got an integer of 20001 bits"),
        ({"top_k": True}, "moe_route_hash: expected top_k of at least 1, an int, got True"),
        ({"renormalize": None}, "renormalize of 0 or 1, got None"),
        ({"renormalize": 0, "score": SELECTED}, "renormalize of 1 for softmax-selected"),
        ({"scale": "1"}, "finite number in float32, got '1'"),
        ({"score": "hash"}, "score of softmax, sigmoid"),
    ],
)
def test_wrong_arguments_are_named(
    run: Callable[..., Routed], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{**inputs_at(2, 8), **CONSTANTS, **change})


@pytest.mark.parametrize("score", SCORES)
def test_what_a_device_does_with_values_that_nobody_checked(
    score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots out of range have the id -1 and the weight 0, and the others what they have alone."""
    monkeypatch.setattr(route_hash_triton, "check_values", lambda *_: None)
    inputs, constants = inputs_at(4, 16), CONSTANTS | {"score": score}
    inputs["token_ids"] = torch.tensor([97, -1, 3, 1 << 40])
    inputs["table"][3, [1, 4]] = torch.tensor([16, -(1 << 40)])
    weights, ids = route_hash_triton.moe_route_hash(**inputs, **constants)
    assert (ids[[0, 1, 3]] == -1).all()
    assert weights[[0, 1, 3]].count_nonzero() == 0
    left = [0, 2, 3, 5]
    assert ids[2, [1, 4]].tolist() == [-1, -1]
    assert weights[2, [1, 4]].tolist() == [0.0, 0.0]
    alone = {"logits": inputs["logits"][2:3], "table": inputs["table"][:, left]}
    alone |= {"token_ids": inputs["token_ids"][2:3]}
    expected = moe_route_hash(**alone, **constants | {"top_k": 4})
    assert_same(expected, (weights[2:3, left], ids[2:3, left]))


@pytest.mark.parametrize(
    ("axes", "dtype", "case", "message"),
    [
        ((8, 1, 9, 5), "float32", "random", "top_k must be 1 to 8"),
        ((8, 1, 2, 5), "bfloat16", "random", "expected dtype float32 and a case of random"),
        ((8, 1, 2, 5), "float32", "ties", "expected dtype float32 and a case of random"),
    ],
)
def test_a_workload_that_cannot_be_made(
    axes: tuple[int, ...], dtype: str, case: str, message: str
) -> None:
    named = tuple(zip(("experts", "tokens", "top_k", "vocab"), axes, strict=True))
    workload = Workload(op="moe_route_hash", axes=named, dtype=dtype, case=case)
    with pytest.raises(UsageError, match=message):
        MOE_ROUTE_HASH.make_inputs(workload, 0)
