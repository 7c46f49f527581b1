"""Conservation: what goes into a simulation comes out of it, once, and nothing else does.

The auditor keeps its own books from what is planned, priced and delivered, request by request. It
never reads the engine's counters; of the engine's state it sees only the number of free blocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


class Auditor:
    """The books of one engine; told of everything in order, and asked at the end."""

    def __init__(self, config: EngineConfig) -> None:
        self.end_ns = 0
        self._block_size = config.block_size
        self._usable_blocks = config.usable_blocks
        self._sharing = config.enable_prefix_caching
        self._requests = self._steps = 0
        self._tokens_in = self._tokens_computed = self._tokens_cached = self._tokens_lost = 0
        self._busy_ns = self._idle_ns = 0
        self._held_blocks = 0
        self._live: dict[int, _Account] = {}
        self._cohort: dict[int, _Account] = {}
        # Cohort members that start a block in the steps of each residue.
        self._starts = [0] * config.block_size
        self._findings: dict[str, Finding] = {}

    def arrive(self, request_id: int, need_tokens: int) -> None:
        """A request joins the queue; it needs so many tokens computed."""
        self._live[request_id] = _Account(need_tokens)

    def rest(self, start_ns: int, end_ns: int) -> None:
        """The engine has nothing to do."""
        self._follows(start_ns)
        if self._live:
            self._find("idle", f"from {start_ns} ns {len(self._live)} requests lived")
        self._idle_ns += end_ns - start_ns
        self.end_ns = end_ns

    def lose(self, step: Step) -> None:
        """What a plan took away before it gave: cohorts dissolved, requests preempted."""
        if step.dissolved:
            for request_id in list(self._cohort):
                self._leave(request_id)
        for job, lost in step.preempted:
            account = self._live[job.id]
            if account.done != lost:
                self._find("tokens", f"request {job.id} lost {lost} tokens of {account.done}")
            self._held_blocks -= self._blocks(account.done)
            self._tokens_lost += account.done
            account.done = 0

    def work(self, start_ns: int, ns: int, shape: StepShape, step: Step) -> None:
        """A step ran as planned."""
        self._follows(start_ns)
        self._lasts(start_ns, (ns,))
        self.lose(step)
        computed = len(self._cohort)
        for job, tokens, before, kind in step.chunks:
            self._credit(job, tokens, before, running=kind == RUNNING)
            computed += tokens
        rows = len(self._cohort) + len(step.chunks)
        self._expect(shape.tokens, shape.logits, computed, rows)
        self._tokens_computed += shape.tokens
        self._pass(1)

    def coast(self, start_ns: int, spans_ns: Sequence[int], decodes: int) -> None:
        """A run of steps, each priced for so many decodes of the cohort."""
        self._follows(start_ns)
        self._lasts(start_ns, spans_ns)
        self._expect(decodes, decodes, len(self._cohort), len(self._cohort))
        self._tokens_computed += len(spans_ns) * decodes
        self._pass(len(spans_ns))

    def finish(self, request_id: int, times_ns: Sequence[int]) -> None:
        """A request completed; its times in their order, arrival to finish."""
        account = self._live.pop(request_id, None)
        if account is None:
            self._find("completion", f"request {request_id} completed and was not there to do so")
            return
        if request_id in self._cohort:
            self._leave(request_id)
        if account.done != account.need:
            self._find("tokens", f"request {request_id} needs {account.need}, has {account.done}")
        if sorted(times_ns) != list(times_ns) or times_ns[-1] != self.end_ns:
            self._find("times", f"request {request_id}: {times_ns}, in a step to {self.end_ns}")
        self._requests += 1
        self._tokens_in += account.need
        self._held_blocks -= self._blocks(account.done)

    def settle(self, joined: Iterable[Job], free_blocks: int) -> None:
        """A step is over: who decodes from here on, and the free blocks that the pool has."""
        for job in joined:
            account = self._cohort[job.id] = self._live[job.id]
            account.joined = self._steps
            self._starts[(self._steps - account.done) % self._block_size] += 1
        expected = self._usable_blocks - self._held_blocks
        # With a cache requests may share blocks, and leave more of them free.
        if free_blocks < expected or (free_blocks > expected and not self._sharing):
            self._find("blocks", f"step {self._steps}: {free_blocks} free, {expected} expected")

    def close(self, free_blocks: int, end_ns: int) -> Audit:
        """The simulation is over."""
        for request_id in self._live:
            self._find("completion", f"request {request_id} did not complete")
        if free_blocks != self._usable_blocks:
            owned = self._usable_blocks - free_blocks
            self._find("ownership", f"{owned} blocks are owned when nobody lives")
        if self._busy_ns + self._idle_ns != end_ns:
            self._find("makespan", f"{self._busy_ns} busy and {self._idle_ns} idle to {end_ns} ns")
        if self._tokens_computed + self._tokens_cached != self._tokens_in + self._tokens_lost:
            self._find(
                "tokens",
                f"{self._tokens_computed} computed and {self._tokens_cached} cached for "
                f"{self._tokens_in} needed and {self._tokens_lost} lost",
            )
        return Audit(
            requests=self._requests,
            steps=self._steps,
            tokens_in=self._tokens_in,
            tokens_computed=self._tokens_computed,
            tokens_cached=self._tokens_cached,
            tokens_lost=self._tokens_lost,
            busy_ns=self._busy_ns,
            idle_ns=self._idle_ns,
            findings=tuple(self._findings.values()),
        )

    def _credit(self, job: Job, tokens: int, before: int, *, running: bool) -> None:
        account = self._live[job.id]
        if running and account.done != before:
            self._find("tokens", f"request {job.id} goes on from {before}, has {account.done}")
        if not running:
            self._tokens_cached += before
        held = self._blocks(account.done)
        account.done = before + tokens
        self._held_blocks += self._blocks(account.done) - held

    def _leave(self, request_id: int) -> None:
        """Credit a cohort member with a token for each step since it joined."""
        account = self._cohort.pop(request_id)
        self._starts[(account.joined - account.done) % self._block_size] -= 1
        account.done += self._steps - account.joined

    def _expect(self, tokens: int, rows: int, planned: int, planned_rows: int) -> None:
        if (tokens, rows) != (planned, planned_rows):
            self._find(
                "tokens",
                f"step {self._steps}: priced for {tokens} tokens of {rows} requests, planned "
                f"{planned} of {planned_rows}",
            )

    def _pass(self, steps: int) -> None:
        """Count steps for the cohort, whose members start a block in every so-many-th."""
        rounds, rest = divmod(steps, self._block_size)
        first = self._steps % self._block_size
        self._held_blocks += rounds * len(self._cohort) + sum(self._starts[first : first + rest])
        self._held_blocks += sum(self._starts[: max(0, first + rest - self._block_size)])
        self._steps += steps

    def _follows(self, start_ns: int) -> None:
        if start_ns != self.end_ns:
            self._find("clock", f"after {self.end_ns} ns comes a start at {start_ns} ns")

    def _lasts(self, start_ns: int, spans_ns: Sequence[int]) -> None:
        if min(spans_ns) < 1:
            self._find("clock", f"a step from {start_ns} ns takes {min(spans_ns)} ns")
        ns = sum(spans_ns)
        self._busy_ns += ns
        self.end_ns = start_ns + ns

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _find(self, law: str, what: str) -> None:
        known = self._findings.get(law)
        self._findings[law] = (
            Finding(law, 1 + known.count, known.first) if known else Finding(law, 1, what)
        )
