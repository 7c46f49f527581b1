"""`moe_combine_weighted` under `moe-gather/1`: the truth in torch, and float64 with a bound."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.combine_reference import kept
from bitgate.kernels.moe.combine_weighted import check

_BF16 = 2.0**-8
_FP32 = 2.0**-24
_FP64 = 2.0**-53
# Half the smallest float32, which a product may lose, and half the smallest bfloat16.
_PRODUCT = 2.0**-150
_SMALLEST = 2.0**-134


def moe_combine_weighted(
    *, y: Tensor, topk_ids: Tensor, topk_weights: Tensor, experts: int
) -> Tensor:
    """The sum of each token's weighted rows; see MOE_COMBINE_WEIGHTED.

    Args:
        y: [tokens, top_k, hidden] bfloat16, not weighted yet.
        topk_ids: [tokens, top_k] int64; slots with an id below 0 or from `experts` on are masked.
        topk_weights: [tokens, top_k] float32.
        experts: how many there are, 1 to 2^31 - 1.

    Returns:
        [tokens, hidden] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_COMBINE_WEIGHTED says.
    """
    check(y, topk_ids, topk_weights, experts)
    tokens, top_k, hidden = y.shape
    acc = y.new_zeros(tokens, hidden, dtype=torch.float32)
    for slot in range(top_k):
        product = y[:, slot].float() * topk_weights[:, slot, None]
        acc = torch.where(kept(topk_ids[:, slot], experts)[:, None], acc + product, acc)
    return arithmetic.round_bf16(acc)


def moe_combine_weighted_float64(
    *, y: Tensor, topk_ids: Tensor, topk_weights: Tensor, experts: int
) -> tuple[Tensor, Tensor]:
    """The exact sums and the largest error that the contract can make.

    A product is exact in float64, and in float32 within 2^-24 of itself; each of k additions loses
    2^-24 of a partial sum, and the rounding to bfloat16 2^-8 of the result.

    Args:
        y: as for `moe_combine_weighted`, and so are the others; slots that count are finite.
        topk_ids: see there.
        topk_weights: see there.
        experts: see there.

    Returns:
        (value, bound), both [tokens, hidden] float64: |out - value| <= bound.
    """
    products = y.double() * topk_weights.double()[:, :, None]
    terms = torch.where(kept(topk_ids, experts)[:, :, None], products, 0.0)
    value, magnitude = terms.sum(1), terms.abs().sum(1)
    top_k = y.shape[1]
    # (1 + u)^(k + 1) - 1 <= 1.01 (k + 1) u for every k below 2^16, with the float64 sum in u.
    error = 1.01 * ((top_k + 1) * (_FP32 + _FP64) * magnitude + top_k * _PRODUCT)
    return value, error + _BF16 * (value.abs() + error) + _SMALLEST
