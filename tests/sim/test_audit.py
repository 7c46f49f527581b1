"""Faults planted into a running simulation: the audit must name the law that each one breaks."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from bitgate.sim.audit import Auditor
from bitgate.sim.blocks import BlockPool
from bitgate.sim.book import Book, Watch
from bitgate.sim.cluster import Lane, simulate
from bitgate.sim.cohort import Cohort
from bitgate.sim.config import EngineConfig
from bitgate.sim.engine import Engine, Outcome, Step
from bitgate.sim.jobs import Job
from bitgate.sim.kv_cache import KvCache
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request

CONFIG = EngineConfig(
    num_gpu_blocks=12,
    block_size=4,
    max_num_batched_tokens=16,
    max_num_seqs=4,
    max_model_len=64,
    step_overhead_ns=0,
    enable_prefix_caching=False,
    scheduler_reserve_full_isl=False,
)
# Chunked prompts, an idle gap, and enough pressure for preemptions.
REQUESTS = [
    Request(id=n, arrival_ns=n // 5 * 200_000, prompt_tokens=9 + 4 * (n % 3), output_tokens=7)
    for n in range(10)
]


def cost(shape: StepShape) -> int:
    return 100 + shape.tokens


def laws(pace: str, config: EngineConfig = CONFIG) -> set[str]:
    run = simulate(REQUESTS, config, cost, pace=pace)
    assert run.audit.passed == (not run.audit.findings)
    return {finding.law for finding in run.audit.findings}


def planted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable) -> None:
    """Replace a method by `fault`, which gets the original first."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: fault(original, *args, **more))


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("pace", ["touch", "count", "jump"])
def test_a_sound_run_breaks_no_law(pace, caching):
    config = replace(CONFIG, enable_prefix_caching=caching)
    run = simulate(REQUESTS, config, cost, pace=pace)
    assert run.audit.findings == ()
    assert run.audit.tokens_lost > 0
    assert run.idle_ns > 0
    assert run.audit.requests == len(REQUESTS)
    assert run.audit.tokens_in == sum(r.prompt_tokens + r.output_tokens - 1 for r in REQUESTS)


def one_token_less(plan, engine: Engine, index: int) -> Step:
    step = plan(engine, index)
    if index == 3 and step.chunks:
        last = step.chunks[-1]
        step.chunks[-1] = last._replace(tokens=last.tokens - 1)
    return step


@pytest.mark.parametrize("pace", ["touch", "count", "jump"])
def test_a_token_that_is_planned_and_not_computed_is_missed(monkeypatch, pace):
    planted(monkeypatch, Engine, "plan", one_token_less)
    assert laws(pace) == {"tokens"}


@pytest.mark.parametrize("pace", ["count", "jump"])
def test_a_token_that_a_cohort_skips_is_missed(monkeypatch, pace):
    def join_further(join, cohort: Cohort, job: Job) -> None:
        job.computed += job.id == 4
        join(cohort, job)

    planted(monkeypatch, Cohort, "join", join_further)
    assert "tokens" in laws(pace)


@pytest.mark.parametrize("pace", ["count", "jump"])
def test_a_cohort_that_is_priced_with_one_member_less_is_noticed(monkeypatch, pace):
    sizes = property(lambda engine: (len(engine._cohort) - 1 or 1, engine._cohort.kv_tokens))
    monkeypatch.setattr(Engine, "cohort", sizes)
    planted(
        monkeypatch,
        Step,
        "shape",
        lambda shape, step: shape(step)._replace(decodes=max(0, shape(step).decodes - 1)),
    )
    assert "tokens" in laws(pace)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("pace", ["touch", "count", "jump"])
def test_a_leaked_block_is_missed_at_once_and_at_the_end(monkeypatch, pace, caching):
    def lose_one(give_back, pool: BlockPool, named: list[int], unnamed: list[int]) -> None:
        give_back(pool, named, unnamed[1:])

    planted(monkeypatch, BlockPool, "give_back", lose_one)
    roomy = replace(CONFIG, num_gpu_blocks=200, enable_prefix_caching=caching)
    assert laws(pace, roomy) == {"blocks", "ownership"}


@pytest.mark.parametrize("pace", ["touch", "count", "jump"])
def test_blocks_that_nobody_gives_back_are_missed(monkeypatch, pace):
    def forget(release, cache: KvCache, job: Job) -> None:
        if job.id == 3:
            job.blocks, job.named = [], 0
        release(cache, job)

    planted(monkeypatch, KvCache, "release", forget)
    assert laws(pace, replace(CONFIG, num_gpu_blocks=200)) == {"blocks", "ownership"}


def test_a_block_that_is_free_twice_is_noticed(monkeypatch):
    def twice(give_back, pool: BlockPool, named: list[int], unnamed: list[int]) -> None:
        give_back(pool, named, [*unnamed, *unnamed[:1]])

    planted(monkeypatch, BlockPool, "give_back", twice)
    assert laws("jump") == {"blocks", "ownership"}


@pytest.mark.parametrize("pace", ["touch", "count"])
def test_a_double_completion_is_noticed(monkeypatch, pace):
    def twice(apply, engine: Engine, step: Step) -> Outcome:
        outcome = apply(engine, step)
        outcome.finished += outcome.finished[:1]
        return outcome

    planted(monkeypatch, Engine, "apply", twice)
    assert laws(pace) == {"completion"}


def test_a_double_completion_is_noticed_in_a_jump(monkeypatch):
    def twice(go, engine: Engine, count: int) -> list[Job]:
        return go(engine, count) * 2

    planted(monkeypatch, Engine, "pass_plain_steps", twice)
    assert laws("jump") == {"completion"}


def test_a_first_token_without_a_time_is_noticed(monkeypatch):
    def nobody(apply, engine: Engine, step: Step) -> Outcome:
        outcome = apply(engine, step)
        outcome.first.clear()
        return outcome

    planted(monkeypatch, Engine, "apply", nobody)
    assert laws("jump") == {"times"}


@pytest.mark.parametrize(("shift_ns", "law"), [(-5, "clock"), (5, "clock")])
@pytest.mark.parametrize("pace", ["touch", "jump"])
def test_an_overlapping_step_and_a_gap_are_noticed(pace, shift_ns, law):
    lane = Lane(CONFIG, cost, Book(Watch()), pace)
    for request in REQUESTS[:5]:
        lane.submit(request)
    lane.run_until(400)
    lane.now_ns += shift_ns
    lane.run_until(inf)
    audit = lane.auditor.close(lane.engine.free_blocks, lane.now_ns)
    assert {finding.law for finding in audit.findings} == {law, "makespan"}


def auditor() -> Auditor:
    books = Auditor(CONFIG)
    books.arrive(7, 4)
    return books


@pytest.mark.parametrize(
    ("law", "told", "deed"),
    [
        ("completion", "request 7 did not complete", lambda books: None),
        ("completion", "request 8 completed", lambda books: books.finish(8, (0, 0, 0, 0))),
        ("tokens", "request 7 needs 4, has 0", lambda books: books.finish(7, (0, 0, 0, 0))),
        ("times", "(0, 9, 3, 0)", lambda books: books.finish(7, (0, 9, 3, 0))),
        ("times", "in a step to 0", lambda books: books.finish(7, (0, 1, 2, 3))),
        ("idle", "1 requests lived", lambda books: books.rest(0, 10)),
        ("clock", "after 0 ns comes a start at 3 ns", lambda books: books.rest(3, 10)),
        ("clock", "takes 0 ns", lambda books: books.coast(0, [0, 4], 0)),
        ("tokens", "priced for 2 tokens of 2", lambda books: books.coast(0, [4], 2)),
        ("blocks", "10 free, 11 expected", lambda books: books.settle((), 10)),
        ("blocks", "12 free, 11 expected", lambda books: books.settle((), 12)),
    ],
)
def test_each_entry_is_checked_when_it_is_made(law, told, deed):
    books = auditor()
    deed(books)
    findings = {finding.law: finding for finding in books.close(11, books.end_ns).findings}
    assert told in findings[law].first
    assert findings[law].count >= 1


def test_the_end_is_checked_too():
    books = auditor()
    findings = {finding.law for finding in books.close(free_blocks=10, end_ns=1).findings}
    assert findings == {"completion", "ownership", "makespan"}


def test_a_broken_law_is_counted_and_told_once():
    books = auditor()
    for _ in range(3):
        books.settle((), 5)
    (finding,) = [f for f in books.close(11, 0).findings if f.law == "blocks"]
    assert (finding.count, finding.first) == (3, "step 0: 5 free, 11 expected")
