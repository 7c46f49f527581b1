"""One truth: touching every request, counting cohorts and jumping ahead give the same run."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.sim.book import Watch
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.content import block_keys
from bitgate.sim.engine import Engine
from bitgate.sim.jobs import Job
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request

WHOLE = st.integers


PLAIN = {
    "num_gpu_blocks": 30,
    "block_size": 4,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
    "max_model_len": 64,
    "step_overhead_ns": 0,
    "enable_prefix_caching": False,
    "scheduler_reserve_full_isl": False,
}
# (prompt, output, arrival in steps of about 100 ns, segments) of each request: cases in which a
# jump that goes on for too long would leave out an admission.
NARROW: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "who waits for a place comes in when one is free": (
        {"max_num_seqs": 2},
        [(4, 20, 0), (4, 5, 0), (4, 3, 0), (4, 9, 2)],
    ),
    "who waits for blocks comes in when they are free": (
        {"num_gpu_blocks": 6},
        [(8, 6, 0), (7, 6, 0), (7, 2, 0)],
    ),
    "an open step between others notes that somebody waits": (
        {"max_num_seqs": 2, "prefill_schedule_interval": 4},
        [(4, 30, 0), (4, 6, 0), (4, 2, 1)],
    ),
    "a growing queue lowers the long-prefill cap until the head fits": (
        {
            "num_gpu_blocks": 5,
            "long_prefill_token_threshold": 1,
            "long_prefill_token_threshold_adaptive": True,
        },
        [(8, 5, 0), (8, 2, 0), (2, 1, 2), (2, 1, 2)],
    ),
    "a block that gets its key lets the head in": (
        {"num_gpu_blocks": 5, "enable_prefix_caching": True},
        [(5, 8, 0, ((7, 12),)), (15, 1, 1, ((7, 12),))],
    ),
    "who is preempted in a full house comes in again": (
        {"num_gpu_blocks": 7, "max_num_seqs": 2, "long_prefill_token_threshold": 4},
        [(8, 12, 0), (20, 1, 0), (2, 1, 0)],
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_every_pace_admits_at_the_same_step(name):
    changed, lines = NARROW[name]
    requests = [
        Request(
            id=number,
            arrival_ns=100 * line[2],
            prompt_tokens=line[0],
            output_tokens=line[1],
            segments=line[3] if len(line) > 3 else (),
        )
        for number, line in enumerate(lines)
    ]
    same_in_every_pace(EngineConfig(**PLAIN | changed), requests)


def test_a_jump_leaves_the_pool_as_single_steps_do():
    # Both generate the same tokens. Request 0 is the first to fill a block, but a block behind.
    config = EngineConfig(**PLAIN | {"enable_prefix_caching": True})
    pools = []
    for jump in (False, True):
        engine = Engine(config)
        for number, prompt in enumerate((7, 10)):
            engine.add(
                Job(
                    id=number,
                    prompt=prompt,
                    limit=40,
                    content=block_keys(((7, 40),), number, config.block_size),
                )
            )
        engine.apply(engine.plan(0))
        assert engine.plain_steps(12) == 12
        if jump:
            engine.pass_plain_steps(12)
        else:
            for index in range(12):
                engine.apply(engine.plan(1 + index))
        pool = engine._cache.pool
        keys = islice(block_keys(((7, 40),), 0, config.block_size), 10)
        pools.append((pool.queue(), pool.find(keys), pool._key_of, pool._copies))
    assert pools[0] == pools[1]
    assert pools[0][3]


def same_in_every_pace(config: EngineConfig, requests: list[Request]) -> None:
    """Compare runs and steps, and what came out with what went in."""
    steps: dict[str, list[Any]] = {"touch": [], "count": [], "jump": []}
    runs = [
        simulate(
            requests,
            config,
            cost,
            pace=pace,
            watch=Watch(step=lambda *step, noted=noted: noted.append(step)),
        )
        for pace, noted in steps.items()
    ]
    for run in runs:
        assert run.audit.findings == ()
        assert run.audit.passed
        assert run == runs[0]
    assert steps["touch"] == steps["count"] == steps["jump"]
    results = sorted(runs[0].requests)
    assert [(r.id, r.output_tokens) for r in results] == [(r.id, r.output_tokens) for r in requests]


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    seqs = draw(WHOLE(1, 6))
    budget = draw(WHOLE(seqs, 24))
    return EngineConfig(
        num_gpu_blocks=draw(WHOLE(12, 40)),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=draw(st.none() | WHOLE(1, budget)),
        max_num_seqs=seqs,
        max_num_active_seqs=draw(st.none() | WHOLE(1, seqs)),
        max_model_len=96,
        step_overhead_ns=draw(st.sampled_from([0, 7])),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "fcfs", "priority"])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.15])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
    )


@st.composite
def workloads(draw: st.DrawFn, config: EngineConfig) -> list[Request]:
    most = min(draw(WHOLE(8, 96)), config.usable_blocks * config.block_size)
    arrival_ns = 0
    requests = []
    for number in range(draw(WHOLE(1, 14))):
        arrival_ns += draw(st.sampled_from([0, 0, 40, 300, 4000]))
        prompt = draw(WHOLE(1, most - 1))
        output = draw(WHOLE(1, most - prompt))
        shared = draw(WHOLE(0, prompt))
        requests.append(
            Request(
                id=number,
                arrival_ns=arrival_ns,
                prompt_tokens=prompt,
                output_tokens=output,
                priority=draw(WHOLE(0, 2)),
                segments=((draw(WHOLE(0, 2)), shared),) if shared else (),
            )
        )
    return requests


def cost(shape: StepShape) -> int:
    return 50 + 3 * shape.tokens + shape.decode_kv_tokens // 5 + shape.logits


@given(st.data())
def test_every_pace_gives_the_same_run_and_the_audit_passes(data):
    config = data.draw(configs())
    same_in_every_pace(config, data.draw(workloads(config)))


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.data())
def test_every_pace_gives_the_same_run_on_thousands_of_workloads(data):
    config = data.draw(configs())
    same_in_every_pace(config, data.draw(workloads(config)))


@given(st.data())
def test_tokens_that_nobody_shares_are_the_same_named_or_not(data):
    config = replace(data.draw(configs()), enable_prefix_caching=True)
    unnamed = [replace(request, segments=()) for request in data.draw(workloads(config))]
    named = [replace(r, segments=((r.id, r.prompt_tokens + r.output_tokens),)) for r in unnamed]
    assert simulate(unnamed, config, cost) == simulate(named, config, cost)
