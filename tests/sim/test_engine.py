"""The engine follows the schedules that are written out by hand in schedules.toml."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from bitgate.sim.config import EngineConfig
from bitgate.sim.content import block_keys
from bitgate.sim.engine import Engine
from bitgate.sim.jobs import Job

CASES = tomllib.loads(Path(__file__).with_name("schedules.toml").read_text())["case"]
PLAIN = {
    "num_gpu_blocks": 10,
    "block_size": 4,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "max_model_len": 64,
    "step_overhead_ns": 0,
    "enable_prefix_caching": False,
}


def play(case: dict[str, Any], *, cohorts: bool) -> list[str]:
    """The schedule of the engine, in the notation of the file."""
    config = EngineConfig(**PLAIN | case.get("settings", {}))
    engine = Engine(config, cohorts=cohorts)
    lines: list[str] = []
    expected = len(case["requests"])
    ended = 0
    while ended < expected and len(lines) < 100:
        for ask in case["requests"]:
            if ask.get("step", 0) == len(lines):
                engine.add(job_of(ask, config))
        step = engine.plan(len(lines))
        members = [(job, 1, job.computed) for job in engine.running()[: step.cohort]]
        chunks = [*members, *(chunk[:3] for chunk in step.chunks)]
        outcome = engine.apply(step)
        words = [f"{job.id}:{tokens}@{computed}" for job, tokens, computed in chunks]
        words += [f"-{job.id}" for job, _ in step.preempted]
        words += [f"+{job.id}" for job in outcome.finished]
        lines.append(" ".join(words))
        ended += len(outcome.finished)
    return lines


def job_of(ask: dict[str, Any], config: EngineConfig) -> Job:
    return Job(
        id=ask["id"],
        prompt=ask["prompt"],
        limit=ask["prompt"] + ask["output"],
        content=block_keys(
            tuple(map(tuple, ask.get("segments", ()))), ask["id"], config.block_size
        ),
        arrival=ask.get("arrival", ask["id"]),
        priority=ask.get("priority", 0),
    )


@pytest.mark.parametrize("cohorts", [False, True], ids=["touched", "counted"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_schedule_is_the_one_written_by_hand(case, cohorts):
    assert play(case, cohorts=cohorts) == case["steps"].splitlines()
