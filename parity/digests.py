"""A digest of raw bytes that any backend can compute in any order, and that sees every swap.

The bytes are read as little-endian 32-bit words, the last one padded with zeros. Word ``w`` at
index ``i`` is mixed with its position,

    m(i, w) = finalise(((i mod 2^32) * 2^32 + w) + (i div 2^32 + 1) * GOLDEN)       modulo 2^64

and the digest is two 64-bit lanes: the sum of all m modulo 2^64, and their exclusive or, each
started with m of the length in bytes at an index that no word has. Addition and exclusive or
commute, so devices may accumulate in any order; the position is inside the mix, so a permutation
changes it. ``finalise`` is the 64-bit finaliser of MurmurHash3 (A. Appleby, public domain).

Names, dtypes, shapes and strides are not part of it: they are compared on their own. It is not
cryptographic; files of evidence carry SHA-256 as well.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from bitgate.parity.bits import raw_bytes

GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_MASK = (1 << 64) - 1
_LENGTH_INDEX = _MASK
_BLOCK_WORDS = 1 << 15

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Lanes = Callable[[Any, Any], tuple[Any, Any]]


def mix(index: int, word: int) -> int:
    """The definition of m(index, word), in Python integers."""
    low = ((index << 32) & _MASK) + word
    x = (low + ((index >> 32) + 1) * GOLDEN) & _MASK
    x = ((x ^ (x >> 33)) * _FIRST) & _MASK
    x = ((x ^ (x >> 33)) * _SECOND) & _MASK
    return x ^ (x >> 33)


def digest(tensor: torch.Tensor) -> str:
    """32 hex digits over the bytes of `tensor` in logical (contiguous) order; any device."""
    return digest_bytes(raw_bytes(tensor))


def digest_bytes(data: Bytes) -> str:
    """32 hex digits over one-dimensional uint8 `data`: the sum lane, then the xor lane."""
    return _digest(data, host_lanes())


def digest_numpy(data: Bytes) -> str:
    """The same digest without numba."""
    return _digest(data, numpy_lanes)


def digest_torch(tensor: torch.Tensor) -> str:
    """The same digest from torch operations only; slow, and it runs where the tensor lies."""
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    data = plain.reshape(-1).view(torch.uint8)
    length = data.numel()
    padded = torch.zeros(-(-length // 4) * 4, dtype=torch.uint8, device=data.device)
    padded[:length] = data
    parts = padded.view(-1, 4).to(torch.int64)
    word = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16 | parts[:, 3] << 24
    index = torch.arange(word.numel(), dtype=torch.int64, device=data.device)
    x = (index << 32) + word + ((index >> 32) + 1) * _signed(GOLDEN)
    for factor in (_FIRST, _SECOND):
        x = (x ^ _shift_33(x)) * _signed(factor)
    mixed = x ^ _shift_33(x)
    # torch has no xor reduction: fold halves until one word is left.
    total, folded = int(mixed.sum()) & _MASK, mixed
    while folded.numel() > 1:
        half = folded.numel() // 2
        rest = folded[2 * half :]
        folded = torch.cat([folded[:half] ^ folded[half : 2 * half], rest])
    return _finish(length, total, int(folded[0]) & _MASK if length else 0)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift_33(x: torch.Tensor) -> torch.Tensor:
    """Logical right shift by 33 of int64."""
    return (x >> 33) & ((1 << 31) - 1)


def _finish(length: int, total: int, folded: int) -> str:
    seed = mix(_LENGTH_INDEX, length & 0xFFFFFFFF) + (length >> 32)
    return f"{(total + seed) & _MASK:016x}{(folded ^ seed) & _MASK:016x}"


def _digest(data: Bytes, lanes: Lanes) -> str:
    length = data.size
    whole = length // 4
    word = np.ascontiguousarray(data)[: 4 * whole].view("<u4")
    if not word.flags.aligned:
        word = word.copy()
    total, folded = add_words(word, 0, lanes)
    if length % 4:
        last = mix(whole, int.from_bytes(data[4 * whole :].tobytes(), "little"))
        total, folded = total + last, folded ^ last
    return _finish(length, total, folded)


def add_words(word: Any, start: int, lanes: Lanes) -> tuple[int, int]:
    """(sum modulo 2^64, xor) of m over uint32 `word`, whose first index is `start`."""
    total, folded = 0, 0
    while word.size:
        high = start >> 32
        # Within a multiple of 2^32 words the high half of the index is a constant of the mix.
        part = word[: ((high + 1) << 32) - start]
        base = ((start << 32) + (high + 1) * GOLDEN) & _MASK
        added, mixed = lanes(part, np.uint64(base))
        total, folded = (total + int(added)) & _MASK, folded ^ int(mixed)
        word, start = word[part.size :], start + part.size
    return total, folded


def numpy_lanes(word: Any, base: Any) -> tuple[int, int]:
    """Sum and xor of the finalised ``i * 2^32 + word[i] + base``, in blocks that stay in cache."""
    total, folded = 0, 0
    x = np.empty(min(_BLOCK_WORDS, word.size), np.uint64)
    shifted = np.empty_like(x)
    ramp = np.arange(x.size, dtype=np.uint64) << np.uint64(32)
    for at in range(0, word.size, _BLOCK_WORDS):
        block = word[at : at + _BLOCK_WORDS]
        x, shifted = x[: block.size], shifted[: block.size]
        np.add(ramp[: block.size], np.uint64(((at << 32) + int(base)) & _MASK), out=x)
        np.add(x, block, out=x)
        for factor in (_FIRST, _SECOND):
            np.right_shift(x, np.uint64(33), out=shifted)
            np.bitwise_xor(x, shifted, out=x)
            np.multiply(x, np.uint64(factor), out=x)
        np.right_shift(x, np.uint64(33), out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        total += int(np.add.reduce(x))
        folded ^= int(np.bitwise_xor.reduce(x))
    return total & _MASK, folded


@functools.cache
def host_lanes() -> Lanes:
    """The fastest lanes on this host: numba, compiled at the first use, or else NumPy."""
    return compile_lanes() if sys.byteorder == "little" and find_spec("numba") else numpy_lanes


def compile_lanes() -> Lanes:
    """The lanes compiled by numba; kept in its cache on disk where that is writable."""
    import numba

    u64 = np.uint64
    first, second, shift = u64(_FIRST), u64(_SECOND), u64(33)

    def lanes(word: Any, base: Any) -> tuple[Any, Any]:
        total, folded = u64(0), u64(0)
        for at in range(word.size):
            x = (u64(at) << u64(32)) + u64(word[at]) + base
            x = (x ^ (x >> shift)) * first
            x = (x ^ (x >> shift)) * second
            x = x ^ (x >> shift)
            total += x
            folded ^= x
        return total, folded

    read_only = numba.types.Array(numba.types.uint32, 1, "C", readonly=True)
    signature = [(read_only, numba.types.uint64)]
    try:
        return numba.njit(signature, cache=True, nogil=True)(lanes)
    except RuntimeError:  # numba finds no directory that it may write its cache to
        return numba.njit(signature, nogil=True)(lanes)


# --- the self-test: a digest that misses a swap or a flip is refused ------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """How many planted changes a digest was shown, and descriptions of those that it missed."""

    trials: int
    missed: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether changes were planted and every one was seen."""
        return self.trials > 0 and not self.missed


def self_test(function: Callable[[Bytes], str] = digest_bytes) -> SelfTest:
    """Show `function` every swap of two words, every bit flip and every cut of a sample.

    The sample holds 24 distinct float32 words and three bytes. Digests that ignore position
    (exclusive or, sums, norms) miss the swaps, and norms miss the flips of a sign; this refuses
    them.
    """
    floats = np.arange(1, 25, dtype="<f4") * np.float32(0.37) * np.tile([1, -1], 12)
    sample = np.concatenate([floats.astype("<f4").view(np.uint8), np.array([1, 2, 3], np.uint8)])
    reference = function(sample)
    trials, missed = 0, []
    for change, changed in _changes(sample):
        trials += 1
        if function(changed) == reference:
            missed.append(change)
    return SelfTest(trials=trials, missed=tuple(missed))


def _changes(sample: Bytes) -> Iterator[tuple[str, Bytes]]:
    whole = sample.size // 4
    for left in range(whole):
        for right in range(left + 1, whole):
            changed = sample.copy()
            words = changed[: 4 * whole].view("<u4")
            words[[left, right]] = words[[right, left]]
            yield f"swap of words {left} and {right}", changed
    for at in range(sample.size):
        for bit in range(8):
            changed = sample.copy()
            changed[at] ^= np.uint8(1 << bit)
            yield f"flip of bit {bit} in byte {at}", changed
    for length in range(sample.size):
        yield f"cut to {length} bytes", sample[:length]
    for zeros in (1, 2, 4):
        yield f"{zeros} zero bytes appended", np.append(sample, np.zeros(zeros, np.uint8))
