"""The compiled half of `fast`: contract `mhc-c1` for one token after the other, by numba.

numba compiles on the first call, without fast maths, and keeps the result beside this file or in
the user's cache where one of them can be written. What is compiled depends on this file alone:
the contract's numbers come as arguments, so that a kept result cannot hold old ones. Each function
implements the replay function that its docstring names.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bitgate.records.errors import EnvironmentUnfit

try:
    import numba
except ModuleNotFoundError as error:
    raise EnvironmentUnfit(
        f"expected numba, got: {error}. Install the extra 'cpu' (pip install 'bitgate[cpu]'), or "
        "choose the replay implementation"
    ) from error

Array = npt.NDArray[Any]
ZERO, ONE = np.float32(0), np.float32(1)
HALF_UNIT, ONE_BIT, SHIFT = np.int32(0x7FFF), np.int32(1), np.int32(16)


def _compiled(function: Callable[..., Any]) -> Any:
    """A function that compiles on its first call; kept on disk where numba finds a place."""
    # With the model of NumPy a division by zero gives inf or NaN, as in the replay.
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba's way to say that no cache directory can be written
        return numba.njit(error_model="numpy")(function)


@_compiled
def _widen(bits: Array, out: Array) -> None:
    """Bfloat16 bit patterns to float32."""
    wide = out.view(np.int32)
    for k in range(bits.size):
        wide[k] = np.int32(bits[k]) << SHIFT


@_compiled
def _round(values: Array, nan: np.int16, out: Array) -> None:
    """arithmetic.round_bf16."""
    bits = values.view(np.int32)
    for k in range(values.size):
        b = bits[k]
        rounded = np.int16((b + HALF_UNIT + ((b >> SHIFT) & ONE_BIT)) >> SHIFT)
        out[k] = nan if values[k] != values[k] else rounded


@_compiled
def _split(values: Array, high_bits: np.int32, hi: Array, lo: Array) -> None:
    """arithmetic.split, over a flat array."""
    bits, upper = values.view(np.int32), hi.view(np.int32)
    for k in range(values.size):
        upper[k] = bits[k] & high_bits
    for k in range(values.size):
        lo[k] = values[k] - hi[k]


@_compiled
def _tree(lanes: Array) -> Any:
    """arithmetic.tree, in place."""
    width = lanes.size
    while width > 1:
        width //= 2
        for j in range(width):
            lanes[j] = lanes[2 * j] + lanes[2 * j + 1]
    return lanes[0]


@_compiled
def _exp(x: Any, e: Array) -> Any:
    """arithmetic.exp; `e` holds the contract's numbers in the order of `fast.exp_numbers`."""
    limit = e[0]
    if x < -limit:
        return ZERO
    if x > limit:
        return e[5]
    n = (x * e[1] + e[2]) - e[2]
    r = (x - n * e[3]) - n * e[4]
    q = e[6]
    for c in range(7, 12):
        q = q * r + e[c]
    p = (q * (r * r) + r) + ONE
    return np.float32(math.ldexp(p, int(n))) if x == x else x


@_compiled
def _dot_sq(x: Array, hi: Array, lo: Array, lanes: Array, dot: Array) -> Any:
    """replay.dot_sq: fills dot, returns sq."""
    width = lanes.size
    for m in range(hi.shape[0]):
        lanes[:] = ZERO
        for k in range(0, x.size, width):
            for j in range(width):
                lanes[j] = lanes[j] + hi[m, k + j] * x[k + j]
                lanes[j] = lanes[j] + lo[m, k + j] * x[k + j]
        dot[m] = _tree(lanes)
    lanes[:] = ZERO
    for k in range(0, x.size, width):
        for j in range(width):
            lanes[j] = lanes[j] + x[k + j] * x[k + j]
    return _tree(lanes)


@_compiled
def _normalise_rows(comb: Array, eps: Any) -> None:
    """normalise(comb, -1, eps)."""
    for j in range(4):
        total = (((comb[j, 0] + comb[j, 1]) + comb[j, 2]) + comb[j, 3]) + eps
        for k in range(4):
            comb[j, k] = comb[j, k] / total


@_compiled
def _normalise_columns(comb: Array, eps: Any) -> None:
    """normalise(comb, -2, eps)."""
    for k in range(4):
        total = (((comb[0, k] + comb[1, k]) + comb[2, k]) + comb[3, k]) + eps
        for j in range(4):
            comb[j, k] = comb[j, k] / total


@_compiled
def _softmax(comb: Array, eps: Any, e: Array) -> None:
    """exp(rows - maximum_of_four(rows)) / sum_of_four of it, plus eps."""
    for j in range(4):
        largest = comb[j, 0]
        for k in range(1, 4):
            if comb[j, k] > largest:
                largest = comb[j, k]
        for k in range(4):
            comb[j, k] = _exp(comb[j, k] - largest, e)
        total = ((comb[j, 0] + comb[j, 1]) + comb[j, 2]) + comb[j, 3]
        for k in range(4):
            comb[j, k] = comb[j, k] / total + eps


@_compiled
def _finish(
    dot: Array,
    sq: Any,
    size: Any,
    scale: Array,
    base: Array,
    numbers: Array,
    iters: int,
    e: Array,
    pre: Array,
    post: Array,
    comb: Array,
) -> None:
    """replay.finish: fills pre, post and comb; numbers are rms_eps, hc_eps, sink_eps, post_mult."""
    inv = ONE / np.float32(math.sqrt(np.float64(sq / size + numbers[0])))
    for m in range(24):
        factor = scale[0 if m < 4 else (1 if m < 8 else 2)]
        logit = (dot[m] * inv) * factor + base[m]
        if m < 4:
            pre[m] = ONE / (ONE + _exp(ZERO - logit, e)) + numbers[1]
        elif m < 8:
            post[m - 4] = (ONE / (ONE + _exp(ZERO - logit, e))) * numbers[3]
        else:
            comb[(m - 8) // 4, (m - 8) % 4] = logit
    _softmax(comb, numbers[2], e)
    _normalise_columns(comb, numbers[2])
    for _ in range(1, iters):
        _normalise_rows(comb, numbers[2])
        _normalise_columns(comb, numbers[2])
    for i in range(4):
        pre[i] = pre[i] if pre[i] == pre[i] else e[12]
        post[i] = post[i] if post[i] == post[i] else e[12]
        for k in range(4):
            comb[i, k] = comb[i, k] if comb[i, k] == comb[i, k] else e[12]


@_compiled
def _add_product(acc: Array, hi: Any, lo: Any, x: Array) -> None:
    """The replay's two lines `acc = acc + hi * x` and `acc = acc + lo * x`."""
    for h in range(acc.size):
        acc[h] = acc[h] + hi * x[h]
        acc[h] = acc[h] + lo * x[h]


@_compiled
def pre_tokens(
    residual: Array,
    fn: Array,
    scale: Array,
    base: Array,
    numbers: Array,
    iters: int,
    e: Array,
    bits: Array,
    post: Array,
    comb: Array,
    layer_input: Array,
) -> None:
    """mhc_pre for all tokens; bits are HIGH_BITS and the NaN of bfloat16."""
    tokens, size = residual.shape
    hidden = size // 4
    hi, lo = np.empty_like(fn), np.empty_like(fn)
    _split(fn.reshape(fn.size), bits[0], hi.reshape(fn.size), lo.reshape(fn.size))
    x, acc = np.empty(size, np.float32), np.empty(hidden, np.float32)
    lanes, dot = np.empty(256, np.float32), np.empty(24, np.float32)
    pre, pre_hi, pre_lo = np.empty(4, np.float32), np.empty(4, np.float32), np.empty(4, np.float32)
    for t in range(tokens):
        _widen(residual[t], x)
        sq = _dot_sq(x, hi, lo, lanes, dot)
        _finish(dot, sq, np.float32(size), scale, base, numbers, iters, e, pre, post[t], comb[t])
        # replay.apply_pre
        _split(pre, bits[0], pre_hi, pre_lo)
        acc[:] = ZERO
        for i in range(4):
            _add_product(acc, pre_hi[i], pre_lo[i], x[i * hidden : (i + 1) * hidden])
        _round(acc, np.int16(bits[1]), layer_input[t])


@_compiled
def post_tokens(
    x: Array, residual: Array, post: Array, comb: Array, bits: Array, residual_out: Array
) -> None:
    """mhc_post for all tokens: replay.post_sum and its rounding."""
    tokens, hidden = x.shape
    block, acc = np.empty(hidden, np.float32), np.empty(hidden, np.float32)
    streams = np.empty(4 * hidden, np.float32)
    post_hi, post_lo = np.empty(4, np.float32), np.empty(4, np.float32)
    comb_hi, comb_lo = np.empty(16, np.float32), np.empty(16, np.float32)
    for t in range(tokens):
        _widen(x[t], block)
        _widen(residual[t], streams)
        _split(post[t], bits[0], post_hi, post_lo)
        _split(comb[t], bits[0], comb_hi, comb_lo)
        for j in range(4):
            acc[:] = ZERO
            _add_product(acc, post_hi[j], post_lo[j], block)
            for i in range(4):
                stream = streams[i * hidden : (i + 1) * hidden]
                _add_product(acc, comb_hi[4 * i + j], comb_lo[4 * i + j], stream)
            _round(acc, np.int16(bits[1]), residual_out[t, j * hidden : (j + 1) * hidden])
