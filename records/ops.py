"""The vocabulary of operators: what each is called, what its axes mean, and what it must move.

Timings of one operator mean the same everywhere because its envelope, what happens inside the
clock, is fixed here. Bytes and operations are exact integers of the axes, with their source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bitgate.records.errors import UsageError
from bitgate.records.proof import Workload

Axes = Mapping[str, int]

_ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_FP32_BYTES = 4

_ENVELOPE = (
    "From the call, with all inputs resident on the device, until every result is complete there. "
    "Inside: each launch that the call makes, allocation of results and workspaces, and the final "
    "wait. Outside: compiling, making or moving inputs, poisoning and checking results."
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. `axes` are (name, meaning) in name order.

    `bytes_moved(axes, element_bytes)` and `flops(axes)` are exact, or, where the work depends on
    the data, the least that any data needs: `counts` says which.
    """

    name: str
    summary: str
    axes: tuple[tuple[str, str], ...]
    envelope: str
    bytes_moved: Callable[[Axes, int], int]
    flops: Callable[[Axes], int]
    counts: Literal["exact", "lower-bound"]
    source: str

    def check(self, workload: Workload) -> None:
        """Raise UsageError unless the workload has this operator's axes and a known dtype."""
        expected = [name for name, _ in self.axes]
        got = [name for name, _ in workload.axes]
        if workload.op != self.name or got != expected:
            raise UsageError(
                f"workload {workload.key}: expected the axes {', '.join(expected)} of {self.name}, "
                f"got {', '.join(got) or 'none'}"
            )
        if workload.dtype not in _ELEMENT_BYTES:
            raise UsageError(
                f"workload {workload.key}: unknown dtype {workload.dtype!r}; known are "
                f"{', '.join(_ELEMENT_BYTES)}"
            )


def operator(name: str) -> Operator:
    """The operator of that name; UsageError lists the known ones."""
    for known in OPERATORS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in OPERATORS)
    raise UsageError(f"unknown operator {name!r}; known are {names}")


def bytes_of(workload: Workload) -> int:
    """How many bytes one call moves between memory and the device's cores."""
    known = operator(workload.op)
    known.check(workload)
    return known.bytes_moved(dict(workload.axes), _ELEMENT_BYTES[workload.dtype])


def flops_of(workload: Workload) -> int:
    """How many floating-point operations one call needs."""
    known = operator(workload.op)
    known.check(workload)
    return known.flops(dict(workload.axes))


# --- manifold-constrained hyper-connections ------------------------------------------------------


def _projection_bytes(axes: Axes) -> int:
    """The projection fn [n(n+2), nH], scale [3] and base [n(n+2)], all fp32."""
    n, hidden = axes["streams"], axes["hidden"]
    mixes = n * (n + 2)
    return _FP32_BYTES * (mixes * n * hidden + 3 + mixes)


def _mix_bytes(axes: Axes) -> int:
    """Post [n] and comb [n, n] of one token, fp32."""
    n = axes["streams"]
    return _FP32_BYTES * (n + n * n)


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


# --- mixture of experts --------------------------------------------------------------------------


def _experts_bytes(axes: Axes, element: int) -> int:
    """Rows in and out, their choices, and the weights of the fewest experts that can be chosen."""
    tokens, hidden, chosen = axes["tokens"], axes["hidden"], axes["top_k"]
    rows = 2 * element * tokens * hidden
    choices = tokens * chosen * (8 + _FP32_BYTES)  # index int64 and weight fp32
    touched = min(chosen, axes["experts"]) if tokens else 0
    return rows + choices + touched * 3 * axes["intermediate"] * hidden * element


def _experts_flops(axes: Axes) -> int:
    """Gate, up and down projections of each chosen expert: three products of H by I."""
    return axes["tokens"] * axes["top_k"] * 6 * axes["hidden"] * axes["intermediate"]


OPERATORS: tuple[Operator, ...] = (
    Operator(
        name="mhc_pre",
        summary="mix n residual streams into a block's input, and make the mixes for after it",
        axes=_MHC_AXES,
        envelope=_ENVELOPE,
        bytes_moved=_pre_bytes,
        flops=_pre_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(10H + 80) + 384H + 108 bytes",
    ),
    Operator(
        name="mhc_post",
        summary="mix a block's output back into the n residual streams",
        axes=_MHC_AXES,
        envelope=_ENVELOPE,
        bytes_moved=_post_bytes,
        flops=_post_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(18H + 80) bytes",
    ),
    Operator(
        name="mhc_post_pre",
        summary="mhc_post of one block and mhc_pre of the next, with the streams kept in between",
        axes=_MHC_AXES,
        envelope=_ENVELOPE,
        bytes_moved=_post_pre_bytes,
        flops=_post_pre_flops,
        counts="exact",
        source=_MHC_SOURCE + "; n=4, bf16: T(20H + 160) + 384H + 108 bytes",
    ),
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
        envelope=_ENVELOPE + " The choice of experts (routing) is an input.",
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
