"""A request inside the engine, and the queues in which it waits."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One live request as the scheduler sees it.

    limit: known tokens at which it ends
    content: the keys of its blocks, in order, without end
    shared: its tokens may be another's too; otherwise its blocks are of use to itself alone
    tokens: known tokens, prompt and outputs so far
    computed: tokens whose keys and values lie in `blocks`
    named: leading blocks that can be found by their keys, or could be if somebody looked
    filling: its last step left known tokens uncomputed, so it is a prompt in progress
    base: while it is in the cohort, `computed` less the cohort's tick (see cohort.py)
    """

    id: int
    prompt: int
    limit: int
    content: Iterator[Hashable]
    shared: bool = True
    arrival: int = 0
    priority: int = 0
    tokens: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    named: int = 0
    filling: bool = False
    preemptions: int = 0
    base: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.prompt

    def block_keys(self, start: int, stop: int) -> list[Hashable]:
        """The keys of its blocks `start` to `stop`."""
        keys = self.keys
        if stop > len(keys):
            keys.extend(islice(self.content, stop - len(keys)))
        return keys[start:stop]


class FcfsQueue:
    """First come, first served; who lost its blocks goes to the front (rule 4)."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Join at the end."""
        self._jobs.append(job)

    def add_preempted(self, job: Job) -> None:
        """Join at the front."""
        self._jobs.appendleft(job)

    def head(self) -> Job:
        """The next to be admitted."""
        return self._jobs[0]

    def pop(self) -> Job:
        """Take the next."""
        return self._jobs.popleft()

    def jobs(self) -> list[Job]:
        """All in the order in which they would be taken."""
        return list(self._jobs)


class PriorityQueue:
    """By priority, then arrival, then id; who lost its blocks is sorted in again (addendum 2)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Job]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, job: Job) -> None:
        """Join in order."""
        heappush(self._heap, (job.priority, job.arrival, job.id, job))

    def add_preempted(self, job: Job) -> None:
        """Join in order, as any other."""
        self.add(job)

    def head(self) -> Job:
        """The next to be admitted."""
        return self._heap[0][-1]

    def pop(self) -> Job:
        """Take the next."""
        return heappop(self._heap)[-1]

    def jobs(self) -> list[Job]:
        """All in the order in which they would be taken."""
        return [entry[-1] for entry in sorted(self._heap)]
