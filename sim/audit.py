"""Conservation: what goes into a simulation comes out of it, once, and nothing else does.

The auditor keeps its own books from what is planned, priced and delivered, request by request. It
never reads the engine's counters; of the engine's state it sees only the number of free blocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from bitgate.sim.config import EngineConfig
from bitgate.sim.engine import RUNNING, Step
from bitgate.sim.jobs import Job
from bitgate.sim.step import StepShape


@dataclass(frozen=True, slots=True)
class Finding:
    """A law that was broken: how often, and how the first time.

    tokens: a request computed more or fewer tokens than its prompt and output need
    completion: a request completed twice, without having arrived, or not at all
    blocks: the pool holds more or fewer free blocks than its requests leave it
    ownership: blocks are still owned when nobody lives
    clock: a step overlaps its predecessor, leaves a gap, or takes no time
    idle: the engine rested while requests lived
    makespan: the steps and the idle time do not add up to the end
    times: a request's times are out of order
    """

    law: str
    count: int
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the auditor counted, and which laws were broken.

    tokens_in: what the completed requests need: prompt + output - 1 each
    tokens_computed: what the steps computed; with `tokens_cached` it equals `tokens_in` and
        `tokens_lost`, which preemptions threw away
    """

    requests: int
    steps: int
    tokens_in: int
    tokens_computed: int
    tokens_cached: int
    tokens_lost: int
    busy_ns: int
    idle_ns: int
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether requests were served and no law was broken."""
        return self.requests > 0 and not self.findings


@dataclass(slots=True)
class _Account:
    """One live request: the tokens it needs and has, and the step at which it joined a cohort."""

    need: int
    done: int = 0
    joined: int = -1


@dataclass(slots=True)
class Auditor:
    """The books of one engine; told of everything in order, and asked at the end."""

    config: EngineConfig
    requests: int = 0
    steps: int = 0
    tokens_in: int = 0
    tokens_computed: int = 0
    tokens_cached: int = 0
    tokens_lost: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    end_ns: int = 0
    held_blocks: int = 0
    live: dict[int, _Account] = field(default_factory=dict)
    cohort: dict[int, _Account] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Cohort members that start a block in the steps of each residue.
        self.starts = [0] * self.config.block_size

    def arrive(self, request_id: int, need_tokens: int) -> None:
        """A request joins the queue; it needs so many tokens computed."""
        self.live[request_id] = _Account(need_tokens)

    def rest(self, start_ns: int, end_ns: int) -> None:
        """The engine has nothing to do."""
        self._follows(start_ns)
        if self.live:
            self._find("idle", f"from {start_ns} ns {len(self.live)} requests lived")
        self.idle_ns += end_ns - start_ns
        self.end_ns = end_ns

    def lose(self, step: Step) -> None:
        """What a plan took away before it gave: cohorts dissolved, requests preempted."""
        if step.dissolved:
            for request_id in list(self.cohort):
                self._leave(request_id)
        for job, lost in step.preempted:
            account = self.live[job.id]
            if account.done != lost:
                self._find("tokens", f"request {job.id} lost {lost} tokens of {account.done}")
            self.held_blocks -= self._blocks(account.done)
            self.tokens_lost += account.done
            account.done = 0

    def work(self, start_ns: int, ns: int, shape: StepShape, step: Step) -> None:
        """A step ran as planned."""
        self._follows(start_ns)
        self._lasts(start_ns, (ns,))
        self.lose(step)
        computed = len(self.cohort)
        for job, tokens, before, kind in step.chunks:
            self._credit(job, tokens, before, running=kind == RUNNING)
            computed += tokens
        rows = len(self.cohort) + len(step.chunks)
        self._expect(shape.tokens, shape.logits, computed, rows)
        self.tokens_computed += shape.tokens
        self._pass()

    def coast(self, starts_ns: Sequence[int], spans_ns: Sequence[int], decodes: int) -> None:
        """A run of steps, each of which was priced for so many decodes of the cohort."""
        self._follows(starts_ns[0])
        if list(accumulate(spans_ns[:-1], initial=starts_ns[0])) != list(starts_ns):
            self._find("clock", f"the steps from {starts_ns[0]} ns do not follow on each other")
        self._lasts(starts_ns[0], spans_ns)
        self._expect(decodes, decodes, len(self.cohort), len(self.cohort))
        self.tokens_computed += len(spans_ns) * decodes
        for _ in spans_ns:
            self._pass()

    def finish(self, request_id: int, times_ns: Sequence[int]) -> None:
        """A request completed; its times in their order, arrival to finish."""
        account = self.live.pop(request_id, None)
        if account is None:
            self._find("completion", f"request {request_id} completed and was not there to do so")
            return
        if request_id in self.cohort:
            self._leave(request_id)
        if account.done != account.need:
            self._find("tokens", f"request {request_id} needs {account.need}, has {account.done}")
        if sorted(times_ns) != list(times_ns) or times_ns[-1] != self.end_ns:
            self._find("times", f"request {request_id}: {times_ns}, in a step to {self.end_ns}")
        self.requests += 1
        self.tokens_in += account.need
        self.held_blocks -= self._blocks(account.done)

    def settle(self, joined: Iterable[Job], free_blocks: int) -> None:
        """A step is over: who decodes from here on, and the free blocks that the pool has."""
        for job in joined:
            account = self.cohort[job.id] = self.live[job.id]
            account.joined = self.steps
            self.starts[(self.steps - account.done) % self.config.block_size] += 1
        self.check_blocks(free_blocks)

    def check_blocks(self, free_blocks: int) -> None:
        """Compare the pool with what the requests should hold; they may share, with a cache."""
        expected = self.config.usable_blocks - self.held_blocks
        shared = self.config.enable_prefix_caching and free_blocks > expected
        if free_blocks != expected and not shared:
            self._find("blocks", f"step {self.steps}: {free_blocks} free, {expected} expected")

    def close(self, free_blocks: int, end_ns: int) -> Audit:
        """The simulation is over."""
        for request_id in self.live:
            self._find("completion", f"request {request_id} did not complete")
        if free_blocks != self.config.usable_blocks:
            owned = self.config.usable_blocks - free_blocks
            self._find("ownership", f"{owned} blocks are owned when nobody lives")
        if self.busy_ns + self.idle_ns != end_ns:
            self._find("makespan", f"{self.busy_ns} busy and {self.idle_ns} idle ns to {end_ns} ns")
        if self.tokens_computed + self.tokens_cached != self.tokens_in + self.tokens_lost:
            self._find(
                "tokens",
                f"{self.tokens_computed} computed and {self.tokens_cached} cached for "
                f"{self.tokens_in} needed and {self.tokens_lost} lost",
            )
        return Audit(
            requests=self.requests,
            steps=self.steps,
            tokens_in=self.tokens_in,
            tokens_computed=self.tokens_computed,
            tokens_cached=self.tokens_cached,
            tokens_lost=self.tokens_lost,
            busy_ns=self.busy_ns,
            idle_ns=self.idle_ns,
            findings=tuple(self.findings.values()),
        )

    def _credit(self, job: Job, tokens: int, before: int, *, running: bool) -> None:
        account = self.live[job.id]
        if running and account.done != before:
            self._find("tokens", f"request {job.id} goes on from {before}, has {account.done}")
        if not running:
            self.tokens_cached += before
        held = self._blocks(account.done)
        account.done = before + tokens
        self.held_blocks += self._blocks(account.done) - held

    def _leave(self, request_id: int) -> None:
        """Credit a cohort member with a token for each step since it joined."""
        account = self.cohort.pop(request_id)
        self.starts[(account.joined - account.done) % self.config.block_size] -= 1
        account.done += self.steps - account.joined

    def _expect(self, tokens: int, rows: int, planned: int, planned_rows: int) -> None:
        if (tokens, rows) != (planned, planned_rows):
            self._find(
                "tokens",
                f"step {self.steps}: priced for {tokens} tokens of {rows} requests, planned "
                f"{planned} of {planned_rows}",
            )

    def _pass(self) -> None:
        """Count a step for the cohort."""
        self.held_blocks += self.starts[self.steps % self.config.block_size]
        self.steps += 1

    def _follows(self, start_ns: int) -> None:
        if start_ns != self.end_ns:
            self._find("clock", f"after {self.end_ns} ns comes a start at {start_ns} ns")

    def _lasts(self, start_ns: int, spans_ns: Sequence[int]) -> None:
        if min(spans_ns) < 1:
            self._find("clock", f"a step from {start_ns} ns takes {min(spans_ns)} ns")
        self.busy_ns += sum(spans_ns)
        self.end_ns = start_ns + sum(spans_ns)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _find(self, law: str, what: str) -> None:
        known = self.findings.get(law)
        self.findings[law] = (
            Finding(law, 1 + known.count, known.first) if known else Finding(law, 1, what)
        )
