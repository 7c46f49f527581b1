"""The scheduler of one vLLM V1 engine: what the next forward pass computes, and for whom.

Rules are numbered as in docs/scheduler.md: a step is planned by serving the running list in order
(2 to 5), then admitting from the head of the waiting queue (6 to 10); tokens count as computed
when they are planned (12); outputs, ends and freed blocks follow when the step is applied (13, 14).
Not modelled, because nothing of the kind exists here: drafts, more
than one pipeline stage (3), and outputs that are still in flight.

The running list is `cohort` followed by `rest`. Both are served by the same rules; in the cohort,
whose members all decode, serving is counting. An engine with `cohorts=False` keeps every request
in `rest`: slower, and with the same result.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from bitgate.sim.cohort import Cohort
from bitgate.sim.config import EngineConfig
from bitgate.sim.jobs import FcfsQueue, Job, PriorityQueue
from bitgate.sim.kv_cache import KvCache
from bitgate.sim.step import StepShape

RUNNING, NEW, RESUMED = 0, 1, 2


class Chunk(NamedTuple):
    """A request's share of a step: `tokens` beyond the `computed` ones; how it came to run."""

    job: Job
    tokens: int
    computed: int
    kind: int


@dataclass(slots=True)
class Step:
    """What `plan` decided; `cohort` members decode besides the chunks, and come first.

    preempted: who lost his blocks, with the computed tokens that he lost, in that order
    dissolved: the cohort's members went back to the rest, because not all could be served
    """

    cohort: int = 0
    cohort_kv_tokens: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[tuple[Job, int]] = field(default_factory=list)
    dissolved: bool = False

    def shape(self) -> StepShape:
        """The work of this step, for its price."""
        prefills = []
        decodes, kv_tokens = self.cohort, self.cohort_kv_tokens
        for job, tokens, computed, _ in self.chunks:
            if tokens == 1 and computed >= job.prompt:
                decodes += 1
                kv_tokens += computed + 1
            else:
                prefills.append((tokens, computed))
        return StepShape(tuple(prefills), decodes, kv_tokens, self.cohort + len(self.chunks))


@dataclass(slots=True)
class Outcome:
    """What a step brought: who got the first token, who ended, who joined the cohort."""

    first: list[Job] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)
    joined: list[Job] = field(default_factory=list)


class Engine:
    """One scheduler with its blocks; knows neither time nor prices."""

    def __init__(self, config: EngineConfig, *, cohorts: bool = True) -> None:
        self.config = config
        self._cache = KvCache(config)
        self._waiting = FcfsQueue() if config.policy == "fcfs" else PriorityQueue()
        self._rest: list[Job] = []
        self._cohort = Cohort(config.block_size)
        # A priority victim can stand anywhere in the running list: there, nobody joins.
        self._cohorts = cohorts and config.policy == "fcfs"
        self._budget = config.token_budget
        self._limit = config.running_limit
        # These two let a head in as time goes by or as the queue grows, without anybody's end.
        self._patient = (
            config.prefill_schedule_interval == 1
            and not config.long_prefill_token_threshold_adaptive
        )
        self._capacity_bound = False
        self._stuck = False

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + len(self._cohort) + len(self._rest)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody owns."""
        return self._cache.free_blocks

    @property
    def cohort(self) -> tuple[int, int]:
        """The cohort's members, and the tokens that their next step attends to."""
        return len(self._cohort), self._cohort.kv_tokens

    def running(self) -> list[Job]:
        """The running list, in order, with current counts."""
        return self._cohort.members() + self._rest

    def waiting(self) -> list[Job]:
        """The waiting queue, in the order in which it would be emptied."""
        return self._waiting.jobs()

    def add(self, job: Job) -> None:
        """Let a request wait."""
        self._waiting.add(job)

    def plan(self, index: int) -> Step:
        """Decide the next step; `index` counts the engine's steps (for the prefill interval)."""
        step = Step()
        deferring = self._defers(index)
        cap = self._long_prefill_cap()
        budget = self._serve_cohort(step, self._budget)
        budget = self._serve_rest(step, budget, cap, deferring=deferring)
        # Rule 6: a step that preempts admits nobody.
        self._stuck = False
        if not step.preempted:
            self._stuck = self._admit(step, budget, cap, deferring=deferring) and self._patient
            if not deferring:
                self._capacity_bound = len(self._waiting) > 0
        # Rule 12: tokens count as computed from here on.
        for job, tokens, _, _ in step.chunks:
            job.computed += tokens
            job.filling = job.computed < job.tokens
        return step

    def apply(self, step: Step) -> Outcome:
        """Let the planned step have happened."""
        outcome = Outcome(finished=self._cohort.pass_steps(1) if step.cohort else [])
        # Rule 13: who has all known tokens computed gets one more; a partial chunk gets none.
        for job, _, _, _ in step.chunks:
            if job.filling:
                continue
            job.tokens += 1
            if job.tokens == job.prompt + 1:
                outcome.first.append(job)
            # Rule 14: the end comes by count only.
            if job.tokens == job.limit:
                outcome.finished.append(job)
        self._release(outcome.finished)
        self._rest = [job for job in self._rest if job.tokens < job.limit]
        self._gather(outcome)
        return outcome

    def plain_steps(self, most: int) -> int:
        """How many of the next steps only decode every running request, if nobody arrives.

        In none of them can anybody be preempted or admitted, and only in the last can anybody end;
        `most` at most.
        """
        if self._rest or not self._cohort or (len(self._waiting) and not self._stuck):
            return 0
        return self._cohort.plain_steps(most, self._cache.free_blocks)

    def pass_plain_steps(self, count: int) -> list[Job]:
        """Plan and apply so many plain steps at once; returns who ended with the last."""
        self._extend_cohort(count)
        ended = self._cohort.pass_steps(count)
        self._release(ended)
        return ended

    def _defers(self, index: int) -> bool:
        """Prefill interval: whether prompts rest in this step (addendum 9).

        They do not while nobody decodes, nor while the last step open to them left some waiting.
        """
        if index % self.config.prefill_schedule_interval == 0 or self._capacity_bound:
            return False
        return len(self._cohort) > 0 or any(not job.filling for job in self._rest)

    def _long_prefill_cap(self) -> int:
        """Long-prefill cap: the most tokens that a request may have in this step (addendum 8)."""
        config = self.config
        cap = config.long_prefill_token_threshold
        if not cap or (count := self.unfinished) == 1:
            return config.max_model_len
        if config.long_prefill_token_threshold_adaptive:
            return max(cap, config.max_num_batched_tokens // count)
        return cap

    def _serve_cohort(self, step: Step, budget: int) -> int:
        """Rule 2 for the front of the running list: one token each, or back to the long way."""
        members = len(self._cohort)
        if not members:
            return budget
        if members > budget or len(self._cohort.starting()) > self._cache.free_blocks:
            self._rest[:0] = self._cohort.dissolve()
            step.dissolved = True
            return budget
        step.cohort, step.cohort_kv_tokens = members, self._cohort.kv_tokens
        self._extend_cohort(1)
        return budget - members

    def _extend_cohort(self, steps: int) -> None:
        """Rules 10 and 11 for the cohort: a block for those that start one, names for the full.

        Taking and naming do not meet in the free queue, so all of either can be done together; each
        entry of the second list is one block more that is full, in the order of the steps.
        """
        self._cache.start_blocks(self._cohort.starting(range(steps)))
        if self.config.enable_prefix_caching:
            for job in self._cohort.starting(range(1, steps + 1)):
                self._cache.name(job, job.named + 1)

    def _serve_rest(self, step: Step, budget: int, cap: int, *, deferring: bool) -> int:
        """Rule 2: the running list first, in order, until the budget is gone."""
        at = 0
        while at < len(self._rest) and budget > 0:
            job = self._rest[at]
            if deferring and job.filling:
                at += 1
                continue
            tokens = min(job.tokens - job.computed, cap, budget)
            # Rule 4: without enough blocks somebody loses all of his, until they suffice.
            while not self._cache.extend(job, tokens):
                victim, returned = self._preempt(step)
                if victim is job:
                    return budget
                # Rule 5: what a victim was given in this step goes back to the budget.
                budget += returned
                at -= returned > 0
            step.chunks.append(Chunk(job, tokens, job.computed, RUNNING))
            budget -= tokens
            at += 1
        return budget

    def _preempt(self, step: Step) -> tuple[Job, int]:
        """Rule 4: take all blocks from a running request; returns it and its tokens of this step.

        The last of the running list, or the least important; of equals the first (addendum 2).
        What it was given in this step stays named, though nobody will compute it (addendum 3).
        """
        if self.config.policy == "fcfs":
            victim = self._rest.pop()
        else:
            victim = max(self._rest, key=lambda job: (job.priority, job.arrival))
            self._rest.remove(victim)
        returned = sum(chunk.tokens for chunk in step.chunks if chunk.job is victim)
        step.chunks = [chunk for chunk in step.chunks if chunk.job is not victim]
        step.preempted.append((victim, victim.computed))
        self._cache.preempt(victim)
        victim.computed = 0
        victim.preemptions += 1
        self._waiting.add_preempted(victim)
        return victim, returned

    def _admit(self, step: Step, budget: int, cap: int, *, deferring: bool) -> bool:
        """Rule 7: from the head of the waiting queue, while budget and running limit allow.

        Returns whether the head can only come in after a running request ended.
        """
        config = self.config
        running = len(self._cohort) + len(self._rest)
        while len(self._waiting) and budget > 0:
            if running == self._limit:
                return True
            job = self._waiting.head()
            found = self._cache.lookup(job)
            computed = len(found) * config.block_size
            tokens = job.tokens - computed
            # Prefill interval: only who lacks no more than one token comes in (addendum 9).
            if deferring and tokens > 1:
                return False
            tokens = min(tokens, cap)
            # Rule 9: without chunked prefill a head that exceeds the budget stops the loop.
            if tokens > budget and not config.enable_chunked_prefill:
                return False
            tokens = min(tokens, budget)
            if not self._cache.admit(job, found, tokens, alone=running == 0):
                # What the head may find in a cache can change with every step.
                return not config.enable_prefix_caching
            self._rest.append(self._waiting.pop())
            kind = RESUMED if job.preemptions else NEW
            step.chunks.append(Chunk(job, tokens, computed, kind))
            budget -= tokens
            running += 1
        return False

    def _release(self, ended: list[Job]) -> None:
        """Rule 14: blocks are free from the next step on, in the order in which requests ended."""
        for job in ended:
            self._cache.release(job)
        if ended:
            self._stuck = False

    def _gather(self, outcome: Outcome) -> None:
        """Move the front of `rest` into the cohort, as far as it only decodes."""
        if not self._cohorts:
            return
        count = 0
        for job in self._rest:
            if job.filling:
                break
            self._cohort.join(job)
            count += 1
        outcome.joined = self._rest[:count]
        del self._rest[:count]
