"""The KV block pool of vLLM: who is free in which order, and whose contents can be found again."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from bitgate.records.base import require


class BlockPool:
    """Blocks 1 to `num_blocks` - 1; block 0 is reserved.

    The free queue, front to back, is `_fresh` read from its end, then `_idle`: a free block without
    a key is never behind one with a key, because only blocks with a key go to the tail.
    """

    def __init__(self, num_blocks: int) -> None:
        self._fresh = list(range(num_blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, Hashable] = {}
        self._holders: dict[Hashable, list[int]] = {}
        self._sharers: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Free blocks; those whose contents can still be found count."""
        return len(self._fresh) + len(self._idle)

    @property
    def keys(self) -> int:
        """Distinct keys that a lookup can find."""
        return len(self._holders)

    def queue(self) -> list[int]:
        """The free blocks, the next to be taken first."""
        return [*reversed(self._fresh), *self._idle]

    def take(self, count: int) -> list[int]:
        """Take blocks from the front; a block that still had a key loses it (rule 11)."""
        fresh = self._fresh
        if count <= len(fresh):
            start = len(fresh) - count
            taken = fresh[start:]
            del fresh[start:]
            taken.reverse()
            return taken
        require(count <= self.free, f"block pool: asked for {count} of {self.free} free blocks")
        taken = fresh[::-1]
        fresh.clear()
        while len(taken) < count:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
            taken.append(block)
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Release one owner of each block; what nobody owns any more is free.

        Both ends of the queue get theirs last block first: those without a key the front, to be
        taken next, those with a key the tail (addendum 1).
        """
        if not self._key_of:
            self._fresh.extend(blocks)
            return
        freed = [block for block in blocks if not self._disown(block)]
        self._fresh.extend(block for block in freed if block not in self._key_of)
        for block in reversed(freed):
            if block in self._key_of:
                self._idle[block] = None

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """The longest chain of blocks that hold these keys; of several copies the oldest."""
        found: list[int] = []
        for key in keys:
            holders = self._holders.get(key)
            if holders is None:
                break
            found.append(holders[0])
        return found

    def count_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free."""
        return sum(block in self._idle for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Own blocks that were found: an idle one leaves the queue, another gets one more owner."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
            else:
                self._sharers[block] = self._sharers.get(block, 0) + 1

    def name(self, blocks: Iterable[int], keys: Iterable[Hashable]) -> None:
        """Let blocks be found by their keys; copies of one content are not merged (addendum 4)."""
        for block, key in zip(blocks, keys, strict=True):
            self._key_of[block] = key
            self._holders.setdefault(key, []).append(block)

    def _disown(self, block: int) -> bool:
        """Count one owner less; whether others are left."""
        others = self._sharers.pop(block, 0)
        if others > 1:
            self._sharers[block] = others - 1
        return others > 0

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block)
        holders = self._holders[key]
        holders.remove(block)
        if not holders:
            del self._holders[key]
