"""Operators of manifold-constrained hyper-connections."""

from typing import Final

from bitgate.records.ops.base import ENVELOPE, FP32_BYTES, Axes, Operator

_MHC_AXES = (
    ("hidden", "H, elements of one residual stream"),
    ("streams", "n, residual streams that are mixed"),
    ("tokens", "T, rows of the call"),
)
_MHC_SOURCE = (
    "each tensor moved once: streams, layer inputs and outputs in the workload's dtype, mixes and "
    "the projection in fp32; a multiply-add counts as two; the n by n finish is left out, it is "
    "below 1 % of the operations"
)


def _projection_bytes(axes: Axes) -> int:
    """The projection fn [n(n+2), nH], scale [3] and base [n(n+2)], all fp32."""
    n, hidden = axes["streams"], axes["hidden"]
    mixes = n * (n + 2)
    return FP32_BYTES * (mixes * n * hidden + 3 + mixes)


def _mix_bytes(axes: Axes) -> int:
    """Post [n] and comb [n, n] of one token, fp32."""
    n = axes["streams"]
    return FP32_BYTES * (n + n * n)


def _pre_bytes(axes: Axes, element: int) -> int:
    n, hidden, tokens = axes["streams"], axes["hidden"], axes["tokens"]
    per_token = element * (n * hidden + hidden) + _mix_bytes(axes)
    return tokens * per_token + _projection_bytes(axes)


def _post_bytes(axes: Axes, element: int) -> int:
    n, hidden, tokens = axes["streams"], axes["hidden"], axes["tokens"]
    return tokens * (element * (hidden + 2 * n * hidden) + _mix_bytes(axes))


def _post_pre_bytes(axes: Axes, element: int) -> int:
    n, hidden, tokens = axes["streams"], axes["hidden"], axes["tokens"]
    per_token = element * (2 * n * hidden + 2 * hidden) + 2 * _mix_bytes(axes)
    return tokens * per_token + _projection_bytes(axes)


def _pre_flops(axes: Axes) -> int:
    """The dots with fn, the sum of squares, and the weighted sum of the streams."""
    n, hidden, tokens = axes["streams"], axes["hidden"], axes["tokens"]
    return tokens * n * hidden * (2 * n * (n + 2) + 2 + 2)


def _post_flops(axes: Axes) -> int:
    """For each stream and element one product and n multiply-adds."""
    n, hidden, tokens = axes["streams"], axes["hidden"], axes["tokens"]
    return tokens * n * hidden * (1 + 2 * n)


def _post_pre_flops(axes: Axes) -> int:
    return _pre_flops(axes) + _post_flops(axes)


MHC_OPERATORS: Final = (
    Operator(
        name="mhc_pre",
        summary="mix n residual streams into a block's input, and make the mixes for after it",
        axes=_MHC_AXES,
        envelope=ENVELOPE,
        bytes_moved=_pre_bytes,
        flops=_pre_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(10H + 80) + 384H + 108 bytes",
    ),
    Operator(
        name="mhc_post",
        summary="mix a block's output back into the n residual streams",
        axes=_MHC_AXES,
        envelope=ENVELOPE,
        bytes_moved=_post_bytes,
        flops=_post_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(18H + 80) bytes",
    ),
    Operator(
        name="mhc_post_pre",
        summary="mhc_post of one block and mhc_pre of the next, with the streams kept in between",
        axes=_MHC_AXES,
        envelope=ENVELOPE,
        bytes_moved=_post_pre_bytes,
        flops=_post_pre_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(20H + 160) + 384H + 108 bytes",
    ),
)
