"""The requests that only decode, kept so that a step touches none of them.

A cohort is a front part of the running list, in order, whose members compute one token in every
step. One tick counts the steps for all of them: a member has computed `base` + tick tokens. What
happens to single members lies in calendars: who ends at which tick, and who starts a new block at
which residue of the tick. Members join in running order, so each calendar entry is in that order.
"""

from bitgate.sim.jobs import Job


class Cohort:
    """Members are jobs with exactly one known token that is not computed."""

    def __init__(self, block_size: int) -> None:
        self.tick = 0
        self.kv_tokens = 0
        self._block_size = block_size
        self._members: dict[Job, None] = {}
        self._ends: dict[int, list[Job]] = {}
        self._starts: list[dict[Job, None]] = [{} for _ in range(block_size)]

    def __len__(self) -> int:
        return len(self._members)

    def join(self, job: Job) -> None:
        """Take in the next of the running list."""
        job.base = job.computed - self.tick
        self._members[job] = None
        self._ends.setdefault(job.limit - 2 - job.base, []).append(job)
        self._starts[-job.base % self._block_size][job] = None
        self.kv_tokens += job.computed + 1

    def starting(self, ahead: int = 0) -> dict[Job, None]:
        """Who starts a new block in the step that is `ahead` steps from now."""
        return self._starts[(self.tick + ahead) % self._block_size]

    def quiet_steps(self, most: int, free: int) -> int:
        """The next steps in which nobody ends and `free` blocks suffice, `most` at most."""
        steps = 0
        while steps < most and self.tick + steps not in self._ends:
            free -= len(self.starting(steps))
            if free < 0:
                break
            steps += 1
        return steps

    def pass_step(self) -> list[Job]:
        """Count one token for each member; returns those that have all, who leave."""
        ended = self._ends.pop(self.tick, [])
        self.tick += 1
        self.kv_tokens += len(self._members)
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
        for starts in self._starts:
            starts.clear()
        self.kv_tokens = 0
        return jobs

    def _settle(self, job: Job) -> None:
        job.computed = job.base + self.tick
        job.tokens = job.computed + 1
