"""moe_route: who is chosen, how the weights are made, and what a broken row of logits does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import route_reference, route_triton
from bitgate.kernels.moe.route import MOE_ROUTE, SCORES
from bitgate.kernels.moe.route_reference import (
    moe_route,
    moe_route_float64,
    ordered,
    scores_float64,
    scores_of,
)
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Routed = tuple[Tensor, Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ROUTE.implementations]
CONSTANTS: dict[str, Any] = {"top_k": 4, "renormalize": 1, "scale": 1.5, "score": "softmax"}
NAN, INF = float("nan"), float("inf")


def inputs_at(tokens: int, experts: int, case: str = "random", top_k: int = 4) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_route", axes=axes, dtype="float32", case=case)
    return MOE_ROUTE.make_inputs(workload, 0)


def no_bias(logits: Tensor) -> Tensors:
    return {"logits": logits, "correction_bias": torch.zeros(logits.shape[1])}


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
    for renormalize in (0, 1):
        constants = CONSTANTS | {"score": score, "renormalize": renormalize}
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
        for score in SCORES:
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


# --- published faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
def test_of_equal_scores_the_lower_id_wins(run: Callable[..., Routed]) -> None:
    for experts in (16, 60):
        _, ids = run(**no_bias(torch.zeros(3, experts)), **CONSTANTS)
        assert ids.tolist() == [[0, 1, 2, 3]] * 3
    # A tie at the cut alone, and one that the bias makes.
    logits = torch.tensor([[0.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 2.0]])
    _, ids = run(**no_bias(logits), **CONSTANTS | {"top_k": 5})
    assert ids.tolist() == [[1, 3, 7, 4, 0]]
    bias = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    constants = CONSTANTS | {"score": "sigmoid"}
    logits = torch.tensor([[-128.0, 0.0, -128.0, 0.0, -128.0, -128.0, -128.0, -128.0]])
    weights, ids = run(logits=logits, correction_bias=bias, **constants)
    assert ids.tolist() == [[0, 1, 2, 3]]
    assert weights.tolist() == [[0.0, 0.75, 0.0, 0.75]]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("run", RUNS)
def test_broken_logits_give_distinct_experts_and_finite_weights(
    run: Callable[..., Routed], score: str
) -> None:
    """Rows of NaN once gave top_k times expert 0, and a wild pointer in the reduction."""
    logits = torch.zeros(9, 7)
    logits[0], logits[1], logits[2] = NAN, INF, -INF
    logits[3, 2:], logits[4, 1], logits[5, 3], logits[6, :5] = NAN, INF, -INF, -INF
    logits[7, ::2], logits[7, 1::2] = NAN, INF
    weights, ids = run(**no_bias(logits), **CONSTANTS | {"score": score})
    assert all(len(set(row)) == 4 for row in ids.tolist())
    assert ids.min() >= 0
    assert ids.max() < 7
    assert weights.isfinite().all()
    assert weights[8].sum().item() == pytest.approx(1.5)
    assert weights[0].tolist() == [0.0] * 4
    assert ids[0].tolist() == [0, 1, 2, 3]


def test_an_argmax_that_a_nan_defeats_takes_one_expert_again_and_again() -> None:
    """The control of the test above: the fault, as it was published."""
    keys, ids = torch.full((1, 7), NAN), []
    for _ in range(4):
        best, at = torch.tensor(-INF), 0
        for expert in range(7):
            if keys[0, expert] > best:
                best, at = keys[0, expert], expert
        ids.append(at)
    assert ids == [0, 0, 0, 0]


@pytest.mark.parametrize("run", RUNS)
def test_a_bias_that_is_not_finite_still_gives_distinct_experts(
    run: Callable[..., Routed],
) -> None:
    inputs = inputs_at(5, 9)
    inputs["correction_bias"][[1, 3, 5]] = torch.tensor([NAN, -INF, INF])
    inputs["correction_bias"].view(torch.int32)[7] = -1
    weights, ids = run(**inputs, **CONSTANTS | {"top_k": 9})
    assert ids.sort(1).values.tolist() == [list(range(9))] * 5
    assert weights.isfinite().all()
    assert_same((weights, ids), moe_route(**inputs, **CONSTANTS | {"top_k": 9}))


@pytest.mark.parametrize("run", RUNS)
def test_negative_scores_are_ranked_and_weights_have_no_bias(run: Callable[..., Routed]) -> None:
    """A mask of 0 won against scores that the bias had made negative."""
    logits = torch.tensor([[3.0, -3.0, 1.0, 0.0, -1.0, 2.0]])
    bias = torch.tensor([-9.0, -2.0, -2.0, -9.0, -2.0, -9.0])
    constants = CONSTANTS | {"score": "sigmoid", "scale": 1.0, "renormalize": 0}
    weights, ids = run(logits=logits, correction_bias=bias, **constants)
    assert ids.tolist() == [[2, 4, 1, 0]]
    assert torch.equal(weights, arithmetic.sigmoid(logits)[:, ids[0]])


@pytest.mark.parametrize("run", RUNS)
def test_a_bias_that_bfloat16_cannot_tell_decides(run: Callable[..., Routed]) -> None:
    bias = 1.0 + torch.arange(8).float() * 2.0**-12
    assert len(set(bias.bfloat16().tolist())) == 1
    inputs = {"logits": torch.full((2, 8), 0.5), "correction_bias": bias}
    _, ids = run(**inputs, **CONSTANTS | {"score": "sigmoid"})
    assert ids.tolist() == [[7, 6, 5, 4]] * 2


@pytest.mark.parametrize("score", ["sigmoid", "sqrt-softplus"])
@pytest.mark.parametrize("run", RUNS)
def test_scores_that_are_all_zero_give_weights_of_zero(
    run: Callable[..., Routed], score: str
) -> None:
    weights, ids = run(**no_bias(torch.full((2, 8), -200.0)), **CONSTANTS | {"score": score})
    assert weights.view(torch.int32).count_nonzero() == 0
    assert ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.slow  # reserves 9 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    """The kernel sees 16 lanes of rows that are longer than that."""
    stride = (1 << 31) - 1
    logits = torch.from_numpy(np.zeros(stride + 16, np.float32))
    values = inputs_at(1, 16)["logits"][0]
    logits[stride:] = values
    weights, ids = torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64)
    sizes = {"SCORE": 0, "ROWS": 1, "WIDTH": 16, "LEVELS": 4, "SLOTS": 16}
    arguments = (logits, torch.zeros(16), weights, ids, 2, stride, 4, 1, 1.5, 0)
    launch(route_triton.route_kernel, (2,), *arguments, **sizes)
    expected = moe_route(**no_bias(values[None]), **CONSTANTS)
    assert_same(expected, (weights[1:], ids[1:]))


# --- accuracy ------------------------------------------------------------------------------------


def outside(inputs: Tensors, routed: Routed, constants: dict[str, Any]) -> float:
    """The share of weights that lie outside of their bound."""
    weights, ids = routed
    names = ("renormalize", "scale", "score")
    given = {name: constants[name] for name in names}
    value, bound = moe_route_float64(logits=inputs["logits"], topk_ids=ids, **given)
    assert bound.isfinite().float().mean() > 0.9
    return (~((weights.double() - value).abs() <= bound)).float().mean().item()


@pytest.mark.parametrize("renormalize", [0, 1])
@pytest.mark.parametrize("score", SCORES)
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


@pytest.mark.parametrize(("score", "units"), [("softmax", 80), ("sigmoid", 20), (SCORES[2], 16)])
def test_the_bound_is_some_units_in_the_last_place(score: str, units: int) -> None:
    inputs, constants = inputs_at(65, 128), CONSTANTS | {"score": score}
    _, ids = moe_route(**inputs, **constants)
    value, bound = moe_route_float64(
        logits=inputs["logits"], topk_ids=ids, renormalize=1, scale=1.5, score=score
    )
    assert (bound <= units * 2.0**-24 * value).all()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 9}, "top_k of at most the 8 experts, got 9"),
        ({"top_k": 0}, "top_k of at least 1, an int, got 0"),
        ({"top_k": 2.0}, r"top_k of at least 1, an int, got 2\.0"),
        ({"renormalize": 2}, "renormalize of 0 or 1, got 2"),
        ({"scale": 0.0}, r"a positive, finite scale, got 0\.0"),
        ({"scale": INF}, "a positive, finite scale, got inf"),
        ({"score": "relu"}, "score of softmax, sigmoid, sqrt-softplus, got 'relu'"),
        ({"score": 0}, "score of softmax, sigmoid, sqrt-softplus, got 0"),
        ({"logits": torch.zeros(2, 8).bfloat16()}, "logits in float32, got bfloat16; convert it"),
        ({"correction_bias": torch.zeros(7)}, "axis experts of 8, got 7"),
        ({"correction_bias": torch.zeros(8).bfloat16()}, "correction_bias in float32, got bf"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(
    run: Callable[..., Routed], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{**inputs_at(2, 8), **CONSTANTS, **change})


@pytest.mark.parametrize(
    ("axes", "dtype", "case", "message"),
    [
        ((8, 1, 9), "float32", "random", "top_k must be 1 to 8"),
        ((8, 1, 0), "float32", "random", "top_k must be 1 to 8"),
        ((8, 1, 2), "bfloat16", "random", "expected dtype float32 and a case of random, ties"),
        ((8, 1, 2), "float32", "nothing", "expected dtype float32 and a case of random, ties"),
    ],
)
def test_a_workload_that_cannot_be_made(
    axes: tuple[int, ...], dtype: str, case: str, message: str
) -> None:
    named = tuple(zip(("experts", "tokens", "top_k"), axes, strict=True))
    with pytest.raises(UsageError, match=message):
        MOE_ROUTE.make_inputs(Workload(op="moe_route", axes=named, dtype=dtype, case=case), 0)
