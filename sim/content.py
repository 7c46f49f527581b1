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
        return _chained(_pieces(segments, serial, block_size))
    # Nothing can be shared, so no chain is needed: whole numbers, and no two requests' meet.
    return count(serial << 32)


def _chained(blocks: Iterator[list[int]]) -> Iterator[Hashable]:
    """Yield the digest of each block together with all before it."""
    parent = b""
    for pieces in blocks:
        packed = struct.pack(f"<{len(pieces)}q", *pieces)
        parent = blake2b(packed, digest_size=KEY_BYTES, key=parent).digest()
        yield parent


def _pieces(
    segments: tuple[tuple[int, int], ...], serial: int, block_size: int
) -> Iterator[list[int]]:
    """Yield each block as a flat list of its pieces: segment, first offset, tokens."""
    pieces: list[int] = []
    room = block_size
    for segment, length in chain(segments, [(-1 - serial, sys.maxsize)]):
        at = 0
        while at < length:
            size = min(room, length - at)
            pieces += (segment, at, size)
            at, room = at + size, room - size
            if not room:
                yield pieces
                pieces, room = [], block_size
