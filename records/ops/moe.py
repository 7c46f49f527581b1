"""Operators of the mixture of experts."""

from typing import Final

from bitgate.records.ops.base import ENVELOPE, FP32_BYTES, INT64_BYTES, Axes, Operator


def _experts_bytes(axes: Axes, element: int) -> int:
    """Rows in and out, their choices, and the weights of the fewest experts that can be chosen."""
    tokens, hidden, chosen = axes["tokens"], axes["hidden"], axes["top_k"]
    rows = 2 * element * tokens * hidden
    choices = tokens * chosen * (INT64_BYTES + FP32_BYTES)  # index int64 and weight fp32
    touched = min(chosen, axes["experts"]) if tokens else 0
    return rows + choices + touched * 3 * axes["intermediate"] * hidden * element


def _experts_flops(axes: Axes) -> int:
    """Gate, up and down projections of each chosen expert: three products of H by I."""
    return axes["tokens"] * axes["top_k"] * 6 * axes["hidden"] * axes["intermediate"]


MOE_OPERATORS: Final = (
    Operator(
        name="moe_experts",
        summary="the chosen experts of each token, gated, and summed with their weights",
        axes=(
            ("experts", "E, experts of the layer"),
            ("hidden", "H, elements of a row"),
            ("intermediate", "I, elements between the projections of one expert"),
            ("tokens", "T, rows of the call"),
            ("top_k", "k, experts chosen for a row"),
        ),
        envelope=ENVELOPE + " The choice of experts (routing) is an input.",
        bytes_moved=_experts_bytes,
        flops=_experts_flops,
        counts="lower-bound",
        source=(
            "rows in and out and weights in the workload's dtype, choices as int64 and fp32; which "
            "experts are read depends on the data: at least k distinct ones, min(E, T k) at most; "
            "T k 6 H I operations, activation and weighting left out"
        ),
    ),
)
