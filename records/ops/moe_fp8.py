"""Operators of the mixture of experts that multiply float8 codes.

The numbers are those of scales by groups: a scale for each group_k elements of a row and for each
block of group_n by group_k of a weight.
"""

from typing import Final

from bitgate.records.ops.base import (
    ELEMENT_BYTES,
    ENVELOPE,
    FP32_BYTES,
    INT64_BYTES,
    Axes,
    Operator,
)
from bitgate.records.ops.moe import (
    EXPERTS,
    HIDDEN,
    TOKENS,
    TOP_K,
    experts_flops,
    fewest_experts,
    gemm_flops,
    gemm_index_bytes,
    pairs_of,
)

_BF16_BYTES = ELEMENT_BYTES["bfloat16"]
_FP8_BYTES = ELEMENT_BYTES["float8_e4m3fn"]


def _weight_bytes(rows: int, columns: int, block_n: int, block_k: int) -> int:
    """The codes of one expert's weight and their scales."""
    scales = -(-rows // block_n) * -(-columns // block_k)
    return _FP8_BYTES * rows * columns + FP32_BYTES * scales


def _gemm_fp8_bytes(axes: Axes, element: int) -> int:
    """Codes and scales in, one row a pair out, as bf16 and as accumulator; bias and index."""
    k, n = axes["k"], axes["n"]
    rows = axes["tokens"] * (element * k + FP32_BYTES * -(-k // axes["group_k"]))
    results = pairs_of(axes) * n * (_BF16_BYTES + FP32_BYTES)
    weight = _weight_bytes(n, k, axes["group_n"], axes["group_k"]) + FP32_BYTES * n
    return rows + results + fewest_experts(axes) * weight + gemm_index_bytes(axes)


def _experts_fp8_bytes(axes: Axes, element: int) -> int:
    """Rows in and out, their choices, and codes and scales of the fewest experts."""
    hidden, intermediate = axes["hidden"], axes["intermediate"]
    rows = 2 * element * axes["tokens"] * hidden
    choices = pairs_of(axes) * (INT64_BYTES + FP32_BYTES)
    blocks = axes["block_n"], axes["block_k"]
    weights = _weight_bytes(2 * intermediate, hidden, *blocks)
    weights += _weight_bytes(hidden, intermediate, *blocks)
    return rows + choices + fewest_experts(axes) * weights


MOE_FP8_OPERATORS: Final = (
    Operator(
        name="moe_gemm_fp8",
        summary="the codes of each pair times those of its expert, scaled",
        axes=(
            EXPERTS,
            ("group_k", "summed elements that share a scale"),
            ("group_n", "rows of a weight that share a scale"),
            ("k", "elements that each product sums"),
            ("n", "columns of an expert's weight"),
            ("tokens", "T, rows of the call; row p // k belongs to pair p"),
            ("top_k", "k, pairs of a row: of the second matmul 1"),
        ),
        envelope=ENVELOPE + " Alignment and quantised rows are inputs.",
        bytes_moved=_gemm_fp8_bytes,
        flops=gemm_flops,
        counts="lower-bound",
        source=(
            "each tensor moved once, codes in the workload's dtype, the result as bf16, scales, "
            "accumulator, bias and routing weights as fp32; experts as for moe_gemm; scaling "
            "counts for nothing"
        ),
    ),
    Operator(
        name="moe_experts_fp8",
        summary="the chosen experts of each token over float8 weights, quantised on the way",
        axes=(
            ("block_k", "summed elements that share a scale"),
            ("block_n", "rows of a weight that share a scale"),
            EXPERTS,
            HIDDEN,
            ("intermediate", "I, elements between the projections of one expert"),
            TOKENS,
            TOP_K,
        ),
        envelope=ENVELOPE
        + " Inside, too: alignment, both quantisations, both matmuls, activation, weighting and "
        "the sum over slots. Outside: routing, its choice is an input, and quantising the weights.",
        bytes_moved=_experts_fp8_bytes,
        flops=experts_flops,
        counts="lower-bound",
        source=(
            "rows in and out in the workload's dtype, weights as float8 with fp32 scales; "
            "otherwise as moe_experts"
        ),
    ),
)
