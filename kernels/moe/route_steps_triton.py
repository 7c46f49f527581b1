"""The pieces of the routers for Triton kernels; each implements the function of its name.

Tokens are rows and experts lanes: [ROWS, WIDTH = 2^LEVELS], WIDTH at least the experts.
"""

from bitgate.kernels.arithmetic_triton import canonical, exp, sigmoid, softplus, tree
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe.route_rules import SCORES
from bitgate.kernels.moe.route_rules import SELECTED as SELECTED_SCORE

SOFTMAX = tl.constexpr(SCORES.index("softmax"))
SIGMOID = tl.constexpr(SCORES.index("sigmoid"))
SELECTED = tl.constexpr(SCORES.index(SELECTED_SCORE))
LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def softmax(logit, zero, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """route_reference.softmax; lanes beyond the experts hold -inf."""
    usable = logit < float("inf")
    clean = tl.where(usable, logit, float("-inf"))
    largest = tl.max(clean, axis=1)
    regular = (tl.min(usable.to(tl.int32), axis=1) == 1) & (largest > float("-inf"))
    shifted = clean - tl.where(regular, largest, 0.0)[:, None]
    grown = exp(tl.where(regular[:, None], shifted, float("-inf")), zero)
    total = tl.where(regular, tree(grown, ROWS, WIDTH, LEVELS), 1.0)
    return tl.where(regular[:, None], tl.div_rn(grown, total[:, None] + tl.zeros_like(grown)), 0.0)


@triton.jit
def scores_of(
    logit,
    zero,
    SCORE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """route_reference.scores_of; lanes beyond the experts hold -inf."""
    if SCORE == SELECTED:
        usable = tl.min((logit < float("inf")).to(tl.int32), axis=1) == 1
        scores = tl.where(usable[:, None], logit, float("-inf"))
    else:
        if SCORE == SOFTMAX:
            scores = softmax(logit, zero, ROWS, WIDTH, LEVELS)
        elif SCORE == SIGMOID:
            scores = sigmoid(logit, zero)
        else:
            scores = tl.sqrt_rn(softplus(logit, zero))
        scores = tl.where(scores < float("inf"), scores, 0.0)
    return scores


@triton.jit
def ordered(x):
    """route_reference.ordered."""
    bits = canonical(x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def number_of(key):
    """The number whose key `ordered` gives."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def first_of(keys, lane, largest, WIDTH: tl.constexpr):
    """The lowest lane of each row that has its largest key."""
    return tl.min(tl.where(keys == largest[:, None], lane, WIDTH), axis=1)


@triton.jit
def kept(
    keys,
    lane,
    groups,
    keep_groups,
    size,
    TOP2: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """route_reference.kept, from the keys; no lane beyond the experts is kept."""
    group = lane // size
    slot = tl.arange(0, GROUPS)[None, :]
    ranks = tl.full((ROWS, GROUPS), LOWEST, tl.int32)
    for g in range(groups):
        own = tl.where(group == g, keys, LOWEST)
        largest = tl.max(own, axis=1)
        if TOP2:
            best = first_of(own, lane, largest, WIDTH)
            second = tl.max(tl.where(lane == best[:, None], LOWEST, own), axis=1)
            largest = ordered(number_of(largest) + number_of(second))
        ranks = tl.where(slot == g, largest[:, None], ranks)
    keep = tl.zeros((ROWS, WIDTH), tl.int32)
    for _ in range(keep_groups):
        best = first_of(ranks, slot, tl.max(ranks, axis=1), GROUPS)[:, None]
        ranks = tl.where(slot == best, LOWEST, ranks)
        keep = tl.where(group == best, 1, keep)
    return keep == 1


@triton.jit
def gather(values, here):
    """`values.gather(1, ids)` for one lane a row, as bits: a sum with one integer that is not 0."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.sum(tl.where(here, bits, 0), axis=1).to(tl.float32, bitcast=True)


@triton.jit
def weigh(chosen, slot, top_k, renormalize, scale, zero, SCORE: tl.constexpr, ROWS: tl.constexpr):
    """route_reference.weigh; slots from top_k on hold anything."""
    if SCORE == SELECTED:
        largest = tl.max(tl.where(slot < top_k, chosen, float("-inf")), axis=1)
        chosen = exp(chosen - tl.where(largest > float("-inf"), largest, 0.0)[:, None], zero)
    # `total = weights[:, :1]; for slot in range(1, top_k): total = total + weights[:, slot]`
    total = tl.zeros((ROWS,), tl.float32)
    for j in range(top_k):
        total = total + gather(chosen, slot == j)
    # `weights / where(total > 0.0, total, 1.0)`, and `weights * scale`
    divisor = tl.where((total > 0.0) & (renormalize == 1), total, 1.0)
    return tl.div_rn(chosen, divisor[:, None] + tl.zeros_like(chosen)) * scale
