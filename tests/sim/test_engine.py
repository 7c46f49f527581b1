"""Schedules written out by hand, one or more for each rule of the scheduler.

Notation, a line for each step: `id:tokens@computed` for each scheduled request in order, `-id` for
each preempted one, `+id` for each that ended. Blocks hold 4 tokens; 9 are usable unless stated.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from bitgate.sim.config import EngineConfig
from bitgate.sim.content import block_keys
from bitgate.sim.engine import Engine
from bitgate.sim.jobs import Job


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    requests: list[dict[str, Any]]
    schedule: str
    settings: dict[str, Any] = field(default_factory=dict)


def asks(number: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "prompt": prompt, "output": output, "step": 0, **more}


CASES = [
    Case(
        name="plain decode: the prompt's step gives the first token, each further step one",
        requests=[asks(0, 5, 3), asks(1, 3, 2), asks(2, 4, 1)],
        schedule="""
            0:5@0 1:3@0 2:4@0 +2
            0:1@5 1:1@3 +1
            0:1@6 +0""",
    ),
    Case(
        name="rule 1: a prompt above the budget is cut, and a partial chunk gives no token",
        settings={"max_num_batched_tokens": 8},
        requests=[asks(0, 10, 2), asks(1, 3, 2)],
        schedule="""
            0:8@0
            0:2@8 1:3@0
            0:1@10 1:1@3 +0 +1""",
    ),
    Case(
        name="rule 2: who runs is served before who waits",
        settings={"max_num_batched_tokens": 8},
        requests=[asks(0, 4, 4), asks(1, 12, 1, step=1)],
        schedule="""
            0:4@0
            0:1@4 1:7@0
            0:1@5 1:5@7 +1
            0:1@6 +0""",
    ),
    Case(
        name="rule 2: when the budget is gone the rest of the running list has to wait",
        settings={
            "max_num_batched_tokens": 12,
            "max_num_scheduled_tokens": 6,
            "long_prefill_token_threshold": 1,
            "long_prefill_token_threshold_adaptive": True,
        },
        requests=[asks(0, 12, 1), asks(1, 1, 3), asks(2, 1, 1)],
        schedule="""
            0:4@0 1:1@0 2:1@0 +2
            0:6@4
            0:2@10 1:1@1 +0
            1:1@2 +1""",
    ),
    Case(
        name="rule 4: the last of the running list gives way, be it the one that asks",
        settings={"num_gpu_blocks": 6, "scheduler_reserve_full_isl": False},
        requests=[asks(0, 8, 6), asks(1, 8, 3)],
        schedule="""
            0:8@0 1:8@0
            0:1@8 -1
            0:1@9
            0:1@10
            0:1@11
            0:1@12 +0
            1:9@0
            1:1@9 +1""",
    ),
    Case(
        name="rule 4: the last of the running list gives way to one before it",
        settings={"num_gpu_blocks": 6, "scheduler_reserve_full_isl": False},
        requests=[asks(0, 8, 2), asks(1, 11, 2)],
        schedule="""
            0:8@0 1:11@0
            0:1@8 -1 +0
            1:12@0 +1""",
    ),
    Case(
        name="rules 6 and 7: no admission after a preemption; the victim is the head, and blocks",
        settings={"num_gpu_blocks": 6, "scheduler_reserve_full_isl": False},
        requests=[asks(0, 8, 4), asks(1, 8, 4), asks(2, 2, 1, step=1)],
        schedule="""
            0:8@0 1:8@0
            0:1@8 -1
            0:1@9
            0:1@10 +0
            1:9@0 2:2@0 +2
            1:1@9
            1:1@10 +1""",
    ),
    Case(
        name="rule 7: nobody comes in above the running limit",
        settings={"max_num_seqs": 2},
        requests=[asks(0, 2, 2), asks(1, 2, 1), asks(2, 2, 1)],
        schedule="""
            0:2@0 1:2@0 +1
            0:1@2 2:2@0 +0 +2""",
    ),
    Case(
        name="rule 7: max_num_active_seqs is the limit that admits, if it is set",
        settings={"max_num_seqs": 4, "max_num_active_seqs": 1},
        requests=[asks(0, 2, 2), asks(1, 2, 1)],
        schedule="""
            0:2@0
            0:1@2 +0
            1:2@0 +1""",
    ),
    Case(
        name="rule 9: without chunked prefill a head above the budget stops the admission",
        settings={
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 8,
            "max_model_len": 8,
        },
        requests=[asks(0, 6, 1), asks(1, 6, 1), asks(2, 1, 1)],
        schedule="""
            0:6@0 +0
            1:6@0 2:1@0 +1 +2""",
    ),
    Case(
        name="rule 9: the long-prefill cap comes first, so it cuts prompts even then",
        settings={
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 8,
            "max_model_len": 8,
            "long_prefill_token_threshold": 2,
        },
        requests=[asks(0, 6, 1), asks(1, 3, 1)],
        schedule="""
            0:2@0 1:2@0
            0:2@2 1:1@2 +1
            0:2@4 +0""",
    ),
    Case(
        name="rule 10: a full reservation admits only who fits whole",
        settings={"num_gpu_blocks": 6, "max_num_batched_tokens": 10},
        requests=[asks(0, 8, 2), asks(1, 16, 1)],
        schedule="""
            0:8@0
            0:1@8 +0
            1:10@0
            1:6@10 +1""",
    ),
    Case(
        name="rule 10: without it a chunk that fits is enough",
        settings={
            "num_gpu_blocks": 6,
            "max_num_batched_tokens": 10,
            "scheduler_reserve_full_isl": False,
        },
        requests=[asks(0, 8, 2), asks(1, 16, 1)],
        schedule="""
            0:8@0 1:2@0
            0:1@8 -1 +0
            1:10@0
            1:6@10 +1""",
    ),
    Case(
        name="watermark: two of ten blocks stay free while another runs, none for who is alone",
        settings={"num_gpu_blocks": 10, "watermark": 0.2},
        requests=[asks(0, 32, 1), asks(1, 16, 2), asks(2, 16, 1)],
        schedule="""
            0:32@0 +0
            1:16@0
            1:1@16 +1
            2:16@0 +2""",
    ),
    Case(
        name="long-prefill cap: it binds when there are two",
        settings={"long_prefill_token_threshold": 4},
        requests=[asks(0, 10, 1), asks(1, 3, 1)],
        schedule="""
            0:4@0 1:3@0 +1
            0:6@4 +0""",
    ),
    Case(
        name="long-prefill cap: it is raised to a fair share of the budget where so asked",
        settings={
            "long_prefill_token_threshold": 4,
            "long_prefill_token_threshold_adaptive": True,
            "max_num_batched_tokens": 12,
            "max_num_scheduled_tokens": 11,
        },
        requests=[asks(0, 10, 1), asks(1, 5, 1)],
        schedule="""
            0:6@0 1:5@0 +1
            0:4@6 +0""",
    ),
    Case(
        name="prefill interval: prompts rest beside decodes, in the running list and before it",
        settings={"prefill_schedule_interval": 3, "max_num_batched_tokens": 8},
        requests=[asks(0, 2, 6), asks(1, 10, 1, step=0), asks(2, 3, 1, step=1)],
        schedule="""
            0:2@0 1:6@0
            0:1@2
            0:1@3
            0:1@4 1:4@6 2:3@0 +1 +2
            0:1@5
            0:1@6 +0""",
    ),
    Case(
        name="prefill interval: prompts do not rest when the last open step left some waiting",
        settings={"prefill_schedule_interval": 3, "max_num_batched_tokens": 8},
        requests=[asks(0, 2, 4), asks(1, 10, 1), asks(2, 3, 1)],
        schedule="""
            0:2@0 1:6@0
            0:1@2 1:4@6 2:3@0 +1 +2
            0:1@3
            0:1@4 +0""",
    ),
    Case(
        name="prefill interval: prompts do not rest while nobody decodes",
        settings={"prefill_schedule_interval": 3, "max_num_batched_tokens": 8},
        requests=[asks(0, 20, 1)],
        schedule="""
            0:8@0
            0:8@8
            0:4@16 +0""",
    ),
    Case(
        name="prefill interval: who lacks a single token comes in",
        settings={"prefill_schedule_interval": 9, "enable_prefix_caching": True},
        requests=[
            asks(0, 5, 4, segments=((7, 5),)),
            asks(1, 5, 1, step=1, segments=((7, 5),)),
        ],
        schedule="""
            0:5@0
            0:1@5 1:1@4 +1
            0:1@6
            0:1@7 +0""",
    ),
    Case(
        name="rule 2: more requests may decode than the budget has tokens",
        # Request 1 rests in step 3, so that two more come in, of whom one token each is missing.
        settings={
            "prefill_schedule_interval": 2,
            "max_num_batched_tokens": 8,
            "max_num_scheduled_tokens": 3,
            "num_gpu_blocks": 20,
            "enable_prefix_caching": True,
        },
        requests=[
            asks(0, 5, 9, segments=((7, 5),)),
            asks(1, 8, 2, step=1),
            asks(2, 5, 5, step=3, segments=((7, 5),)),
            asks(3, 5, 4, step=3, segments=((7, 5),)),
        ],
        schedule="""
            0:3@0
            0:2@3 1:1@0
            0:1@5 1:2@1
            0:1@6 2:1@4 3:1@4
            0:1@7 1:2@3
            0:1@8 2:1@5 3:1@5
            0:1@9 1:2@5
            0:1@10 2:1@6 3:1@6
            0:1@11 1:1@7 2:1@7
            0:1@12 1:1@8 2:1@8 +0 +1 +2
            3:1@7 +3""",
    ),
    Case(
        name="rule 8: a prompt that is cached whole computes its last block again",
        settings={"enable_prefix_caching": True},
        requests=[
            asks(0, 8, 1, segments=((7, 8),)),
            asks(1, 8, 1, step=1, segments=((7, 8),)),
            asks(2, 10, 1, step=2, segments=((7, 8), (9, 2))),
        ],
        schedule="""
            0:8@0 +0
            1:4@4 +1
            2:2@8 +2""",
    ),
    Case(
        name="rule 8: a resumed request finds what it generated too",
        settings={"enable_prefix_caching": True, "num_gpu_blocks": 6},
        # Request 1 leaves 2 blocks that can be found; request 0 takes its last block from the
        # front of the queue, where the second of them lies.
        requests=[asks(0, 8, 6), asks(1, 8, 3)],
        schedule="""
            0:8@0 1:8@0
            0:1@8 -1
            0:1@9
            0:1@10
            0:1@11
            0:1@12 +0
            1:5@4
            1:1@9 +1""",
    ),
    Case(
        name="rule 8: a resumed request finds the block that its output completed",
        settings={"enable_prefix_caching": True, "num_gpu_blocks": 6},
        requests=[asks(0, 7, 4), asks(1, 7, 4)],
        schedule="""
            0:7@0 1:7@0
            0:1@7 1:1@7
            0:1@8 -1
            0:1@9 +0
            1:1@8
            1:1@9 +1""",
    ),
    Case(
        name="rule 11: a block is found as soon as its last token is planned, in the same step",
        settings={"enable_prefix_caching": True},
        requests=[asks(0, 8, 1, segments=((7, 8),)), asks(1, 8, 1, segments=((7, 8),))],
        schedule="""
            0:8@0 1:4@4 +0 +1""",
    ),
    Case(
        name="rule 11: what is not full cannot be found",
        settings={"enable_prefix_caching": True},
        requests=[asks(0, 7, 1, segments=((7, 7),)), asks(1, 8, 1, segments=((7, 7),))],
        schedule="""
            0:7@0 1:4@4 +0 +1""",
    ),
    Case(
        name="rule 11: of one request the tail is evicted first",
        settings={"enable_prefix_caching": True, "num_gpu_blocks": 5},
        requests=[
            asks(0, 16, 1, segments=((7, 16),)),
            asks(1, 8, 1, step=1),
            asks(2, 16, 1, step=2, segments=((7, 16),)),
        ],
        schedule="""
            0:16@0 +0
            1:8@0 +1
            2:8@8 +2""",
    ),
    Case(
        name="rule 10: idle blocks that are found count as needed",
        settings={"enable_prefix_caching": True, "num_gpu_blocks": 6},
        # Request 2 needs 4 blocks and finds 2 of them, idle. Beside request 1 with its 2 of 5
        # blocks 3 are free, but these include the 2.
        requests=[
            asks(0, 8, 1, segments=((7, 8),)),
            asks(1, 7, 3, step=1),
            asks(2, 16, 1, step=2, segments=((7, 8),)),
        ],
        schedule="""
            0:8@0 +0
            1:7@0
            1:1@7
            1:1@8 +1
            2:8@8 +2""",
    ),
    Case(
        name="priority: by priority, then arrival, then id",
        settings={"policy": "priority", "max_num_seqs": 1},
        requests=[
            asks(0, 2, 1, priority=2),
            asks(1, 2, 1, priority=1, arrival=9),
            asks(2, 2, 1, priority=1, arrival=3),
            asks(3, 2, 1, priority=1, arrival=9),
        ],
        schedule="""
            2:2@0 +2
            1:2@0 +1
            3:2@0 +3
            0:2@0 +0""",
    ),
    Case(
        name="rule 4, priority: of equally unimportant ones the first gives way",
        settings={"policy": "priority", "num_gpu_blocks": 7, "scheduler_reserve_full_isl": False},
        requests=[
            asks(0, 8, 3, priority=0),
            asks(1, 7, 2, priority=1, arrival=5),
            asks(2, 7, 3, priority=1, arrival=5),
        ],
        schedule="""
            0:8@0 1:7@0 2:7@0
            0:1@8 2:1@7 -1
            0:1@9 2:1@8 +0 +2
            1:8@0 +1""",
    ),
    Case(
        name="rule 4, priority: among equals the latest arrival gives way",
        settings={"policy": "priority", "num_gpu_blocks": 7, "scheduler_reserve_full_isl": False},
        requests=[
            asks(0, 8, 3, priority=0),
            asks(1, 7, 3, priority=1, arrival=5),
            asks(2, 7, 2, priority=1, arrival=6),
        ],
        schedule="""
            0:8@0 1:7@0 2:7@0
            0:1@8 1:1@7 -2
            0:1@9 1:1@8 +0 +1
            2:8@0 +2""",
    ),
    Case(
        name="rule 5: a victim that was served in this step gives its tokens back to the budget",
        settings={
            "policy": "priority",
            "num_gpu_blocks": 8,
            "max_num_batched_tokens": 8,
            "scheduler_reserve_full_isl": False,
        },
        requests=[
            asks(0, 7, 5, priority=5),
            asks(1, 8, 3, step=1, priority=0),
            asks(2, 13, 1, step=2, priority=1),
        ],
        schedule="""
            0:7@0
            0:1@7 1:7@0
            0:1@8 1:1@7 2:6@0
            1:1@8 2:7@6 -0 +2
            1:1@9 0:7@0 +1
            0:3@7
            0:1@10 +0""",
    ),
    Case(
        name="rule 4, priority: a victim is sorted in again, behind who is more important",
        settings={
            "policy": "priority",
            "num_gpu_blocks": 6,
            "scheduler_reserve_full_isl": False,
        },
        requests=[
            asks(0, 8, 2, priority=0),
            asks(1, 8, 2, priority=9),
            asks(2, 8, 1, step=1, priority=3),
        ],
        schedule="""
            0:8@0 1:8@0
            0:1@8 -1 +0
            2:8@0 1:9@0 +2 +1""",
    ),
    Case(
        name="rule 4, priority: who gives way itself ends the running loop, here an empty step",
        settings={"policy": "priority", "num_gpu_blocks": 6, "scheduler_reserve_full_isl": False},
        requests=[
            asks(0, 7, 3, priority=9),
            asks(1, 10, 2, step=1, priority=0),
        ],
        schedule="""
            0:7@0
            0:1@7 1:10@0
            -0
            1:1@10 +1
            0:9@0 +0""",
    ),
]


def play(case: Case, *, cohorts: bool) -> list[str]:
    """The schedule of the engine, in the notation above."""
    config = EngineConfig(**PLAIN | case.settings)
    engine = Engine(config, cohorts=cohorts)
    lines: list[str] = []
    expected = len(case.requests)
    ended = 0
    while ended < expected and len(lines) < 100:
        for ask in case.requests:
            if ask["step"] == len(lines):
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
        content=block_keys(ask.get("segments", ()), ask["id"], config.block_size),
        arrival=ask.get("arrival", ask["id"]),
        priority=ask.get("priority", 0),
    )


PLAIN = {
    "num_gpu_blocks": 10,
    "block_size": 4,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "max_model_len": 64,
    "step_overhead_ns": 0,
    "enable_prefix_caching": False,
}


@pytest.mark.parametrize("cohorts", [False, True], ids=["touched", "counted"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_schedule_is_the_one_written_by_hand(case, cohorts):
    expected = [line.strip() for line in case.schedule.strip().splitlines()]
    assert play(case, cohorts=cohorts) == expected
