"""moe_route: its bits for every score, its mutants, and how far from float64 it may be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.moe import route_reference, route_triton
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_oracle import moe_route_float64, scores_float64
from bitgate.kernels.moe.route_reference import moe_route, ordered, scores_of
from bitgate.kernels.moe.route_rules import SCORES, SELECTED
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload

Tensor = torch.Tensor
Routed = tuple[Tensor, Tensor]
CONSTANTS: dict[str, Any] = {"top_k": 4, "renormalize": 1, "scale": 1.5, "score": "softmax"}
INF = float("inf")


def inputs_at(tokens: int, experts: int, case: str = "random", top_k: int = 4) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_route", axes=axes, dtype="float32", case=case)
    return MOE_ROUTE.make_inputs(workload, 0)


def assert_same(expected: Routed, actual: Routed) -> None:
    first, second = MOE_ROUTE.named_outputs(expected), MOE_ROUTE.named_outputs(actual)
    result = compare_tensors("route", first, second)
    assert result.equal, result.mismatches


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("case", "tokens", "experts"),
    [("random", 33, 128), ("ties", 24, 60), ("negative", 17, 32), ("padding", 24, 17)],
)
def test_every_score_has_the_bits_of_the_replay(
    case: str, tokens: int, experts: int, score: str
) -> None:
    inputs = inputs_at(tokens, experts, case)
    constants = CONSTANTS | {
        "score": score,
        "renormalize": int(case != "random" or score == SELECTED),
    }
    expected = moe_route(**inputs, **constants)
    assert_same(expected, route_triton.moe_route(**inputs, **constants))
    assert expected[0].isfinite().all()


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (2, 2), (17, 3), (17, 16), (17, 17)])
def test_other_numbers_of_experts_and_slots(experts: int, top_k: int) -> None:
    inputs, constants = inputs_at(5, experts, top_k=top_k), CONSTANTS | {"top_k": top_k}
    expected = moe_route(**inputs, **constants)
    assert_same(expected, route_triton.moe_route(**inputs, **constants))
    assert all(len(set(row)) == top_k for row in expected[1].tolist())


# --- mutants: each must change bits --------------------------------------------------------------


def routed(
    logits: Tensor,
    correction_bias: Tensor,
    *,
    score: str = "softmax",
    scores: Callable[[Tensor], Tensor] | None = None,
    choose: Callable[[Tensor], Tensor] | None = None,
    weigh: Callable[[Tensor], Tensor] | None = None,
    biased: bool = False,
) -> Routed:
    """moe_route with CONSTANTS, and with one of its parts replaced."""
    found = scores_of(logits, score) if scores is None else scores(logits)
    keys = found + correction_bias
    ids = stable(keys) if choose is None else choose(keys)
    weights = (keys if biased else found).gather(1, ids)
    return (shares if weigh is None else weigh)(weights), ids


def stable(keys: Tensor) -> Tensor:
    return torch.sort(ordered(keys), dim=1, descending=True, stable=True).indices[:, :4]


def total_of(weights: Tensor) -> Tensor:
    a, b, c, d = weights.unbind(1)
    total = ((a + b) + c) + d
    return torch.where(total > 0, total, 1.0)[:, None]


def shares(weights: Tensor) -> Tensor:
    return weights / total_of(weights) * 1.5


def test_the_model_of_the_mutants_is_the_truth() -> None:
    for case in ("random", "ties", "negative", "padding"):
        for score in SCORES[:3]:
            inputs = inputs_at(32, 60, case)
            expected = moe_route(**inputs, **(CONSTANTS | {"score": score}))
            assert_same(expected, routed(**inputs, score=score))


def rounds(keys: Tensor, masked: float) -> Tensor:
    """The largest with the lowest id, four times; what was taken is `masked`."""
    keys, ids = keys.clone(), []
    for _ in range(4):
        ids.append(keys.argmax(1, keepdim=True))
        keys.scatter_(1, ids[-1], masked)
    return torch.cat(ids, 1)


def library_softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, 1)


def selected_softmax(logits: Tensor, correction_bias: Tensor) -> Routed:
    """Softmax over the chosen logits alone: the same numbers, other roundings."""
    ids = stable(scores_of(logits, "softmax") + correction_bias)
    return scores_of(logits.gather(1, ids), "softmax") * 1.5, ids


def reversed_tree(logits: Tensor) -> Tensor:
    grown = arithmetic.exp(logits - logits.amax(1, keepdim=True))
    total = grown[:, 0]
    for expert in range(1, logits.shape[1]):
        total = total + grown[:, expert]
    return grown / total[:, None]


# The data on which a mutant shows, and in which output first.
MUTANTS: dict[str, tuple[str, str, Callable[[Tensor, Tensor], Routed]]] = {
    "torch.topk": (
        "ties",
        "topk_ids",
        lambda x, b: routed(x, b, choose=lambda keys: keys.topk(4, 1).indices),
    ),
    "the higher id wins ties": (
        "ties",
        "topk_ids",
        lambda x, b: routed(x, b, choose=lambda keys: keys.shape[1] - 1 - stable(keys.flip(1))),
    ),
    "bias in bfloat16": ("random", "topk_ids", lambda x, b: routed(x, b.bfloat16().float())),
    "scores in bfloat16": (
        "random",
        "topk_ids",
        lambda x, b: routed(x, b, scores=lambda y: scores_of(y, "softmax").bfloat16().float()),
    ),
    "weights with the bias": ("random", "topk_weights", lambda x, b: routed(x, b, biased=True)),
    "taken experts are 0": (
        "negative",
        "topk_ids",
        lambda x, b: routed(x, b, choose=lambda keys: rounds(keys, 0.0)),
    ),
    "reciprocal of the sum": (
        "random",
        "topk_weights",
        lambda x, b: routed(x, b, weigh=lambda w: w * (1.0 / total_of(w)) * 1.5),
    ),
    "scale over the sum": (
        "random",
        "topk_weights",
        lambda x, b: routed(x, b, weigh=lambda w: w * (1.5 / total_of(w))),
    ),
    "slots descending": (
        "random",
        "topk_weights",
        lambda x, b: routed(x, b, weigh=lambda w: w / total_of(w.flip(1)) * 1.5),
    ),
    "library softmax": (
        "random",
        "topk_weights",
        lambda x, b: routed(x, b, scores=library_softmax),
    ),
    "sum over the experts in order": (
        "random",
        "topk_weights",
        lambda x, b: routed(x, b, scores=reversed_tree),
    ),
    "softmax of the chosen": ("random", "topk_weights", selected_softmax),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_show(name: str) -> None:
    case, output, mutant = MUTANTS[name]
    inputs = inputs_at(256, 128, case)
    expected = MOE_ROUTE.named_outputs(moe_route(**inputs, **CONSTANTS))
    wrong = MOE_ROUTE.named_outputs(mutant(inputs["logits"], inputs["correction_bias"]))
    result = compare_tensors(name, expected, wrong)
    assert output in {mismatch.tensor for mismatch in result.mismatches}


@pytest.mark.parametrize(
    ("score", "name", "mutant"),
    [
        ("sigmoid", "sigmoid", torch.sigmoid),
        ("sqrt-softplus", "softplus", torch.nn.functional.softplus),
        ("sqrt-softplus", "softplus", lambda x: torch.log(1.0 + torch.exp(x))),
        ("softmax", "exp", torch.exp),
    ],
    ids=["torch.sigmoid", "torch softplus", "plain softplus", "torch.exp"],
)
def test_library_functions_show(
    score: str, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small and mostly negative: sigmoid has nothing left to round where it is almost 1.
    inputs, constants = inputs_at(256, 8), CONSTANTS | {"score": score, "renormalize": 0}
    inputs["logits"] = inputs["logits"] / 4 - 3.0
    expected, _ = moe_route(**inputs, **constants)
    monkeypatch.setattr(route_reference.arithmetic, name, mutant)
    wrong, _ = moe_route(**inputs, **constants)
    assert (wrong.view(torch.int32) != expected.view(torch.int32)).float().mean() > 0.01


# --- accuracy ------------------------------------------------------------------------------------


def outside(inputs: Tensors, routed: Routed, constants: dict[str, Any]) -> float:
    """The share of weights that lie outside of their bound."""
    weights, ids = routed
    names = ("renormalize", "scale", "score")
    given = {name: constants[name] for name in names}
    value, bound = moe_route_float64(logits=inputs["logits"], topk_ids=ids, **given)
    assert bound.isfinite().float().mean() > 0.9
    return (~((weights.double() - value).abs() <= bound)).float().mean().item()


@pytest.mark.parametrize(
    ("score", "renormalize"),
    [(score, one) for score in SCORES for one in (0, 1) if one or score != SELECTED],
)
def test_the_weights_lie_within_the_bound(score: str, renormalize: int) -> None:
    constants = CONSTANTS | {"score": score, "renormalize": renormalize}
    for case, experts in (("random", 8), ("random", 384), ("ties", 64), ("negative", 32)):
        inputs = inputs_at(65, experts, case)
        assert outside(inputs, moe_route(**inputs, **constants), constants) == 0


@pytest.mark.parametrize("score", SCORES)
def test_who_is_chosen_is_best_within_the_bound(score: str) -> None:
    inputs = inputs_at(256, 128)
    _, ids = moe_route(**inputs, **CONSTANTS | {"score": score})
    exact, error = scores_float64(inputs["logits"], score)
    biased = exact + inputs["correction_bias"].double()
    slack = error + 2.0**-24 * biased.abs()
    chosen = torch.zeros_like(biased, dtype=torch.bool).scatter_(1, ids, value=True)
    worst = torch.where(chosen, biased + slack, INF).amin(1)
    best_left = torch.where(chosen, -INF, biased - slack).amax(1)
    assert (worst >= best_left).all()
    # The control: the fifth instead of the fourth is seen.
    others = biased.argsort(dim=1, descending=True, stable=True)[:, [0, 1, 2, 4]]
    chosen = torch.zeros_like(chosen).scatter_(1, others, value=True)
    worst = torch.where(chosen, biased + slack, INF).amin(1)
    best_left = torch.where(chosen, -INF, biased - slack).amax(1)
    assert (worst < best_left).float().mean() > 0.9


FAULTS: dict[str, Callable[[Tensor, Tensor], Routed]] = {
    "weights with the bias": lambda x, b: routed(x, b, biased=True),
    "another score": lambda x, b: routed(x, b, score="sigmoid"),
    "no scale": lambda x, b: routed(x, b, weigh=lambda w: w / total_of(w)),
    "no sum": lambda x, b: routed(x, b, weigh=lambda w: w * 1.5),
    "weights in bfloat16": lambda x, b: routed(x, b, weigh=lambda w: shares(w).bfloat16().float()),
    "slots moved": lambda x, b: routed(x, b, weigh=lambda w: shares(w).roll(1, 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bound_refuses_a_fault(fault: str) -> None:
    inputs = inputs_at(65, 128)
    wrong = FAULTS[fault](inputs["logits"], inputs["correction_bias"])
    assert outside(inputs, wrong, CONSTANTS) > 0.9


@pytest.mark.parametrize(
    ("score", "units"), [("softmax", 80), ("sigmoid", 20), (SCORES[2], 16), (SELECTED, 40)]
)
def test_the_bound_is_some_units_in_the_last_place(score: str, units: int) -> None:
    inputs, constants = inputs_at(65, 128), CONSTANTS | {"score": score}
    _, ids = moe_route(**inputs, **constants)
    value, bound = moe_route_float64(
        logits=inputs["logits"], topk_ids=ids, renormalize=1, scale=1.5, score=score
    )
    assert (bound <= units * 2.0**-24 * value).all()
