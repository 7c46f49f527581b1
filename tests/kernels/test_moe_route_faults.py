"""moe_route on what has broken routers: ties, NaN, negative scores, a bias in bfloat16, zeros."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import route_triton
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_reference import moe_route
from bitgate.kernels.moe.route_rules import SCORES, SELECTED
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Routed = tuple[Tensor, Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ROUTE.implementations]
CONSTANTS: dict[str, Any] = {"top_k": 4, "renormalize": 1, "scale": 1.5, "score": "softmax"}
NAN, INF = float("nan"), float("inf")


def inputs_at(tokens: int, experts: int) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", 4))
    return MOE_ROUTE.make_inputs(Workload(op="moe_route", axes=axes, dtype="float32"), 0)


def no_bias(logits: Tensor) -> Tensors:
    return {"logits": logits, "correction_bias": torch.zeros(logits.shape[1])}


def assert_same(expected: Routed, actual: Routed) -> None:
    first, second = MOE_ROUTE.named_outputs(expected), MOE_ROUTE.named_outputs(actual)
    result = compare_tensors("route", first, second)
    assert result.equal, result.mismatches


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
    sizes = {"SCORE": 0, "RANK": 0, "ROWS": 1, "WIDTH": 16, "LEVELS": 4, "GROUPS": 16, "SLOTS": 16}
    rules = (4, 1, 1, stride, 1, 1.5, 0)
    arguments = (logits, torch.zeros(16), weights, ids, 2, stride, *rules)
    launch(route_triton.route_kernel, (2,), *arguments, **sizes)
    expected = moe_route(**no_bias(values[None]), **CONSTANTS)
    assert_same(expected, (weights[1:], ids[1:]))


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 9}, "top_k of at most the 8 experts, got 9"),
        ({"top_k": 0}, "top_k of at least 1, an int, got 0"),
        ({"top_k": 2.0}, r"top_k of at least 1, an int, got 2\.0"),
        ({"top_k": True}, "top_k of at least 1, an int, got True"),
        ({"top_k": None}, "top_k of at least 1, an int, got None"),
        ({"top_k": "4"}, "top_k of at least 1, an int, got '4'"),
        ({"top_k": 2**70}, "top_k of at most the 8 experts, got 1180591620717411303424"),
        ({"top_k": 2**20000}, "top_k of at most the 8 experts, got an integer of 20001 bits"),
        ({"renormalize": 2}, "renormalize of 0 or 1, got 2"),
        ({"renormalize": True}, "renormalize of 0 or 1, got True"),
        ({"renormalize": 1.0}, r"renormalize of 0 or 1, got 1\.0"),
        ({"renormalize": 0, "score": SELECTED}, "renormalize of 1 for softmax-selected, got 0"),
        ({"scale": 0.0}, r"a scale that is a positive, finite number in float32, got 0\.0"),
        ({"scale": INF}, "finite number in float32, got inf"),
        ({"scale": NAN}, "finite number in float32, got nan"),
        ({"scale": 1e39}, r"finite number in float32, got 1e\+39"),
        ({"scale": 1e-39}, "finite number in float32, got 1e-39"),
        ({"scale": 10**400}, "finite number in float32, got an integer of 1329 bits"),
        ({"scale": True}, "finite number in float32, got True"),
        ({"scale": "1"}, "finite number in float32, got '1'"),
        ({"scale": None}, "finite number in float32, got None"),
        ({"score": "relu"}, "score of softmax, sigmoid, sqrt-softplus, softmax-selected, got 'r"),
        ({"score": 0}, "score of softmax, sigmoid, sqrt-softplus, softmax-selected, got 0"),
        ({"score": torch.zeros(2)}, "score of softmax, .*got tensor"),
        ({"groups": 0}, "groups of at least 1, an int, got 0"),
        ({"groups": True}, "groups of at least 1, an int, got True"),
        ({"groups": 3, "group_rank": "max"}, "groups that divide the 8 experts, got 3"),
        ({"groups": 16, "group_rank": "max"}, "groups that divide the 8 experts, got 16"),
        ({"groups": 8, "keep_groups": 4, "group_rank": "top2"}, "at least 2 experts in a group"),
        ({"groups": 4, "group_rank": "none"}, "max or top2 for more, got none for 4"),
        ({"group_rank": "top2"}, "group_rank none for one group.*got top2 for 1"),
        ({"group_rank": "sum"}, "group_rank of none, max, top2, got 'sum'"),
        ({"group_rank": None}, "group_rank of none, max, top2, got None"),
        ({"keep_groups": 2}, "keep_groups of at most the 1 groups, got 2"),
        ({"keep_groups": 1.0}, r"keep_groups of at least 1, an int, got 1\.0"),
        (
            {"groups": 4, "keep_groups": 1, "group_rank": "max"},
            "at most the 2 experts of the 1 groups that are kept, got 4",
        ),
        ({"logits": None}, "logits as a torch tensor, got NoneType"),
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
