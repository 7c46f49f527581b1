"""Which blocks hold the same tokens: a key for each full block of a request, in order."""

import struct
import sys
from collections.abc import Hashable, Iterator
from hashlib import blake2b
from itertools import chain, count

KEY_BYTES = 16


def block_keys(
    segments: tuple[tuple[int, int], ...], serial: int, block_size: int
) -> Iterator[Hashable]:
    """Return the keys of a request's blocks, without end.

    A token is (segment, offset) with offsets counted from 0 in each entry of `segments`; two
    blocks have one key exactly if their tokens and those of all blocks before them agree. Tokens
    beyond the last segment belong to nobody else: they are told apart by `serial`.
    """
    if segments:
        return _keys(segments, serial, block_size)
    # Nothing can be shared: whole numbers, and no two requests' meet.
    return count(serial << 32)


def _keys(
    segments: tuple[tuple[int, int], ...], serial: int, block_size: int
) -> Iterator[Hashable]:
    """Yield keys that need one digest for a segment, not for each block.

    `before` stands for all whole segments so far. A block inside a segment is known by `before`,
    the segment and its offset; one that spans segments by `before` at its start and its pieces.
    """
    before = start = b""
    pieces: list[int] = []
    room = 0
    for segment, length in chain(segments, [(-1 - serial, sys.maxsize)]):
        at = min(room, length)
        if at:
            pieces += (segment, at)
            room -= at
            if not room:
                yield _digest(start, pieces)
        stop = length - (length - at) % block_size
        first = int.from_bytes(_digest(before, [segment]))
        yield from range(first + at, first + stop, block_size)
        if stop < length:
            pieces, room, start = [segment, stop, length - stop], block_size - length + stop, before
        before = _digest(before, [segment, length])


def _digest(before: bytes, words: list[int]) -> bytes:
    return blake2b(
        struct.pack(f"<{len(words)}q", *words), digest_size=KEY_BYTES, key=before
    ).digest()
