"""Operators of a transformer around its experts: norms, projections, attention, head.

Names and axes are those of the field, so that published tables can be read as timings of them:
`gemm` and both attentions as AIConfigurator keys them, the rest as vLLM calls its layers.
"""

from typing import Final

from bitgate.records.ops.base import ENVELOPE, INT64_BYTES, Axes, Operator, no_flops

_ROWS = ("tokens", "T, rows of the call")
_HEADS = (
    ("head_dim", "d, elements of a head"),
    ("heads", "h, query heads"),
    ("kv_heads", "g, key and value heads"),
)
_MOVED_ONCE = "each tensor moved once, in the workload's dtype; a multiply-add counts as two"
_CACHE = (
    " Inside, too: writing the new tokens' keys and values to the paged cache. Outside: rotary "
    "embedding and projections."
)


def _embedding_bytes(axes: Axes, element: int) -> int:
    """The ids, and each row read and written."""
    return axes["tokens"] * (INT64_BYTES + 2 * element * axes["hidden"])


def _rms_norm_bytes(axes: Axes, element: int) -> int:
    """Rows in and out, and the weight [hidden]."""
    return element * axes["hidden"] * (2 * axes["tokens"] + 1)


def _rms_norm_flops(axes: Axes) -> int:
    """Of each element: its square summed, then two products."""
    return 4 * axes["tokens"] * axes["hidden"]


def _add_rms_norm_bytes(axes: Axes, element: int) -> int:
    """Rows and residual in, rows and residual out, and the weight [hidden]."""
    return element * axes["hidden"] * (4 * axes["tokens"] + 1)


def _add_rms_norm_flops(axes: Axes) -> int:
    return axes["tokens"] * axes["hidden"] + _rms_norm_flops(axes)


def _gemm_bytes(axes: Axes, element: int) -> int:
    k, m, n = axes["k"], axes["m"], axes["n"]
    return element * (m * k + k * n + m * n)


def _gemm_flops(axes: Axes) -> int:
    return 2 * axes["m"] * axes["n"] * axes["k"]


def _rope_bytes(axes: Axes, element: int) -> int:
    """Heads in and out, the position, and its row of cosines and sines."""
    per_token = element * axes["head_dim"] * (2 * axes["heads"] + 1) + INT64_BYTES
    return axes["tokens"] * per_token


def _rope_flops(axes: Axes) -> int:
    """Of each element two products and one sum."""
    return 3 * axes["tokens"] * axes["heads"] * axes["head_dim"]


def _silu_and_mul_bytes(axes: Axes, element: int) -> int:
    """Gate and up in, their product out."""
    return 3 * element * axes["tokens"] * axes["intermediate"]


def _silu_and_mul_flops(axes: Axes) -> int:
    """Of each element: negate, exponential, sum, quotient, product."""
    return 5 * axes["tokens"] * axes["intermediate"]


def _add_bytes(axes: Axes, element: int) -> int:
    return 3 * element * axes["tokens"] * axes["hidden"]


def _add_flops(axes: Axes) -> int:
    return axes["tokens"] * axes["hidden"]


def _attention_bytes(axes: Axes, element: int, new: int, attended: int) -> int:
    """Queries in and rows out; keys and values of what is attended read, of what is new written."""
    queries = 2 * new * axes["heads"]
    cached = 2 * (attended + new) * axes["kv_heads"]
    return element * axes["head_dim"] * (queries + cached)


def _context_bytes(axes: Axes, element: int) -> int:
    new = axes["tokens"]
    return _attention_bytes(axes, element, new, axes["context"] + new if new else 0)


def _context_flops(axes: Axes) -> int:
    """Two products of d elements for each query and each token up to itself."""
    new = axes["tokens"]
    pairs = new * axes["context"] + new * (new + 1) // 2
    return 4 * axes["heads"] * axes["head_dim"] * pairs


def _generation_bytes(axes: Axes, element: int) -> int:
    return _attention_bytes(axes, element, axes["sequences"], axes["kv_tokens"])


def _generation_flops(axes: Axes) -> int:
    return 4 * axes["heads"] * axes["head_dim"] * axes["kv_tokens"]


DENSE_OPERATORS: Final = (
    Operator(
        name="embedding",
        summary="the row of each token id",
        axes=(
            ("hidden", "H, elements of a row"),
            _ROWS,
            ("vocabulary", "V, rows of the table"),
        ),
        envelope=ENVELOPE,
        bytes_moved=_embedding_bytes,
        flops=no_flops,
        counts="exact",
        source="ids as int64; as many rows read as written, in the workload's dtype",
    ),
    Operator(
        name="rms_norm",
        summary="each row divided by its root mean square, times a weight",
        axes=(("hidden", "H, elements of a row"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_rms_norm_bytes,
        flops=_rms_norm_flops,
        counts="exact",
        source=f"{_MOVED_ONCE}; one root and quotient a row left out",
    ),
    Operator(
        name="add_rms_norm",
        summary="the rows added to the residual, and the sum's rms_norm",
        axes=(("hidden", "H, elements of a row"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_add_rms_norm_bytes,
        flops=_add_rms_norm_flops,
        counts="exact",
        source=f"{_MOVED_ONCE}; one root and quotient a row left out",
    ),
    Operator(
        name="gemm",
        summary="the product of rows [m, k] and a weight [k, n]",
        axes=(
            ("k", "elements that each product sums"),
            ("m", "rows of the call"),
            ("n", "columns of the weight"),
        ),
        envelope=ENVELOPE,
        bytes_moved=_gemm_bytes,
        flops=_gemm_flops,
        counts="exact",
        source=_MOVED_ONCE,
        sizes=("m",),
    ),
    Operator(
        name="rope",
        summary="rotary embedding of the query and key heads, in place",
        axes=(
            ("head_dim", "d, rotated elements of a head"),
            ("heads", "query and key heads together"),
            _ROWS,
        ),
        envelope=ENVELOPE,
        bytes_moved=_rope_bytes,
        flops=_rope_flops,
        counts="exact",
        source=f"{_MOVED_ONCE}; positions as int64, one row of d cosines and sines a token",
    ),
    Operator(
        name="context_attention",
        summary="causal attention of one request's new tokens to themselves and to its cache",
        axes=(("context", "C, tokens of the request in the cache"), *_HEADS, _ROWS),
        envelope=ENVELOPE + _CACHE,
        bytes_moved=_context_bytes,
        flops=_context_flops,
        counts="exact",
        source=f"{_MOVED_ONCE}; T C + T(T+1)/2 pairs, 4 d operations each; softmax left out",
        sizes=("tokens", "context"),
    ),
    Operator(
        name="generation_attention",
        summary="attention of one new token of each sequence to its cache and to itself",
        axes=(
            *_HEADS,
            ("kv_tokens", "tokens attended to, summed over the sequences, new ones included"),
            ("sequences", "S, sequences of the call"),
        ),
        envelope=ENVELOPE + _CACHE,
        bytes_moved=_generation_bytes,
        flops=_generation_flops,
        counts="exact",
        source=f"{_MOVED_ONCE}; 4 d operations a query head and attended token; softmax left out",
        sizes=("sequences", "kv_tokens"),
    ),
    Operator(
        name="silu_and_mul",
        summary="silu of the gate half, times the up half",
        axes=(("intermediate", "I, elements of each half"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_silu_and_mul_bytes,
        flops=_silu_and_mul_flops,
        counts="exact",
        source=_MOVED_ONCE,
    ),
    Operator(
        name="add",
        summary="the sum of two tensors of rows: the shared expert's and the routed experts'",
        axes=(("hidden", "H, elements of a row"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_add_bytes,
        flops=_add_flops,
        counts="exact",
        source=_MOVED_ONCE,
    ),
)
