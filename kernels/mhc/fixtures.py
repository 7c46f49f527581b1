"""Integer-exact cases of the mHC operators: every correct order of additions gives these results.

The trick of mhc_pre: residuals of +-1 and no epsilons make the norm exactly one; a sparse fn of
+-128 saturates every sigmoid to 0 or 1 and makes the softmax a permutation, which Sinkhorn keeps.
Which permutation and which streams depends on single signs of the token's residual, so that an
index that is off shows. Expected values come from integer arithmetic alone.
"""

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.mhc.contract import MIXES, STREAMS
from bitgate.kernels.mhc.data import Draw, to_bf16, to_f32
from bitgate.kernels.spec import IntegerCase, Tensors

Ints = npt.NDArray[np.int64]

EXACT = (("hc_eps", 0.0), ("post_mult", 2.0), ("rms_eps", 0.0), ("sinkhorn_iters", 20))
SHAPES = ((1, 64), (3, 320), (5, 256))
_SATURATING = 128


def _integers(draw: Draw, name: str, shape: tuple[int, ...], low: int, high: int) -> Ints:
    """Integers in the closed range."""
    words = draw.words(name, int(np.prod(shape, dtype=np.int64)))
    span = np.uint64(high - low + 1)
    return ((words >> np.uint64(20)) % span).astype(np.int64).reshape(shape) + low


def _signs(draw: Draw, name: str, shape: tuple[int, ...]) -> Ints:
    return 2 * _integers(draw, name, shape, 0, 1) - 1


def _bf16(values: Ints) -> torch.Tensor:
    return to_bf16(values.astype(np.float64))


def _f32(values: Ints) -> torch.Tensor:
    return to_f32(values.astype(np.float64))


def _probes(draw: Draw, size: int) -> Ints:
    """Nine different places in the flattened streams: one per pre, one per post, one for comb."""
    return np.argsort(draw.words("probes", size), kind="stable")[: 2 * STREAMS + 1].astype(np.int64)


def _mapping(probes: Ints, size: int) -> Tensors:
    """Fn that reads single signs, with neutral scale and base."""
    fn = np.zeros((MIXES, size), dtype=np.int64)
    for m in range(2 * STREAMS):
        fn[m, probes[m]] = _SATURATING
    for j in range(STREAMS):
        # A positive sign moves row j to column j + 1, a negative one to column j - 1.
        row = 2 * STREAMS + STREAMS * j
        fn[row + (j + 1) % STREAMS, probes[-1]] = _SATURATING
        fn[row + (j - 1) % STREAMS, probes[-1]] = -_SATURATING
    return {
        "fn": _f32(fn),
        "scale": torch.ones(3),
        "base": torch.zeros(MIXES),
    }


def _mixes(residual: Ints, probes: Ints) -> tuple[Ints, Ints, Ints]:
    """The pre, post and comb that the signs at the probes choose."""
    signs = residual.reshape(residual.shape[0], -1)[:, probes]
    pre = (signs[:, :STREAMS] + 1) // 2
    post = signs[:, STREAMS : 2 * STREAMS] + 1
    rows = np.arange(STREAMS)
    comb = np.zeros((residual.shape[0], STREAMS, STREAMS), dtype=np.int64)
    for token, sign in enumerate(signs[:, -1]):
        comb[token, rows, (rows + sign) % STREAMS] = 1
    return pre, post, comb


def _pre_case(tokens: int, hidden: int) -> IntegerCase:
    draw = Draw(tokens * 100_000 + hidden)
    residual = _signs(draw, "residual", (tokens, STREAMS, hidden))
    probes = _probes(draw, STREAMS * hidden)
    pre, post, comb = _mixes(residual, probes)
    collapsed = (pre[:, :, None] * residual).sum(axis=1)
    return IntegerCase(
        name=f"permutation-{tokens}x{hidden}",
        inputs={"residual": _bf16(residual), **_mapping(probes, STREAMS * hidden)},
        constants=dict(EXACT),
        expected={"post": _f32(post), "comb": _f32(comb), "layer_input": _bf16(collapsed)},
    )


def _post_case(tokens: int, hidden: int) -> IntegerCase:
    draw = Draw(tokens * 100_000 + hidden)
    # At most 3 * 9 + 4 * 3 * 9 = 135 in magnitude: every partial sum is exact in bfloat16.
    x = _integers(draw, "x", (tokens, hidden), -9, 9)
    residual = _integers(draw, "residual", (tokens, STREAMS, hidden), -9, 9)
    post = _integers(draw, "post", (tokens, STREAMS), 0, 3)
    comb = _integers(draw, "comb", (tokens, STREAMS, STREAMS), 0, 3)
    # One entry above, none below the diagonal: never symmetric.
    comb[:, 0, 1], comb[:, 1, 0] = 3, 0
    mixed = post[:, :, None] * x[:, None] + np.einsum("tij,tih->tjh", comb, residual)
    return IntegerCase(
        name=f"integers-{tokens}x{hidden}",
        inputs={"x": _bf16(x), "residual": _bf16(residual), "post": _f32(post), "comb": _f32(comb)},
        constants={},
        expected={"residual_out": _bf16(mixed)},
    )


def _post_pre_case(tokens: int, hidden: int) -> IntegerCase:
    draw = Draw(tokens * 100_000 + hidden)
    residual = _signs(draw, "residual", (tokens, STREAMS, hidden))
    probes = _probes(draw, STREAMS * hidden)
    chosen = _integers(draw, "chosen", (tokens,), 0, STREAMS - 1)
    rows, every = np.arange(STREAMS), np.arange(tokens)
    comb = np.zeros((tokens, STREAMS, STREAMS), dtype=np.int64)
    comb[:, rows, (rows + 1) % STREAMS] = 1
    moved = np.roll(residual, 1, axis=1)
    # In the chosen stream 2 * x + r = -r with x = -r, so that the new residual is +-1 again.
    post = np.zeros((tokens, STREAMS), dtype=np.int64)
    post[every, chosen] = 2
    x = -moved[every, chosen]
    mixed = post[:, :, None] * x[:, None] + moved
    pre, post_out, comb_out = _mixes(mixed, probes)
    collapsed = (pre[:, :, None] * mixed).sum(axis=1)
    return IntegerCase(
        name=f"permutation-{tokens}x{hidden}",
        inputs={
            "x": _bf16(x),
            "residual": _bf16(residual),
            "post": _f32(post),
            "comb": _f32(comb),
            **_mapping(probes, STREAMS * hidden),
        },
        constants=dict(EXACT),
        expected={
            "residual_out": _bf16(mixed),
            "post_out": _f32(post_out),
            "comb_out": _f32(comb_out),
            "layer_input": _bf16(collapsed),
        },
    )


def pre_cases() -> tuple[IntegerCase, ...]:
    """The integer-exact cases of MHC_PRE; they hold under every contract."""
    return tuple(_pre_case(tokens, hidden) for tokens, hidden in SHAPES)


def post_cases() -> tuple[IntegerCase, ...]:
    """The integer-exact cases of MHC_POST."""
    return tuple(_post_case(tokens, hidden) for tokens, hidden in SHAPES)


def post_pre_cases() -> tuple[IntegerCase, ...]:
    """The integer-exact cases of MHC_POST_PRE."""
    return tuple(_post_pre_case(tokens, hidden) for tokens, hidden in SHAPES)
