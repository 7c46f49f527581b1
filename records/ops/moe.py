"""Operators of the mixture of experts: the stages one by one, and the experts as a whole.

A pair is a token and one of its slots; there are tokens * top_k. The numbers are those of tokens
whose slots all name an expert. The stages' bytes sum to the traffic of a layer that keeps its
accumulators: besides weights and biases, and what indexes the pairs, 2 T H + T k (20 I + 8 H) +
2 T H bytes in bfloat16. A pipeline that does not write them moves 4 bytes less for each of a pair's
2 I + H columns: 2 T H + T k (12 I + 4 H) + 2 T H.
"""

from typing import Final

from bitgate.records.ops.base import (
    ENVELOPE,
    FP32_BYTES,
    INT32_BYTES,
    INT64_BYTES,
    Axes,
    Operator,
    no_flops,
)

EXPERTS = ("experts", "E, experts of the layer")
HIDDEN = ("hidden", "H, elements of a row")
TOKENS = ("tokens", "T, rows of the call")
TOP_K = ("top_k", "k, experts chosen for a row")

_LOGIT_FLOPS = 4
_CHOICE_FLOPS = 3
GATED_FLOPS = 5


def pairs_of(axes: Axes) -> int:
    """Tokens times slots."""
    return axes["tokens"] * axes["top_k"]


def fewest_experts(axes: Axes) -> int:
    """All tokens may choose the same ones."""
    return min(axes["top_k"], axes["experts"]) if axes["tokens"] else 0


def _route_bytes(axes: Axes, element: int) -> int:
    """Logits and correction bias in; of each choice its weight and its id out."""
    scores = element * axes["experts"] * (axes["tokens"] + 1)
    return scores + pairs_of(axes) * (FP32_BYTES + INT64_BYTES)


def _route_flops(axes: Axes) -> int:
    """Of each logit its score and the bias added; of each choice its part of the sum."""
    logits = axes["tokens"] * axes["experts"]
    return logits * (_LOGIT_FLOPS + 1) + pairs_of(axes) * _CHOICE_FLOPS


def _hash_bytes(axes: Axes, element: int) -> int:
    """Of each choice its logit and its entry of the table in, its weight and its id out; ids in."""
    each = element + INT64_BYTES + FP32_BYTES + INT64_BYTES
    return pairs_of(axes) * each + INT64_BYTES * axes["tokens"]


def _hash_flops(axes: Axes) -> int:
    """Of each choice its score and its part of the sum."""
    return pairs_of(axes) * (_LOGIT_FLOPS + _CHOICE_FLOPS)


def _align_bytes(axes: Axes, element: int) -> int:  # noqa: ARG001 - integers only
    """Ids and map in; each pair in its place, at least one block's expert, and the length out."""
    pairs = pairs_of(axes)
    blocks = 1 if pairs else 0
    return INT64_BYTES * pairs + INT32_BYTES * (axes["experts"] + pairs + blocks + 1)


def _gemm_bytes(axes: Axes, element: int) -> int:
    """Rows and weights in, one row a pair out, in the dtype and as accumulator; bias and index."""
    k, n = axes["k"], axes["n"]
    rows = element * k * axes["tokens"] + pairs_of(axes) * n * (element + FP32_BYTES)
    weights = fewest_experts(axes) * n * (k * element + FP32_BYTES)
    return rows + weights + gemm_index_bytes(axes)


def gemm_index_bytes(axes: Axes) -> int:
    """Each pair and its routing weight, at least one block's expert, and the length."""
    pairs = pairs_of(axes)
    blocks = 1 if pairs else 0
    return INT32_BYTES * (pairs + blocks + 1) + FP32_BYTES * pairs


def gemm_flops(axes: Axes) -> int:
    """A multiply-add, two operations, for each element of a pair's row and each column."""
    return 2 * pairs_of(axes) * axes["n"] * axes["k"]


def _act_bytes(axes: Axes, element: int) -> int:
    """Gate and up in, their product out."""
    return 3 * element * axes["rows"] * axes["intermediate"]


def _act_flops(axes: Axes) -> int:
    return GATED_FLOPS * axes["rows"] * axes["intermediate"]


def _combine_bytes(axes: Axes, element: int) -> int:
    """One row a pair and its id in, one row a token out."""
    rows = element * axes["hidden"] * (pairs_of(axes) + axes["tokens"])
    return rows + INT64_BYTES * pairs_of(axes)


def _combine_flops(axes: Axes) -> int:
    return pairs_of(axes) * axes["hidden"]


def _combine_weighted_bytes(axes: Axes, element: int) -> int:
    """As the plain sum, and the weight of each pair."""
    return _combine_bytes(axes, element) + FP32_BYTES * pairs_of(axes)


def _combine_weighted_flops(axes: Axes) -> int:
    return 2 * _combine_flops(axes)


def _dequant_mxfp4_bytes(axes: Axes, element: int) -> int:
    """Of 32 numbers 16 bytes of codes and one of scale in, the numbers out."""
    return axes["rows"] * axes["groups"] * (16 + 1 + 32 * element)


def _experts_bytes(axes: Axes, element: int) -> int:
    """Rows in and out, their choices, and the weights of the fewest experts that can be chosen."""
    rows = 2 * element * axes["tokens"] * axes["hidden"]
    choices = pairs_of(axes) * (INT64_BYTES + FP32_BYTES)  # index int64 and weight fp32
    weights = fewest_experts(axes) * 3 * axes["intermediate"] * axes["hidden"] * element
    return rows + choices + weights


def experts_flops(axes: Axes) -> int:
    """Gate, up and down projections of each chosen expert: three products of H by I."""
    return pairs_of(axes) * 6 * axes["hidden"] * axes["intermediate"]


MOE_OPERATORS: Final = (
    Operator(
        name="moe_route",
        summary="the experts of each token and their weights, from the router's logits",
        axes=(EXPERTS, TOKENS, TOP_K),
        envelope=ENVELOPE + " The router's matmul is outside: the logits are an input.",
        bytes_moved=_route_bytes,
        flops=_route_flops,
        counts="exact",
        source=(
            "logits and bias in the workload's dtype, weights as fp32, ids as int64; of a logit "
            "4 operations and the bias, as softmax (subtract, exponential, sum, quotient) and "
            "sigmoid have them, of a choice 3; comparisons are none"
        ),
    ),
    Operator(
        name="moe_route_hash",
        summary="the experts that a table has for each token, and the weights of their scores",
        axes=(
            EXPERTS,
            TOKENS,
            TOP_K,
            ("vocab", "rows of the table, tokens of the vocabulary"),
        ),
        envelope=ENVELOPE + " The router's matmul is outside: the logits are an input.",
        bytes_moved=_hash_bytes,
        flops=_hash_flops,
        counts="lower-bound",
        source=(
            "logits in the workload's dtype, entries, token ids and ids as int64, weights as fp32; "
            "only what is chosen: a softmax reads every logit; of a choice 4 operations for its "
            "score and 3 more, as for moe_route"
        ),
    ),
    Operator(
        name="moe_align",
        summary="the pairs sorted by expert, in blocks of one expert each",
        axes=(EXPERTS, TOKENS, TOP_K),
        envelope=ENVELOPE,
        bytes_moved=_align_bytes,
        flops=no_flops,
        counts="lower-bound",
        source=(
            "ids as int64, the map of the experts, places and experts of blocks as int32; of pairs "
            "whose experts are all local; how many blocks are filled up, and how far, depends on "
            "the data and on the block's size: at least one"
        ),
    ),
    Operator(
        name="moe_gemm",
        summary="the row of each pair times the weight of its expert, sorted by expert",
        axes=(
            EXPERTS,
            ("k", "elements that each product sums"),
            ("n", "columns of an expert's weight"),
            ("tokens", "T, rows of the call; row p // k belongs to pair p"),
            ("top_k", "k, pairs of a row: of the second matmul 1"),
        ),
        envelope=ENVELOPE + " Alignment is an input.",
        bytes_moved=_gemm_bytes,
        flops=gemm_flops,
        counts="lower-bound",
        source=(
            "each tensor moved once, in the workload's dtype, accumulator, bias and routing "
            "weights as fp32; which experts are read depends on the data: at least k distinct "
            "ones, min(E, T k) at most; useful rows alone count, a block's padding, bias and "
            "weighting do not"
        ),
    ),
    Operator(
        name="moe_act",
        summary="silu of the clamped gate half, times the clamped up half",
        axes=(("intermediate", "I, elements of each half"), ("rows", "R, pairs of the call")),
        envelope=ENVELOPE,
        bytes_moved=_act_bytes,
        flops=_act_flops,
        counts="exact",
        source=(
            "each tensor moved once, in the workload's dtype; negate, exponential, sum, quotient, "
            "product; clamping compares and counts for nothing"
        ),
        sizes=("rows",),
    ),
    Operator(
        name="moe_combine",
        summary="the sum of each token's weighted rows, slots ascending",
        axes=(HIDDEN, TOKENS, TOP_K),
        envelope=ENVELOPE,
        bytes_moved=_combine_bytes,
        flops=_combine_flops,
        counts="exact",
        source=(
            "each tensor moved once, rows in the workload's dtype, ids as int64; k additions an "
            "element, the first to +0"
        ),
    ),
    Operator(
        name="moe_combine_weighted",
        summary="the sum of each token's rows times their weights, slots ascending",
        axes=(HIDDEN, TOKENS, TOP_K),
        envelope=ENVELOPE,
        bytes_moved=_combine_weighted_bytes,
        flops=_combine_weighted_flops,
        counts="exact",
        source=(
            "each tensor moved once, rows in the workload's dtype, ids as int64, weights as fp32; "
            "k products and k additions an element, the first addition to +0"
        ),
    ),
    Operator(
        name="moe_dequant_mxfp4",
        summary="4-bit weights with a power of two for 32 of them, as numbers",
        axes=(("groups", "K / 32, scales of a row"), ("rows", "R, rows of all experts")),
        envelope=ENVELOPE,
        bytes_moved=_dequant_mxfp4_bytes,
        flops=no_flops,
        counts="exact",
        source=(
            "each tensor moved once, two codes a byte, scales as bytes, numbers in the workload's "
            "dtype; the bits are put together by integer operations"
        ),
        sizes=("rows",),
    ),
    Operator(
        name="moe_experts",
        summary="the chosen experts of each token, gated, and summed with their weights",
        axes=(
            EXPERTS,
            HIDDEN,
            ("intermediate", "I, elements between the projections of one expert"),
            TOKENS,
            TOP_K,
        ),
        envelope=ENVELOPE
        + " Inside, too: alignment, both matmuls, activation, weighting and the sum over slots. "
        "Outside: routing, its choice is an input.",
        bytes_moved=_experts_bytes,
        flops=experts_flops,
        counts="lower-bound",
        source=(
            "rows in and out and weights in the workload's dtype, choices as int64 and fp32; which "
            "experts are read depends on the data: at least k distinct ones, min(E, T k) at most; "
            "T k 6 H I operations, activation and weighting left out, and so are the padding of "
            "blocks and what is written between the stages"
        ),
    ),
)
