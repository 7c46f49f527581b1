"""The event loop: requests arrive on an integer-nanosecond clock, and an engine steps.

One event is one step of one engine, so nothing can wait for a step that never comes. Events at
the same nanosecond happen in the order (time, kind, id): a step ends, requests arrive by id, a
step starts. A request that arrives while a step runs is seen by the next.

`Lane` is one engine with its clock. More of them, replicas or data-parallel lanes, stand side by
side in `simulate`: run each up to an arrival, choose, submit.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from bitgate.records.errors import BitgateError, UsageError
from bitgate.sim.audit import Auditor
from bitgate.sim.book import Book, Watch
from bitgate.sim.config import EngineConfig
from bitgate.sim.content import block_keys
from bitgate.sim.door import in_order
from bitgate.sim.engine import NEW, RESUMED, Engine, Step
from bitgate.sim.jobs import Job
from bitgate.sim.run import Refusal, RequestResult, Run
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request

Cost = Callable[[StepShape], int]
Pace = Literal["touch", "count", "jump"]

# A longer run of plain steps is taken in pieces, so that what is noted of it stays small.
PLAIN_STEPS = 1024


@dataclass(slots=True)
class _Stay:
    """What is known of a request between its arrival and its completion."""

    request: Request
    first_scheduled_ns: int = -1
    first_token_ns: int = -1
    cached: int = 0
    lost: int = 0
    restored: int = 0


class Lane:
    """One engine on its own clock, which starts at 0."""

    def __init__(self, config: EngineConfig, cost: Cost, book: Book, pace: Pace) -> None:
        self.now_ns = 0
        self.auditor = Auditor(config)
        self.engine = Engine(config, cohorts=pace != "touch")
        self._config = config
        self._cost = cost
        self._book = book
        self._most_plain = PLAIN_STEPS if pace == "jump" else 0
        self._stays: dict[int, _Stay] = {}
        self._index = 0
        self._arrivals = 0

    def submit(self, request: Request) -> None:
        """Let a request arrive; the lane has been run up to its time.

        Raises:
            UsageError: a request with this id is still here.
        """
        if request.id in self._stays:
            raise UsageError(f"request {request.id} arrives twice; give each request its own id")
        if not self._stays and request.arrival_ns > self.now_ns:
            self.auditor.rest(self.now_ns, request.arrival_ns)
            self.now_ns = request.arrival_ns
        self._stays[request.id] = _Stay(request)
        self.auditor.arrive(request.id, request.prompt_tokens + request.output_tokens - 1)
        self.engine.add(
            Job(
                id=request.id,
                prompt=request.prompt_tokens,
                limit=request.prompt_tokens + request.output_tokens,
                content=block_keys(request.segments, self._arrivals, self._config.block_size),
                shared=bool(request.segments),
                # No two reach a front end at one instant. Under vLLM's priority rule two of one
                # instant can take each other's blocks for ever (addendum 2: the first gives way).
                arrival=self._arrivals,
                priority=request.priority,
            )
        )
        self._arrivals += 1

    def run_until(self, time_ns: float) -> None:
        """Start every step that starts before `time_ns`."""
        while self._stays and self.now_ns < time_ns:
            if not self._coast(time_ns):
                self._step()

    def _step(self) -> None:
        """Plan, price and apply one step."""
        step = self.engine.plan(self._index)
        self._index += 1
        for job, lost in step.preempted:
            self._stays[job.id].lost += lost
        if step.cohort or step.chunks:
            self._work(step)
        elif step.preempted:
            # The victim stood before all that could run: nothing is computed, no time passes.
            self.auditor.lose(step)
        else:
            raise BitgateError(f"{self.engine.unfinished} requests wait and none can ever run")
        outcome = self.engine.apply(step)
        for job in outcome.first:
            self._stays[job.id].first_token_ns = self.now_ns
        for job in outcome.finished:
            self._finish(job)
        self.auditor.settle(outcome.joined, self.engine.free_blocks)

    def _work(self, step: Step) -> None:
        """Let the step take its time."""
        shape = step.shape()
        ns = self._price(shape)
        for job, _, computed, kind in step.chunks:
            stay = self._stays[job.id]
            if kind == NEW:
                stay.first_scheduled_ns, stay.cached = self.now_ns, computed
            elif kind == RESUMED:
                stay.restored += computed
        self.auditor.work(self.now_ns, ns, shape, step)
        self._book.step(self.now_ns, ns, shape)
        self.now_ns += ns

    def _coast(self, time_ns: float) -> bool:
        """Run steps in which everybody only decodes, if such come next; whether there were any."""
        most = self.engine.plain_steps(self._most_plain)
        if not most:
            return False
        decodes, kv_tokens = self.engine.cohort
        cost, overhead_ns = self._cost, self._config.step_overhead_ns
        spans_ns: list[int] = []
        shapes: list[StepShape] = []
        now_ns = self.now_ns
        for attended in range(kv_tokens, kv_tokens + most * decodes, decodes):
            if now_ns >= time_ns:
                break
            shape = StepShape((), decodes, attended, decodes)
            ns = cost(shape)
            if type(ns) is not int or ns < 1:
                raise _bad_price(shape, ns)
            ns += overhead_ns
            spans_ns.append(ns)
            shapes.append(shape)
            now_ns += ns
        self._index += len(spans_ns)
        self.auditor.coast(self.now_ns, spans_ns, decodes)
        self._book.decodes(self.now_ns, spans_ns, shapes)
        self.now_ns = now_ns
        for job in self.engine.pass_plain_steps(len(spans_ns)):
            self._finish(job)
        self.auditor.settle((), self.engine.free_blocks)
        return True

    def _price(self, shape: StepShape) -> int:
        ns = self._cost(shape)
        if type(ns) is not int or ns < 1:
            raise _bad_price(shape, ns)
        return ns + self._config.step_overhead_ns

    def _finish(self, job: Job) -> None:
        """Close a request's stay."""
        stay = self._stays.pop(job.id, None)
        if stay is None:
            self.auditor.finish(job.id, ())
            return
        request = stay.request
        result = RequestResult(
            id=job.id,
            arrival_ns=request.arrival_ns,
            first_scheduled_ns=stay.first_scheduled_ns,
            first_token_ns=stay.first_token_ns,
            finish_ns=self.now_ns,
            prompt_tokens=request.prompt_tokens,
            output_tokens=job.tokens - job.prompt,
            cached_tokens=stay.cached,
            preemptions=job.preemptions,
            lost_tokens=stay.lost,
            restored_tokens=stay.restored,
        )
        # Field 1 to 4: the times, in the order in which they must follow.
        self.auditor.finish(job.id, result[1:5])
        self._book.result(result)


def _bad_price(shape: StepShape, ns: object) -> UsageError:
    return UsageError(f"price of {shape}: expected whole nanoseconds above 0, got {ns!r}")


def simulate(
    requests: Iterable[Request],
    config: EngineConfig,
    cost: Cost,
    *,
    keep_refused: bool = False,
    watch: Watch | None = None,
    pace: Pace = "jump",
) -> Run:
    """Serve the requests of a trace with one engine.

    Requests are read as they arrive, and memory is held for live ones only if `watch` takes the
    results. The run is the same for each pace: `touch` looks at every request in every step,
    `count` lets those that only decode be counted, `jump` plans no step in which nobody starts or
    ends.

    Args:
        requests: in order of arrival; those that arrive together in any order.
        config: the engine.
        cost: whole nanoseconds above 0 that a step of this shape takes, without the host's.
        keep_refused: list requests that the engine can never serve instead of stopping.
        watch: who is told of steps and results.
        pace: how the same result is reached.

    Raises:
        UsageError: an unusable request or price, a request that can never be served (unless
            those are kept), or no request at all.
    """
    book = Book(watch or Watch())
    lane = Lane(config, cost, book, pace)
    for request in in_order(requests):
        reason = config.refusal(request.prompt_tokens, request.output_tokens)
        if reason is None:
            lane.run_until(request.arrival_ns)
            lane.submit(request)
        elif keep_refused:
            book.refuse(Refusal(request.id, request.arrival_ns, reason))
        else:
            raise UsageError(f"request {request.id}: {reason}")
    lane.run_until(inf)
    audit = lane.auditor.close(lane.engine.free_blocks, lane.now_ns)
    return Run(
        config=config,
        requests=tuple(book.results),
        refusals=tuple(book.refusals),
        steps=audit.steps,
        busy_ns=audit.busy_ns,
        idle_ns=audit.idle_ns,
        end_ns=lane.now_ns,
        digest=book.digest(),
        audit=audit,
    )
