"""`moe_route` under `moe-bf16/1`: the truth in plain torch."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.route import check
from bitgate.kernels.moe.route_rules import SELECTED, RouteRules

_LOWEST = torch.iinfo(torch.int32).min


def moe_route(
    *,
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    renormalize: int,
    scale: float,
    score: str,
    groups: int = 1,
    keep_groups: int = 1,
    group_rank: str = "none",
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token, and weigh them; see MOE_ROUTE.

    Args:
        logits: [tokens, experts] float32.
        correction_bias: [experts] float32, finite; zeros for none.
        top_k: how many experts a token gets, at most all of the kept groups.
        renormalize: 1 divides the weights by their sum, 0 does not.
        scale: what multiplies the weights at the end.
        score: softmax, sigmoid, sqrt-softplus or softmax-selected.
        groups: how many groups of equal size the experts are parted into.
        keep_groups: how many of them may be chosen from.
        group_rank: by what groups are ranked, max or top2; none for one group.

    Returns:
        topk_weights [tokens, top_k] float32 and topk_ids [tokens, top_k] int64.

    Raises:
        UsageError: an argument is not what MOE_ROUTE says.
    """
    rules = RouteRules(
        op="moe_route",
        top_k=top_k,
        renormalize=renormalize,
        scale=scale,
        score=score,
        groups=groups,
        keep_groups=keep_groups,
        group_rank=group_rank,
    )
    check({"logits": logits, "correction_bias": correction_bias}, rules)
    scores = scores_of(logits, score)
    biased = scores + correction_bias
    keys = ordered(biased)
    if groups > 1:
        keys = torch.where(kept(biased, rules), keys, _LOWEST)
    ids = torch.sort(keys, dim=1, descending=True, stable=True).indices[:, :top_k].contiguous()
    return weigh(scores.gather(1, ids), rules), ids


def kept(biased: Tensor, rules: RouteRules) -> Tensor:
    """Whether each expert [tokens, experts] is in one of the groups that may be chosen from."""
    tokens, experts = biased.shape
    grouped = biased.view(tokens, rules.groups, experts // rules.groups)
    best = torch.sort(ordered(grouped), dim=2, descending=True).indices
    rank = grouped.gather(2, best[:, :, :1])[:, :, 0]
    if rules.group_rank == "top2":
        rank = rank + grouped.gather(2, best[:, :, 1:2])[:, :, 0]
    order = torch.sort(ordered(rank), dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(rank, dtype=torch.bool)
    chosen.scatter_(1, order[:, : rules.keep_groups], value=True)
    return chosen.repeat_interleave(experts // rules.groups, 1)


def weigh(chosen: Tensor, rules: RouteRules) -> Tensor:
    """The weights [tokens, top_k] from the scores of the chosen experts, slots ascending."""
    weights = chosen
    if rules.score == SELECTED:
        largest = chosen.amax(1, keepdim=True)
        weights = arithmetic.exp(chosen - torch.where(largest > float("-inf"), largest, 0.0))
    if rules.renormalize:
        total = weights[:, :1]
        for slot in range(1, rules.top_k):
            total = total + weights[:, slot : slot + 1]
        weights = weights / torch.where(total > 0.0, total, 1.0)
    return weights * float(rules.scale)


def scores_of(logits: Tensor, score: str) -> Tensor:
    """The scores [tokens, experts]; those that are NaN or infinite are 0.

    Of softmax-selected they are the logits, and -inf in rows with a NaN or +inf.
    """
    if score == SELECTED:
        usable = (logits < float("inf")).all(1, keepdim=True)
        return torch.where(usable, logits, float("-inf"))
    if score == "softmax":
        return softmax(logits)
    if score == "sigmoid":
        scores = arithmetic.sigmoid(logits)
    else:
        scores = arithmetic.sqrt(arithmetic.softplus(logits))
    return torch.where(scores < float("inf"), scores, 0.0)


def softmax(logits: Tensor) -> Tensor:
    """exp(logit - largest) over its sum; 0 in rows where IEEE arithmetic would give NaN."""
    usable = logits < float("inf")
    clean = torch.where(usable, logits, float("-inf"))
    largest = clean.amax(1, keepdim=True)
    regular = usable.all(1, keepdim=True) & (largest > float("-inf"))
    shifted = clean - torch.where(regular, largest, 0.0)
    grown = arithmetic.exp(torch.where(regular, shifted, float("-inf")))
    lanes = 1 << (logits.shape[1] - 1).bit_length()
    padded = torch.nn.functional.pad(grown, (0, lanes - logits.shape[1]))
    total = arithmetic.tree(padded)[:, None]
    return torch.where(regular, grown / torch.where(regular, total, 1.0), 0.0)


def ordered(x: Tensor) -> Tensor:
    """Int32 keys that compare as float32 x does, and give every NaN a place: above infinity."""
    bits = arithmetic.canonical(x).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
