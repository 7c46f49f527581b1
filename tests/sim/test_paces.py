"""One truth: touching every request, counting cohorts and jumping ahead give the same run."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bitgate.sim.book import Watch
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request

WHOLE = st.integers


@st.composite
def settings(draw: st.DrawFn) -> EngineConfig:
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
    most = min(config.max_model_len, config.usable_blocks * config.block_size)
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
    config = data.draw(settings())
    requests = data.draw(workloads(config))
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
    assert sorted(result.id for result in runs[0].requests) == [r.id for r in requests]
    for result, request in zip(sorted(runs[0].requests), requests, strict=True):
        assert result.output_tokens == request.output_tokens
