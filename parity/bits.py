"""Is it the same, bit for bit? Integer views of tensors, and what differs between two of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from bitgate.records.errors import UsageError
from bitgate.records.types import Mismatch

CHUNK_ELEMENTS = 1 << 20
LARGEST_ULP = (1 << 53) - 1

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Floats whose bits, read as sign and magnitude, are ordered like their values.
_SIGNED_FLOATS = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as integers of the element's width, on the CPU, flat in logical order.

    Args:
        tensor: any strided tensor with elements of 1, 2, 4 or 8 bytes, on any device.

    Returns:
        One-dimensional uint8, int16, int32 or int64 tensor; a view where the layout allows.

    Raises:
        UsageError: the tensor has no plain bytes (sparse, quantised, meta, 16-byte elements).
    """
    width = tensor.element_size()
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or width not in _WORDS:
        raise UsageError(
            f"expected a strided tensor with elements of 1, 2, 4 or 8 bytes, got {tensor.dtype}, "
            f"{tensor.layout} on {tensor.device}; compare its parts instead"
        )
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.reshape(-1).cpu().view(_WORDS[width])


def raw_bytes(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of `tensor` in logical (contiguous) order; a view where the layout allows."""
    return words(tensor).contiguous().numpy().view(np.uint8)


def finite(tensor: torch.Tensor) -> int | None:
    """How many elements are neither infinite nor NaN; None for types other than floats."""
    if not tensor.is_floating_point():
        return None
    return int(tensor.to(torch.float64).isfinite().sum())


def hex_pattern(word: int, width: int) -> str:
    """The bit pattern of one element of `width` bytes, such as 0x3f80."""
    return f"0x{word & ((1 << (8 * width)) - 1):0{2 * width}x}"


@dataclass
class _Tally:
    """What the chunks seen so far have shown."""

    differing: int = 0
    first: int | None = None
    last: int = 0
    patterns: tuple[str, str] = ("", "")
    ulp: int | None = None
    zero_signs: int = 0
    nan_payloads: int = 0
    toward_zero: int = 0
    rows_hit: int = 0
    rows_full: int = 0
    actual_all_zero: bool = True
    rows_seen: bool = field(default=True)


def compare_tensor(name: str, expected: torch.Tensor, actual: torch.Tensor) -> Mismatch | None:
    """How `actual` differs from `expected` in dtype, shape or bits; None if it does not.

    Strides may differ: bits are compared in logical order, in chunks, so that memory stays bounded.
    +0.0 and -0.0 differ, and so do two NaNs with different payloads; both are counted in the hints.
    `max_ulp` is the signed distance (actual minus expected) of the largest magnitude in units in
    the last place, over the pairs without a NaN, and at most 2^53 - 1, the largest integer that
    every JSON reader keeps; None for types other than floats.

    Two empty tensors of one shape and dtype have no mismatch, but nothing was compared either:
    `compare_tensors` therefore does not count them.
    """
    total = expected.numel()
    if expected.dtype != actual.dtype:
        detail = f"expected {expected.dtype}, got {actual.dtype}"
        return Mismatch(tensor=name, kind="dtype", detail=detail, total=total)
    if expected.shape != actual.shape:
        detail = f"expected shape {tuple(expected.shape)}, got {tuple(actual.shape)}"
        return Mismatch(tensor=name, kind="shape", detail=detail, total=total)
    tally = _Tally()
    offset = 0
    row = expected.shape[-1] if expected.dim() else 1
    for left, right in chunks(expected, actual):
        _count(tally, left, right, offset, row)
        offset += left.numel()
    return None if tally.first is None else _mismatch(name, expected, tally, row)


def chunks(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Matching flat pieces of two tensors of one shape, in logical order, without a full copy."""
    if left.numel() <= CHUNK_ELEMENTS:
        if left.numel():
            yield left.reshape(-1), right.reshape(-1)
        return
    rows = max(1, CHUNK_ELEMENTS // (left.numel() // left.shape[0]))
    for start in range(0, left.shape[0], rows):
        part, other = left[start : start + rows], right[start : start + rows]
        if part.numel() > CHUNK_ELEMENTS:
            yield from chunks(part[0], other[0])
        else:
            yield part.reshape(-1), other.reshape(-1)


def _count(tally: _Tally, left: torch.Tensor, right: torch.Tensor, offset: int, row: int) -> None:
    expected, actual = words(left), words(right)
    unequal = expected != actual
    tally.actual_all_zero &= not bool(actual.any())
    count = int(unequal.sum())
    if unequal.numel() % row:
        tally.rows_seen = False
    if not count:
        return
    where = unequal.nonzero().flatten()
    wanted, found = expected[where], actual[where]
    if tally.first is None:
        tally.first = offset + int(where[0])
        width = left.element_size()
        tally.patterns = (hex_pattern(int(wanted[0]), width), hex_pattern(int(found[0]), width))
    tally.last = offset + int(where[-1])
    tally.differing += count
    if tally.rows_seen:
        rows = unequal.view(-1, row)
        tally.rows_hit += int(rows.any(dim=1).sum())
        tally.rows_full += int(rows.all(dim=1).sum())
    if left.dtype in _SIGNED_FLOATS:
        _count_floats(tally, wanted.view(left.dtype), found.view(left.dtype))


def _magnitudes(values: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(magnitude as uint64, sign bit) of the bit patterns of floats."""
    width = values.element_size()
    unsigned = words(values).numpy().view(f"u{width}").astype(np.uint64)
    top = np.uint64(1 << (8 * width - 1))
    return unsigned & (top - np.uint64(1)), (unsigned & top) != 0


def _count_floats(tally: _Tally, wanted: torch.Tensor, found: torch.Tensor) -> None:
    """Add the classes of differing float pairs: signs of zero, NaN payloads, distances in ULP."""
    nan_wanted = wanted.to(torch.float64).isnan().numpy()
    nan_found = found.to(torch.float64).isnan().numpy()
    tally.nan_payloads += int((nan_wanted & nan_found).sum())
    real = ~(nan_wanted | nan_found)
    (size, minus), (other, other_minus) = _magnitudes(wanted), _magnitudes(found)
    zeros = real & (size == 0) & (other == 0)
    tally.zero_signs += int(zeros.sum())
    same = minus == other_minus
    # Sizes of opposite signs add up; uint64 holds the sum for every float type.
    distance = np.where(same, np.maximum(size, other) - np.minimum(size, other), size + other)
    tally.toward_zero += int((real & same & (distance == 1) & (other < size)).sum())
    if not real.any():
        return
    at = int(np.where(real, distance, 0).argmax())
    below = other_minus[at] and not minus[at] if not same[at] else (other < size)[at] != minus[at]
    size_ulp = min(int(distance[at]), LARGEST_ULP)
    ulp = -size_ulp if below else size_ulp
    if tally.ulp is None or abs(ulp) > abs(tally.ulp):
        tally.ulp = ulp


def _mismatch(name: str, expected: torch.Tensor, tally: _Tally, row: int) -> Mismatch:
    first = tally.first or 0
    index = tuple(int(i) for i in np.unravel_index(first, expected.shape)) if row else ()
    wanted, found = tally.patterns
    ulp = f", at most {tally.ulp:+d} ULP" if tally.ulp is not None else ""
    return Mismatch(
        tensor=name,
        kind="bits",
        detail=(
            f"{tally.differing} of {expected.numel()} elements differ{ulp}; first at "
            f"{list(index)}: expected {wanted}, got {found}"
        ),
        first_index=index,
        expected_bits=wanted,
        actual_bits=found,
        differing=tally.differing,
        total=expected.numel(),
        max_ulp=tally.ulp,
        hints=tuple(_hints(tally, expected, row)),
    )


def _hints(tally: _Tally, expected: torch.Tensor, row: int) -> Iterator[str]:
    """What the pattern of differences suggests; hints explain, they never decide."""
    total, count, first = expected.numel(), tally.differing, tally.first or 0
    run = tally.last - first + 1 == count
    if count == 1:
        yield "one single element"
    if expected.dim() > 1 and tally.rows_seen and tally.rows_hit == tally.rows_full > 0:
        yield f"whole rows of {row} elements: {tally.rows_full} of {math.ceil(total / row)}"
    if run and 1 < count < total and tally.last == total - 1:
        yield f"contiguous tail of {count} elements"
    if tally.actual_all_zero:
        yield "the actual tensor is all zero"
    if tally.zero_signs:
        only = "only " if tally.zero_signs == count else ""
        yield f"{only}the sign of zero differs in {tally.zero_signs} elements"
    if tally.nan_payloads:
        only = "only " if tally.nan_payloads == count else ""
        yield f"{only}the payload of NaN differs in {tally.nan_payloads} elements"
    if tally.toward_zero == count > 1:
        yield "every difference is one ULP toward zero: truncated instead of rounded?"
