"""`moe_route` under `moe-bf16/1`: the truth in plain torch, and float64 weights with a bound."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.route import check

_FP32 = 2.0**-24
# exp is 0 below -87: a score below its exp(-87), for sqrt-softplus the root of that, is lost.
_LOST = {"softmax": 2.0**-125, "sigmoid": 2.0**-125, "sqrt-softplus": 2.0**-62}
# exp within 1.5 units, the sum and the quotient; softplus within 3.5 units, halved, and the root.
_UNITS = {"sigmoid": 4.0, "sqrt-softplus": 3.0}


def moe_route(
    *,
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    renormalize: int,
    scale: float,
    score: str,
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token, and weigh them; see MOE_ROUTE.

    Args:
        logits: [tokens, experts] float32.
        correction_bias: [experts] float32, finite; zeros for none.
        top_k: how many experts a token gets, at most all.
        renormalize: 1 divides the weights by their sum, 0 does not.
        scale: what multiplies the weights at the end.
        score: softmax, sigmoid or sqrt-softplus.

    Returns:
        topk_weights [tokens, top_k] float32 and topk_ids [tokens, top_k] int64.

    Raises:
        UsageError: an argument is not what MOE_ROUTE says.
    """
    tensors = {"logits": logits, "correction_bias": correction_bias}
    check(tensors, top_k, renormalize, scale, score)
    scores = scores_of(logits, score)
    ids = torch.sort(ordered(scores + correction_bias), dim=1, descending=True, stable=True).indices
    ids = ids[:, :top_k].contiguous()
    weights = scores.gather(1, ids)
    if renormalize:
        total = weights[:, :1]
        for slot in range(1, top_k):
            total = total + weights[:, slot : slot + 1]
        weights = weights / torch.where(total > 0.0, total, 1.0)
    return weights * float(scale), ids


def scores_of(logits: Tensor, score: str) -> Tensor:
    """The scores [tokens, experts]; those that are NaN or infinite are 0."""
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


def moe_route_float64(
    *, logits: Tensor, topk_ids: Tensor, renormalize: int, scale: float, score: str
) -> tuple[Tensor, Tensor]:
    """The exact weights of given ids, and the largest error that the contract can make.

    Args:
        logits: as for `moe_route`, and so are the constants; finite.
        topk_ids: [tokens, top_k] int64, the chosen experts.
        renormalize: see there.
        scale: see there.
        score: see there.

    Returns:
        (value, bound), both [tokens, top_k] float64: |weight - value| <= bound. The bound is
        infinite where all weights of a token may be lost below the smallest.
    """
    scores, errors = scores_float64(logits, score)
    value, error = scores.gather(1, topk_ids), errors.gather(1, topk_ids)
    if renormalize:
        total = value.sum(1, keepdim=True)
        # The sum's own additions, and a quotient of two numbers that are both off.
        lost = error.sum(1, keepdim=True) + value.shape[1] * _FP32 * total
        value = value / total
        error = (error + value * lost) / (total - lost)
        error = torch.where(total > lost, error + 2 * _FP32 * value, float("inf"))
    # The constant is rounded to float32, and so is the product.
    return value * scale, (error + 3 * _FP32 * value) * scale


def scores_float64(logits: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """The exact scores of finite logits, and the largest error of each: [tokens, experts]."""
    x = logits.double()
    if score != "softmax":
        exact = torch.sigmoid(x) if score == "sigmoid" else _softplus_float64(x).sqrt()
        return exact, 1.01 * _UNITS[score] * _FP32 * exact + _LOST[score]
    shifted = x - x.amax(1, keepdim=True)
    exact = torch.softmax(x, 1)
    # The subtraction is off by a unit of its result, and exp grows that error with it.
    units = 1.5 + shifted.clamp(min=-88.0).abs()
    depth = (logits.shape[1] - 1).bit_length()
    of_the_sum = (exact * units).sum(1, keepdim=True) + depth
    error = 1.01 * (units + of_the_sum + 1.0) * _FP32 * exact
    return exact, error + logits.shape[1] * _LOST[score]


def _softplus_float64(x: Tensor) -> Tensor:
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))
