"""The requests that only decode, kept so that a step touches none of them.

A cohort is a front part of the running list, in order, whose members compute one token in every
step. One tick counts the steps for all of them: a member has computed `base` + tick tokens. What
happens to single members lies in calendars: who ends at which tick, and who starts a new block at
which residue of the tick. Members join in running order, so each calendar entry is in that order.
"""

from heapq import heappop, heappush

from bitgate.sim.jobs import Job


class Cohort:
    """Members are jobs with exactly one known token that is not computed."""

    def __init__(self, block_size: int) -> None:
        self.tick = 0
        self.kv_tokens = 0
        self._block_size = block_size
        self._members: dict[Job, None] = {}
        self._ends: dict[int, list[Job]] = {}
        self._end_ticks: list[int] = []
        self._starts: list[dict[Job, None]] = [{} for _ in range(block_size)]

    def __len__(self) -> int:
        return len(self._members)

    def join(self, job: Job) -> None:
        """Take in the next of the running list."""
        job.base = job.computed - self.tick
        self._members[job] = None
        end = job.limit - 2 - job.base
        if end not in self._ends:
            self._ends[end] = []
            heappush(self._end_ticks, end)
        self._ends[end].append(job)
        self._starts[-job.base % self._block_size][job] = None
        self.kv_tokens += job.computed + 1

    def starting(self, steps: range = range(1)) -> list[Job]:
        """Who starts a new block in the steps that are so far from now, in order."""
        starts, tick, size = self._starts, self.tick, self._block_size
        return [job for ahead in steps for job in starts[(tick + ahead) % size]]

    def plain_steps(self, most: int, free: int) -> int:
        """The next steps for which `free` blocks suffice, to the first in which somebody ends."""
        most = min(most, self._end_ticks[0] - self.tick + 1)
        if free >= len(self._members) * -(-most // self._block_size):
            return most
        for steps in range(most):
            free -= len(self._starts[(self.tick + steps) % self._block_size])
            if free < 0:
                return steps
        return most

    def pass_steps(self, steps: int) -> list[Job]:
        """Count so many tokens for each member; returns those whose last this was, who leave.

        Nobody ends before the last of these steps.
        """
        self.tick += steps
        self.kv_tokens += steps * len(self._members)
        ended = self._ends.pop(self.tick - 1, [])
        if ended:
            heappop(self._end_ticks)
        for job in ended:
            self._settle(job)
            del self._members[job]
            del self._starts[-job.base % self._block_size][job]
            self.kv_tokens -= job.computed + 1
        return ended

    def members(self) -> list[Job]:
        """All, in running order, with their counts made current."""
        for job in self._members:
            self._settle(job)
        return list(self._members)

    def dissolve(self) -> list[Job]:
        """Let all go, in running order."""
        jobs = self.members()
        self._members.clear()
        self._ends.clear()
        self._end_ticks.clear()
        for starts in self._starts:
            starts.clear()
        self.kv_tokens = 0
        return jobs

    def _settle(self, job: Job) -> None:
        job.computed = job.base + self.tick
        job.tokens = job.computed + 1
