"""Recordings of vLLM's own scheduler, replayed: every field of every step must be the same."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from bitgate.sim.config import EngineConfig
from bitgate.sim.content import block_keys
from bitgate.sim.engine import Engine
from bitgate.sim.jobs import Job

TRACES = Path(__file__).parents[3] / "shared" / "data" / "vllm_oracle" / "sched"
FILES = sorted(TRACES.glob("*.json"))
# The k-th output of request i is the token (FIRST_OUTPUT + i, k).
FIRST_OUTPUT = 10_000
SETTINGS = set(EngineConfig.__dataclass_fields__) - {"step_overhead_ns", "profile"}

pytestmark = [
    pytest.mark.needs_data,
    pytest.mark.skipif(not FILES, reason="the recorded schedules are not beside this checkout"),
]


def engine_of(settings: dict[str, Any], *, cohorts: bool) -> Engine:
    known = {name: value for name, value in settings.items() if name in SETTINGS}
    assert known.keys() == SETTINGS
    config = EngineConfig(step_overhead_ns=0, profile="vllm-0.32.0", **known)
    assert config.watermark_blocks == settings["watermark_blocks"]
    return Engine(config, cohorts=cohorts)


def job_of(request: dict[str, Any], config: EngineConfig) -> Job:
    own = (FIRST_OUTPUT + request["id"], request["max_tokens"])
    return Job(
        id=request["id"],
        prompt=request["prompt_len"],
        limit=min(request["prompt_len"] + request["max_tokens"], config.max_model_len),
        content=block_keys((*map(tuple, request["prompt"]), own), request["id"], config.block_size),
        arrival=request["arrival_time"],
        priority=request["priority"],
    )


class Replay:
    """One recorded case, step by step, noted as the recording notes it."""

    def __init__(self, case: dict[str, Any], *, cohorts: bool) -> None:
        self.engine = engine_of(case["config"], cohorts=cohorts)
        self.pool = self.engine._cache.pool
        self.to_come = sorted(case["requests"], key=lambda r: (r["arrival_step"], r["id"]))
        self.lists: dict[str, list[int]] = {"running": [], "waiting": []}

    def step(self, number: int) -> dict[str, Any]:
        engine = self.engine
        while self.to_come and self.to_come[0]["arrival_step"] <= number:
            engine.add(job_of(self.to_come.pop(0), engine.config))
        taken = self.counted_takes()
        step = engine.plan(number)
        members = [(job, 1, job.computed, 0) for job in engine.running()[: step.cohort]]
        scheduled = members + [tuple(chunk) for chunk in step.chunks]
        free = engine.free_blocks
        outcome = engine.apply(step)
        running = engine.running()
        entry = {
            "step": number,
            "sched": [
                [job.id, tokens, before, kind, job.tokens - job.prompt]
                for job, tokens, before, kind in scheduled
            ],
            "new_blocks": sum(taken),
            "free": free,
            "free_end": engine.free_blocks,
            "free_crc": crc_of(self.pool.queue()),
        }
        self.note(entry, "hits", [[job.id, n] for job, _, n, kind in scheduled if kind and n])
        self.note(entry, "preempted", [job.id for job, _ in step.preempted])
        self.note(entry, "finished", [job.id for job in outcome.finished])
        self.note_change(entry, "running", [job.id for job in running])
        self.note_change(entry, "waiting", [job.id for job in engine.waiting()])
        self.note(entry, "throttle", int(number % engine.config.prefill_schedule_interval > 0))
        if engine.config.enable_prefix_caching:
            entry["cached"] = self.pool.keys
        return entry

    def counted_takes(self) -> list[int]:
        """A list that grows by the number of blocks of each take from now on."""
        counts: list[int] = []
        take = type(self.pool).take

        def counting(count: int) -> list[int]:
            counts.append(count)
            return take(self.pool, count)

        self.pool.take = counting
        return counts

    def note(self, entry: dict[str, Any], name: str, value: Any) -> None:
        if value:
            entry[name] = value

    def note_change(self, entry: dict[str, Any], name: str, ids: list[int]) -> None:
        if ids != self.lists[name]:
            entry[name] = self.lists[name] = ids


def crc_of(blocks: list[int]) -> int:
    return zlib.crc32(",".join(map(str, blocks)).encode()) if blocks else 0


@pytest.mark.parametrize("cohorts", [False, True], ids=["touched", "counted"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_engine_decides_what_the_recorded_one_decided(path, cohorts):
    case = json.loads(path.read_text())
    assert case["schema"] == "sched-trace/1"
    replay = Replay(case, cohorts=cohorts)
    assert len(case["steps"]) > 0
    for recorded in case["steps"]:
        assert replay.step(recorded["step"]) == recorded
    if case["outcome"] == "finished":
        assert replay.engine.unfinished == 0
