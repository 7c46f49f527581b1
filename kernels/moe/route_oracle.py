"""The exact weights of a router in float64, and the largest error that the contract can make."""

import torch
from torch import Tensor

from bitgate.kernels.moe.route_rules import SELECTED

_FP32 = 2.0**-24
# exp is 0 below -87: a score below its exp(-87), for sqrt-softplus the root of that, is lost.
_LOST = {
    "softmax": 2.0**-125,
    "sigmoid": 2.0**-125,
    "sqrt-softplus": 2.0**-62,
    SELECTED: 2.0**-125,
}
# exp within 1.5 units, the sum and the quotient; softplus within 3.5 units, halved, and the root.
_UNITS = {"sigmoid": 4.0, "sqrt-softplus": 3.0}


def moe_route_float64(
    *, logits: Tensor, topk_ids: Tensor, renormalize: int, scale: float, score: str
) -> tuple[Tensor, Tensor]:
    """The exact weights of given ids, and the largest error that the contract can make.

    Args:
        logits: as for `moe_route`, and so are the constants; finite. The weights of
            `moe_route_hash` are these, too.
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
    if score == SELECTED:
        # The subtraction is off by a unit of its result, and exp grows that error with it.
        shifted = value - value.amax(1, keepdim=True)
        units = 1.5 + shifted.clamp(min=-88.0).abs()
        value = shifted.exp()
        error = 1.01 * units * _FP32 * value + _LOST[score]
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
    """The exact scores of finite logits, and the largest error of each: [tokens, experts].

    Of softmax-selected they are the logits, as they are what is chosen by.
    """
    x = logits.double()
    if score == SELECTED:
        return x, torch.zeros_like(x)
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
