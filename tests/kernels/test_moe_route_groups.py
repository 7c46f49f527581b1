"""moe_route with groups of experts: who may be chosen, ties, NaN, and what published faults do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import route_triton
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_data import CASES
from bitgate.kernels.moe.route_reference import moe_route, scores_of
from bitgate.kernels.moe.route_rules import SCORES
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload

Tensor = torch.Tensor
Routed = tuple[Tensor, Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ROUTE.implementations]
NAN, INF = float("nan"), float("inf")
# DeepSeek-V3, and DeepSeek-V2 with fewer groups kept.
V3: dict[str, Any] = {
    "top_k": 8,
    "renormalize": 1,
    "scale": 2.5,
    "score": "sigmoid",
    "groups": 8,
    "keep_groups": 4,
    "group_rank": "top2",
}
V2 = V3 | {"score": "softmax", "group_rank": "max", "top_k": 6, "keep_groups": 3, "scale": 16.0}


def inputs_at(tokens: int, experts: int, case: str = "random", top_k: int = 8) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_route", axes=axes, dtype="float32", case=case)
    return MOE_ROUTE.make_inputs(workload, 0)


def assert_same(expected: Routed, actual: Routed) -> None:
    first, second = MOE_ROUTE.named_outputs(expected), MOE_ROUTE.named_outputs(actual)
    result = compare_tensors("route", first, second)
    assert result.equal, result.mismatches


def by_hand(logits: Tensor, correction_bias: Tensor, rules: dict[str, Any]) -> list[list[int]]:
    """The ids, with the scores of the replay and nothing else of it."""
    scores = scores_of(logits, rules["score"])
    keys = (scores + correction_bias).tolist()
    size = logits.shape[1] // rules["groups"]
    found = []
    for row in keys:
        worth = []
        for first in range(0, len(row), size):
            best = sorted(row[first : first + size], reverse=True)
            # A sum of two float32 in float64, rounded, is the sum in float32.
            two = torch.tensor(best[0] + best[1], dtype=torch.float32).item()
            worth.append(two if rules["group_rank"] == "top2" else best[0])
        kept = sorted(range(rules["groups"]), key=lambda g: (-worth[g], g))[: rules["keep_groups"]]
        mine = [e for e in range(len(row)) if e // size in kept]
        found.append(sorted(mine, key=lambda e: (-row[e], e))[: rules["top_k"]])
    return found


@pytest.mark.parametrize("rules", [V3, V2], ids=["V3", "V2"])
@pytest.mark.parametrize("case", CASES)
def test_the_ids_are_those_of_a_sort_by_hand(case: str, rules: dict[str, Any]) -> None:
    for tokens, experts in ((17, 256), (5, 160), (9, 64)):
        inputs = inputs_at(tokens, experts, case, rules["top_k"])
        expected = moe_route(**inputs, **rules)
        assert expected[1].tolist() == by_hand(**inputs, rules=rules)
        assert all(len(set(row)) == rules["top_k"] for row in expected[1].tolist())
    assert_same(expected, route_triton.moe_route(**inputs, **rules))


@pytest.mark.parametrize(
    ("experts", "groups", "keep_groups", "top_k", "score", "group_rank"),
    [
        (24, 3, 2, 5, "softmax", "top2"),
        (16, 8, 1, 2, "softmax-selected", "max"),
        (16, 8, 8, 16, "sigmoid", "top2"),
        (60, 20, 3, 4, "sqrt-softplus", "max"),
        (6, 2, 1, 3, "softmax-selected", "top2"),
        (384, 2, 1, 3, "sigmoid", "max"),
    ],
)
def test_other_groups(
    experts: int, groups: int, keep_groups: int, top_k: int, score: str, group_rank: str
) -> None:
    inputs = inputs_at(6, experts, "ties", top_k)
    inputs["logits"][0] = NAN
    inputs["logits"][1, ::3] = -INF
    rules = V3 | {"groups": groups, "keep_groups": keep_groups, "top_k": top_k}
    rules |= {"score": score, "group_rank": group_rank}
    weights, ids = moe_route(**inputs, **rules)
    assert_same((weights, ids), route_triton.moe_route(**inputs, **rules))
    used = {tuple(sorted({e // (experts // groups) for e in row})) for row in ids.tolist()}
    assert all(len(one) <= keep_groups for one in used)
    assert weights.isfinite().all()


@pytest.mark.parametrize("run", RUNS)
def test_all_groups_are_no_groups(run: Callable[..., Routed]) -> None:
    inputs = inputs_at(33, 64)
    one = V3 | {"groups": 1, "keep_groups": 1, "group_rank": "none"}
    assert_same(run(**inputs, **one), run(**inputs, **V3 | {"keep_groups": 8}))


@pytest.mark.parametrize("run", RUNS)
def test_of_equal_groups_the_lower_counts(run: Callable[..., Routed]) -> None:
    inputs = {"logits": torch.zeros(2, 24), "correction_bias": torch.zeros(24)}
    _, ids = run(**inputs, **V3)
    assert ids.tolist() == [list(range(8))] * 2
    # The last two groups are better, and of the others the first two are kept.
    inputs["logits"][:, 18:] = 1.0
    _, ids = run(**inputs, **V3 | {"top_k": 12})
    assert ids.tolist() == [[*range(18, 24), *range(6)]] * 2


@pytest.mark.parametrize("run", RUNS)
def test_no_tokens_give_no_weights(run: Callable[..., Routed]) -> None:
    weights, ids = run(**inputs_at(0, 16), **V3)
    assert (weights.shape, ids.shape) == ((0, 8), (0, 8))


@pytest.mark.parametrize("run", RUNS)
def test_broken_logits_and_a_broken_bias_give_distinct_experts(run: Callable[..., Routed]) -> None:
    inputs = inputs_at(6, 16)
    inputs["logits"][0], inputs["logits"][1], inputs["logits"][2] = NAN, -INF, INF
    inputs["logits"][3, ::2], inputs["logits"][4, :8] = NAN, -INF
    broken = inputs | {"correction_bias": torch.tensor([NAN, INF, -INF, 0.0] * 4)}
    for rank, given in (("max", inputs), ("top2", inputs), ("top2", broken)):
        rules = V3 | {"group_rank": rank}
        weights, ids = run(**given, **rules)
        assert all(len(set(row)) == 8 for row in ids.tolist())
        assert all(len({e // 2 for e in row}) == 4 for row in ids.tolist())
        assert weights.isfinite().all()
        assert_same((weights, ids), moe_route(**given, **rules))


# --- published faults ----------------------------------------------------------------------------


def chosen_by(
    logits: Tensor,
    correction_bias: Tensor,
    *,
    masked: float = -INF,
    worth: Callable[[Tensor], Tensor] | None = None,
    bias_in_rank: bool = True,
    higher: bool = False,
) -> Tensor:
    """The ids under V3, with one part replaced."""
    keys = scores_of(logits, "sigmoid") + correction_bias
    ranked = keys if bias_in_rank else keys - correction_bias
    grouped = ranked.view(len(keys), 8, -1)
    rank = grouped.topk(2, 2).values.sum(2) if worth is None else worth(grouped)
    if higher:
        kept = 7 - torch.sort(rank.flip(1), dim=1, descending=True, stable=True).indices[:, :4]
    else:
        kept = torch.sort(rank, dim=1, descending=True, stable=True).indices[:, :4]
    open_to = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, kept, value=True)
    keys = torch.where(open_to.repeat_interleave(keys.shape[1] // 8, 1), keys, masked)
    return torch.sort(keys, dim=1, descending=True, stable=True).indices[:, :8]


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "masked with 0": ("negative", {"masked": 0.0}),
    "groups by the largest": ("random", {"worth": lambda x: x.amax(2)}),
    "groups by the sum of all": ("random", {"worth": lambda x: x.sum(2)}),
    "groups ranked without the bias": ("random", {"bias_in_rank": False}),
    "the higher of equal groups": ("ties", {"higher": True}),
}


def test_the_model_of_the_faults_is_the_truth() -> None:
    for case in ("random", "ties", "negative"):
        inputs = inputs_at(64, 64, case)
        assert torch.equal(chosen_by(**inputs), moe_route(**inputs, **V3)[1])


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(fault: str) -> None:
    case, change = FAULTS[fault]
    inputs = inputs_at(64, 64, case)
    assert not torch.equal(chosen_by(**inputs, **change), moe_route(**inputs, **V3)[1])


def test_a_bias_in_bfloat16_chooses_others() -> None:
    """E=64 in 8 groups, as it was published."""
    inputs = inputs_at(256, 64)
    rounded = inputs | {"correction_bias": inputs["correction_bias"].bfloat16().float()}
    assert not torch.equal(moe_route(**inputs, **V3)[1], moe_route(**rounded, **V3)[1])


# --- the matrix ----------------------------------------------------------------------------------

TOKENS = (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 257)
SLOTS = (1, 2, 3, 4, 6, 8, 9, 16)
EXPERTS = (1, 8, 60, 64, 65, 128, 256, 384, 512, 896)
# groups, keep_groups, group_rank; those that do not divide the experts are left to one group.
GROUPS = ((1, 1, "none"), (8, 4, "top2"), (4, 3, "max"), (2, 1, "top2"))


def rules_at(experts: int, step: int) -> dict[str, Any]:
    groups, keep_groups, rank = GROUPS[step % len(GROUPS)]
    size = experts // groups
    if experts % groups or size < 2:
        groups, keep_groups, rank, size = 1, 1, "none", experts
    slots = [k for k in SLOTS if k <= size * keep_groups]
    return {
        "top_k": slots[step % len(slots)],
        "renormalize": 1,
        "scale": 2.5,
        "score": SCORES[(step // 2) % len(SCORES)],
        "groups": groups,
        "keep_groups": keep_groups,
        "group_rank": rank,
    }


@pytest.mark.parametrize("step", range(12))
def test_a_selection_of_the_matrix(step: int) -> None:
    experts, rules = EXPERTS[step % len(EXPERTS)], rules_at(EXPERTS[step % len(EXPERTS)], step)
    tokens, case = TOKENS[step % len(TOKENS)], CASES[step % len(CASES)]
    inputs = inputs_at(tokens, experts, case, rules["top_k"])
    expected = moe_route(**inputs, **rules)
    assert_same(expected, route_triton.moe_route(**inputs, **rules))


@pytest.mark.slow  # 42 points in the interpreter for each case and groups
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_the_whole_matrix(case: str, group: int) -> None:
    for at, tokens in enumerate(TOKENS):
        for experts in (EXPERTS[(at + 3 * step) % len(EXPERTS)] for step in range(3)):
            rules = rules_at(experts, 4 * (at + experts) + group)
            rules["score"] = SCORES[(at + experts // 4) % len(SCORES)]
            inputs = inputs_at(tokens, experts, case, rules["top_k"])
            expected = moe_route(**inputs, **rules)
            assert_same(expected, route_triton.moe_route(**inputs, **rules))


@pytest.mark.slow  # as the matrix above
@pytest.mark.parametrize("suite", [name for name in MOE_ROUTE.suites if name != "default"])
def test_the_other_suites(suite: str) -> None:
    """Every case with the rules of a model, where its groups divide the experts."""
    for step, workload in enumerate(MOE_ROUTE.suites[suite]):
        inputs = MOE_ROUTE.make_inputs(workload, 0)
        rules = rules_at(workload.axis("experts"), step) | {"top_k": workload.axis("top_k")}
        rules |= {"groups": 1, "keep_groups": 1, "group_rank": "none"}
        expected = moe_route(**inputs, **rules)
        assert_same(expected, route_triton.moe_route(**inputs, **rules))
