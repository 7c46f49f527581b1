"""The KV block pool of vLLM: who is free in which order, and whose contents can be found again."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from bitgate.records.base import require


class BlockPool:
    """Blocks 1 to `num_blocks` - 1; block 0 is reserved.

    The free queue, front to back, is `_fresh` read from its end, then `_idle`: a free block without
    a key is never behind one with a key, because only blocks with a key go to the tail. Of several
    blocks with one key `_first` has the oldest, and `_copies` the others by age. A block whose key
    nobody else can ask for may go without one, and queue as if it had it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._fresh = list(range(num_blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._key_of: list[Hashable] = [None] * num_blocks
        self._first: dict[Hashable, int] = {}
        self._copies: dict[Hashable, list[int]] = {}
        self._more_owners: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Free blocks; those whose contents can still be found count."""
        return len(self._fresh) + len(self._idle)

    @property
    def keys(self) -> int:
        """Distinct keys that a lookup can find."""
        return len(self._first)

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
        evicted = [self._idle.popitem(last=False)[0] for _ in range(count - len(taken))]
        for block in evicted:
            key, self._key_of[block] = self._key_of[block], None
            if key in self._copies:
                self._drop_copy(key, block)
            elif key is not None:
                del self._first[key]
        return taken + evicted

    def give_back(self, named: Sequence[int], unnamed: Sequence[int]) -> None:
        """Release one owner of each block; what nobody owns any more is free.

        Both ends of the queue get theirs last block first: those without a key the front, to be
        taken next, those with a key the tail (addendum 1).
        """
        self._fresh.extend(unnamed)
        more = self._more_owners
        shared = [block for block in named if block in more]
        if shared:
            named = [block for block in named if block not in more]
            for block in shared:
                more[block] -= 1
                if not more[block]:
                    del more[block]
        self._idle.update(dict.fromkeys(reversed(named)))

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """The longest chain of blocks that hold these keys; of several copies the oldest."""
        first = self._first
        found: list[int] = []
        for key in keys:
            block = first.get(key)
            if block is None:
                break
            found.append(block)
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
                self._more_owners[block] = self._more_owners.get(block, 0) + 1

    def name(self, blocks: Iterable[int], keys: Iterable[Hashable]) -> None:
        """Let blocks be found by their keys; copies of one content are not merged (addendum 4)."""
        key_of, first = self._key_of, self._first
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key
            if first.setdefault(key, block) != block:
                self._copies.setdefault(key, []).append(block)

    def _drop_copy(self, key: Hashable, block: int) -> None:
        copies = self._copies[key]
        if self._first[key] == block:
            self._first[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
