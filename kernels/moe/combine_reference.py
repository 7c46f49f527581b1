"""`moe_combine` under `moe-bf16/1`: the truth in plain torch, and float64 with a bound."""

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.combine import check

_BF16 = 2.0**-8
_FP32 = 2.0**-24
_FP64 = 2.0**-53


def moe_combine(*, y: Tensor, topk_ids: Tensor, experts: int, accumulate: str = "fp32") -> Tensor:
    """The sum of each token's rows; see MOE_COMBINE.

    Args:
        y: [tokens, top_k, hidden] bfloat16, weighted already.
        topk_ids: [tokens, top_k] int64; slots with an id below 0 or from `experts` on are masked.
        experts: how many there are, 1 to 2^31 - 1.
        accumulate: "fp32", or "bf16-step" for a top_k of 2, 3 or 4.

    Returns:
        [tokens, hidden] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_COMBINE says.
    """
    check(y, topk_ids, experts, accumulate)
    tokens, top_k, hidden = y.shape
    acc = y.new_zeros(tokens, hidden, dtype=torch.float32)
    for slot in range(top_k):
        total = acc + y[:, slot].float()
        if accumulate == "bf16-step":
            total = arithmetic.round_bf16(total).float()
        acc = torch.where(kept(topk_ids[:, slot], experts)[:, None], total, acc)
    return arithmetic.round_bf16(acc)


def kept(ids: Tensor, experts: int) -> Tensor:
    """Which slots count: those whose id is an expert."""
    return (ids >= 0) & (ids < experts)


def moe_combine_float64(
    *, y: Tensor, topk_ids: Tensor, experts: int, accumulate: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """The exact sums and the largest error that the contract can make.

    Each of k additions in float32 loses at most 2^-24 of a partial sum, which is at most the sum of
    the magnitudes, and with bf16-step 2^-8 of it besides; then one rounding to bfloat16 loses 2^-8
    of the result. A sum of bfloat16 numbers is a multiple of the smallest one, so nothing is lost
    below it.

    Args:
        y: as for `moe_combine`, and so are the others; rows of slots that count are finite.
        topk_ids: see there.
        experts: see there.
        accumulate: see there.

    Returns:
        (value, bound), both [tokens, hidden] float64: |out - value| <= bound.
    """
    terms = torch.where(kept(topk_ids, experts)[:, :, None], y.double(), 0.0)
    value, magnitude = terms.sum(1), terms.abs().sum(1)
    # (1 + u)^k - 1 <= 1.01 k u for every k below 2^16, and 1.02 k u for bf16-step's; the same for
    # the float64 sum itself.
    step = 1.01 * _BF16 if accumulate == "bf16-step" else 0.0
    error = 1.01 * y.shape[1] * (_FP32 + _FP64 + step) * magnitude
    return value, error + _BF16 * (value.abs() + error)
