"""Faults of routing: masks, groups, ties, NaN, sums of zero, and a bias that was rounded.

Target `moe_route`. Besides the shared checks: `broken` feeds NaN and infinities and wants distinct
experts and finite weights of every token, `refuses` wants groups that do not divide the experts
refused, and `buckets` sweeps the numbers of tokens at which engines change kernels.
"""

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_reference import kept, moe_route, ordered, scores_of, weigh
from bitgate.kernels.moe.route_rules import RouteRules
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run
from bitgate.parity.faults.checks import Rows, Sample
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

_OP = "moe_route"
_ROWS = Rows(inputs=("logits",), outputs=("topk_weights", "topk_ids"))
# An engine's kernel for long prompts starts at 54273 tokens; scaled to what runs here.
_LONG = 64
_PLAIN: Constants = {"top_k": 4, "renormalize": 1, "scale": 2.5, "score": "sigmoid"}
_GROUPED: Constants = {**_PLAIN, "groups": 4, "keep_groups": 2, "group_rank": "top2"}


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""
    truth = checks.into(MOE_ROUTE, moe_route)
    target = checks.operator(
        MOE_ROUTE,
        MOE_BF16_1.name,
        _every,
        _some,
        checks.alone(_some, _ROWS),
        checks.strided(_some),
        checks.bits(truth, _buckets, name="buckets"),
        Check(name="broken", look=_broken),
        checks.refuses(_refused, UsageError),
    )
    return Area(name="routing", targets=(target,), faults=FAULTS)


# --- samples and the operator's own check ---------------------------------------------------------


def _sample(
    tokens: int, experts: int, case: str = "random", constants: Constants = _PLAIN
) -> Sample:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", 4))
    workload = Workload(op=_OP, axes=axes, dtype="float32", case=case)
    groups = f" in {constants['groups']} groups" if "groups" in constants else ""
    return Sample(
        name=f"{workload.key}{groups}",
        given=MOE_ROUTE.make_inputs(workload, 0),
        constants=constants,
    )


@cache
def _every() -> tuple[Sample, ...]:
    return (
        *checks.suite(MOE_ROUTE),
        _sample(9, 32, constants=_GROUPED),
        _sample(9, 32, "negative", _GROUPED),
        _sample(9, 48, "ties", _GROUPED),
    )


@cache
def _some() -> tuple[Sample, ...]:
    return (_sample(9, 60), _sample(7, 60, constants=_GROUPED))


@cache
def _buckets() -> tuple[Sample, ...]:
    return tuple(_sample(tokens, 96) for tokens in (1, 2, 3, 4, 5, 8, 9, 16, 17, _LONG, _LONG + 1))


def _refused() -> list[Sample]:
    sample = _sample(2, 8)
    groups = ({"groups": 8, "keep_groups": 4}, {"groups": 3, "keep_groups": 2})
    return [
        Sample(
            name=f"8 experts in {one['groups']} groups ranked by their two best",
            given=sample.given,
            constants={**_PLAIN, **one, "group_rank": "top2"},
        )
        for one in groups
    ]


def _broken(new: New) -> str | None:
    run = new()

    def findings() -> Iterator[str | None]:
        for constants in (_PLAIN, {**_PLAIN, "score": "softmax"}, _GROUPED):
            for case in ("padding", "vanishing"):
                sample = _sample(12, 60, case, constants)
                made = checks.fresh(run, sample)
                yield _distinct(f"{sample.name}, {constants['score']}", made, 60)

    return checks.first(findings())


def _distinct(where: str, made: Tensors, experts: int) -> str | None:
    for token, ids in enumerate(made["topk_ids"].tolist()):
        if len(set(ids)) != len(ids) or not all(0 <= one < experts for one in ids):
            return f"{where}: token {token} has the experts {ids}"
    if not bool(made["topk_weights"].isfinite().all()):
        return f"{where}: a weight is not finite"
    return None


# --- the faults -----------------------------------------------------------------------------------


def _answer(memory: Memory, weights: Tensor, ids: Tensor) -> Tensors:
    return {
        "topk_weights": memory.take("topk_weights", tuple(weights.shape), weights.dtype).copy_(
            weights
        ),
        "topk_ids": memory.take("topk_ids", tuple(ids.shape), ids.dtype).copy_(ids),
    }


def _rules(constants: Constants) -> RouteRules:
    return RouteRules(op=_OP, **constants)  # type: ignore[arg-type]


def _by_keys(
    keys: Callable[[Tensor, Tensor, RouteRules], Tensor],
) -> Callable[[Run, Fired], Run]:
    """A plant that ranks by other keys, made of (scores, bias, rules); fires where they choose."""

    def plant(correct: Run, fired: Fired) -> Run:
        def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
            made = correct(given, constants, Memory())
            rules = _rules(constants)
            scores = scores_of(given["logits"], rules.score)
            wrong = keys(scores, given["correction_bias"], rules)
            ids = torch.sort(wrong, dim=1, descending=True, stable=True).indices[:, : rules.top_k]
            fired(bool((ids != made["topk_ids"]).any()))
            return _answer(memory, weigh(scores.gather(1, ids), rules), ids)

        return run

    return plant


def _masked_by_zero(scores: Tensor, bias: Tensor, rules: RouteRules) -> Tensor:
    keys = scores + bias
    return keys if rules.groups == 1 else torch.where(kept(keys, rules), keys, 0.0)


def _groups_by_max(scores: Tensor, bias: Tensor, rules: RouteRules) -> Tensor:
    keys = scores + bias
    if rules.groups == 1:
        return keys
    grouped = keys.view(len(keys), rules.groups, -1)
    order = torch.sort(grouped.amax(2), dim=1, descending=True, stable=True).indices
    chosen = torch.zeros(len(keys), rules.groups, dtype=torch.bool)
    chosen.scatter_(1, order[:, : rules.keep_groups], value=True)
    inside = chosen.repeat_interleave(grouped.shape[2], 1)
    return torch.where(inside, keys, float("-inf"))


def _bias_in_bfloat16(scores: Tensor, bias: Tensor, rules: RouteRules) -> Tensor:
    keys = (scores.bfloat16() + bias.bfloat16()).float()
    return keys if rules.groups == 1 else torch.where(kept(keys, rules), keys, float("-inf"))


def _higher_of_equal(scores: Tensor, bias: Tensor, rules: RouteRules) -> Tensor:
    """Of equal keys the higher id: every key is one more than twice those that are lower."""
    keys = ordered(scores + bias).long()
    if rules.groups > 1:
        keys = torch.where(kept(scores + bias, rules), keys, -(1 << 40))
    return keys * keys.shape[1] + torch.arange(keys.shape[1])


def _nan_is_expert_zero(correct: Run, fired: Fired) -> Run:
    """No NaN is larger than the largest so far, so that expert 0 stays the best in every round."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        rows = given["logits"].isnan().all(1)
        if fired(bool(rows.any())):
            made["topk_ids"][rows] = 0
        return made

    return run


def _padding_is_candidate(correct: Run, fired: Fired) -> Run:
    """Lanes beyond a group that is no power of two tie with scores of 0, and have index 0."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        groups = int(constants.get("groups", 1))
        size = given["logits"].shape[1] // groups
        rows = (~given["logits"].isfinite()).any(1)[:, None] & (made["topk_weights"] == 0)
        if fired(groups > 1 and size & (size - 1) != 0 and bool(rows.any())):
            made["topk_ids"][rows] = 0
        return made

    return run


def _any_groups(correct: Run, fired: Fired) -> Run:
    """Groups that do not fit are answered, as one group."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        groups, experts = int(constants.get("groups", 1)), given["logits"].shape[1]
        if fired(experts % groups != 0 or (groups > 1 and experts // groups < 2)):
            constants = {**constants, "groups": 1, "keep_groups": 1, "group_rank": "none"}
        return correct(given, constants, memory)

    return run


def _long_prompt(correct: Run, fired: Fired) -> Run:
    """The kernel for long prompts sees as many experts as the power of two below."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        tokens, experts = given["logits"].shape
        seen = 1 << (experts.bit_length() - 1)
        if fired(tokens > _LONG and seen != experts):
            logits = given["logits"].clone()
            logits[:, seen:] = float("-inf")
            bias = given["correction_bias"].clone()
            bias[seen:] = -1e30
            given = {"logits": logits, "correction_bias": bias}
        return correct(given, constants, memory)

    return run


def _zero_by_zero(correct: Run, fired: Fired) -> Run:
    """The sum of the weights is not looked at before it divides."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        none = (made["topk_weights"] == 0).all(1)
        if constants["renormalize"] and fired(bool(none.any())):
            made["topk_weights"][none] = float("nan")
        return made

    return run


def _fresh(sample: Callable[[], Sample]) -> Callable[[Run], Tensors]:
    return lambda run: checks.fresh(run, sample())


def _answered(run: Run) -> list[str]:
    def answer(sample: Sample) -> str:
        try:
            return str(checks.fresh(run, sample)["topk_ids"].tolist())
        except UsageError:
            return "refused"

    return [answer(sample) for sample in _refused()]


FAULTS = (
    Fault(
        id="B9",
        title="NaN logits give a token expert 0 in every slot, and a wild pointer later",
        trigger="a row of NaN logits: padding",
        sources=("vllm PRs 39391, 39593, issues 39288, 39244",),
        target=_OP,
        plant=_nan_is_expert_zero,
        witness=_fresh(lambda: _sample(12, 60, "padding")),
        caught_by=("fixtures", "bits", "broken"),
    ),
    Fault(
        id="B26a",
        title="groups that are left out are masked by 0 instead of minus infinity",
        trigger="negative biased scores",
        sources=("vllm PR 13474",),
        target=_OP,
        plant=_by_keys(_masked_by_zero),
        witness=_fresh(lambda: _sample(9, 32, "negative", _GROUPED)),
        caught_by=("fixtures", "bits"),
    ),
    Fault(
        id="B26b",
        title="groups are ranked by their best score instead of the sum of the two best",
        trigger="groups ranked by two scores",
        sources=("vllm PR 13474",),
        target=_OP,
        plant=_by_keys(_groups_by_max),
        witness=_fresh(lambda: _sample(9, 32, constants=_GROUPED)),
        caught_by=("fixtures", "bits"),
    ),
    Fault(
        id="B27",
        title="lanes that pad a group are candidates, with index 0",
        trigger="a group size that is no power of two, and scores that are not finite",
        sources=("vllm PR 32058, its review",),
        target=_OP,
        plant=_padding_is_candidate,
        witness=_fresh(lambda: _sample(12, 60, "padding", _GROUPED)),
        caught_by=("broken",),
    ),
    Fault(
        id="B28",
        title="score and bias are added in bfloat16, which chooses other experts",
        trigger="scores closer than bfloat16 tells",
        sources=("FlagGems issue 4245",),
        target=_OP,
        plant=_by_keys(_bias_in_bfloat16),
        witness=_fresh(lambda: _sample(9, 60)),
        caught_by=("fixtures", "bits", "buckets"),
    ),
    Fault(
        id="B29",
        title="experts that no groups divide, or groups of one, are answered",
        trigger="8 groups of 8 experts",
        sources=("vllm PR 29439",),
        target=_OP,
        plant=_any_groups,
        witness=_answered,
        caught_by=("refuses",),
    ),
    Fault(
        id="B30",
        title="the kernel for long prompts leaves experts out where their number is no power of 2",
        trigger="384 experts, more than 54272 tokens",
        sources=("ROCm/aiter PR 2359",),
        target=_OP,
        plant=_long_prompt,
        witness=_fresh(lambda: _sample(_LONG + 1, 96)),
        caught_by=("buckets",),
        note="long from 65 tokens on, and 96 experts",
    ),
    Fault(
        id="B31",
        title="scores that are all zero are divided by their sum",
        trigger="very negative logits under sigmoid",
        sources=("flashinfer PR 3946",),
        target=_OP,
        plant=_zero_by_zero,
        witness=_fresh(lambda: _sample(5, 16, "vanishing")),
        caught_by=("fixtures", "bits", "broken"),
    ),
    Fault(
        id="C4",
        title="of equal scores another expert than the lowest",
        trigger="equal scores at the cut-off, as logits in bfloat16 have them",
        sources=("vllm PR 52679",),
        target=_OP,
        plant=_by_keys(_higher_of_equal),
        witness=_fresh(lambda: _sample(9, 64, "ties")),
        caught_by=("fixtures", "bits"),
    ),
)
