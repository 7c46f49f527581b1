from dataclasses import replace
from itertools import permutations

import pytest

from bitgate.records.errors import BitgateError, UsageError
from bitgate.sim.book import Watch
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.kv_cache import KvCache
from bitgate.sim.run import RequestResult
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request

CONFIG = EngineConfig(
    num_gpu_blocks=10,
    block_size=4,
    max_num_batched_tokens=8,
    max_num_seqs=4,
    max_model_len=64,
    step_overhead_ns=10,
    enable_prefix_caching=False,
)


def request(number: int, arrival_ns: int, prompt: int, output: int, **more: object) -> Request:
    return Request(
        id=number, arrival_ns=arrival_ns, prompt_tokens=prompt, output_tokens=output, **more
    )


def cost(shape: StepShape) -> int:
    return 1000 * shape.tokens + shape.decode_kv_tokens


def test_a_token_exists_when_its_step_ends():
    steps = []
    run = simulate(
        [request(3, 500, prompt=10, output=3)],
        CONFIG,
        cost,
        watch=Watch(step=lambda *step: steps.append(step)),
    )
    # By hand: 8 and 2 prompt tokens, then one that attends to 11 and one to 12; 10 ns each on top.
    assert steps == [
        (500, 8010, StepShape(((8, 0),), 0, 0, 1)),
        (8510, 2010, StepShape(((2, 8),), 0, 0, 1)),
        (10520, 1021, StepShape((), 1, 11, 1)),
        (11541, 1022, StepShape((), 1, 12, 1)),
    ]
    assert run.requests == (
        RequestResult(
            id=3,
            arrival_ns=500,
            first_scheduled_ns=500,
            first_token_ns=10520,
            finish_ns=12563,
            prompt_tokens=10,
            output_tokens=3,
            cached_tokens=0,
            preemptions=0,
            lost_tokens=0,
            restored_tokens=0,
        ),
    )
    assert (run.steps, run.busy_ns, run.idle_ns, run.end_ns) == (4, 12063, 500, 12563)
    assert run.audit.passed
    assert run.audit.tokens_computed == 12


def test_an_arrival_joins_the_step_that_starts_no_earlier():
    # The first step runs from 0 to 2010 ns.
    for arrival_ns, scheduled_ns in ((1, 2010), (2010, 2010), (2011, 3013 + 10)):
        run = simulate(
            [request(0, 0, prompt=2, output=4), request(1, arrival_ns, prompt=2, output=1)],
            CONFIG,
            cost,
        )
        times = {result.id: result.first_scheduled_ns for result in run.requests}
        assert times == {0: 0, 1: scheduled_ns}, arrival_ns


def test_an_idle_engine_waits_for_the_next_arrival():
    run = simulate(
        [request(0, 0, prompt=2, output=1), request(1, 90_000, prompt=2, output=1)], CONFIG, cost
    )
    assert [result.finish_ns for result in run.requests] == [2010, 92_010]
    assert run.idle_ns == 90_000 - 2010


def test_requests_of_one_nanosecond_come_in_by_id_whatever_their_order():
    trio = [request(n, 7, prompt=3 + n, output=2) for n in (0, 1, 2)]
    later = [request(n, 9, prompt=3 + n, output=2) for n in (4, 3)]
    digests = {simulate([*order, *later], CONFIG, cost).digest for order in permutations(trio)}
    assert len(digests) == 1
    assert simulate([*trio, *reversed(later)], CONFIG, cost).digest in digests


def test_a_single_prompt_token_is_prefill_work_and_a_single_token_behind_it_is_not():
    shapes = []
    simulate(
        [request(0, 0, prompt=9, output=2)],
        CONFIG,
        cost,
        watch=Watch(step=lambda start_ns, ns, shape: shapes.append(shape)),
    )
    assert shapes == [
        StepShape(((8, 0),), 0, 0, 1),
        StepShape(((1, 8),), 0, 0, 1),
        StepShape((), 1, 10, 1),
    ]


def test_a_preempted_request_tells_what_it_lost():
    config = replace(CONFIG, num_gpu_blocks=6, scheduler_reserve_full_isl=False)
    config = replace(config, max_num_batched_tokens=16)
    run = simulate([request(0, 0, prompt=8, output=6), request(1, 0, 8, 3)], config, cost)
    victim = run.requests[1]
    assert (victim.id, victim.preemptions, victim.lost_tokens, victim.restored_tokens) == (
        1,
        1,
        8,
        0,
    )
    assert run.audit.passed
    assert run.audit.tokens_computed == (8 + 6 - 1) + (8 + 3 - 1) + 8
    cached = simulate(
        [request(0, 0, prompt=8, output=6), request(1, 0, 8, 3)],
        replace(config, enable_prefix_caching=True),
        cost,
    )
    assert cached.requests[1].restored_tokens == 4
    assert cached.audit.tokens_computed == run.audit.tokens_computed - 4


def test_a_shared_prefix_is_computed_once():
    prompts = [request(n, 0, prompt=8, output=1, segments=((5, 8),)) for n in (0, 1)]
    config = replace(CONFIG, enable_prefix_caching=True, max_num_batched_tokens=16)
    run = simulate(prompts, config, cost)
    assert [result.cached_tokens for result in run.requests] == [0, 4]
    assert run.audit.passed


def test_an_empty_step_takes_no_time():
    # Less important and first in the running list, request 0 gives way to nobody's use.
    config = replace(
        CONFIG,
        policy="priority",
        num_gpu_blocks=6,
        max_num_batched_tokens=16,
        scheduler_reserve_full_isl=False,
    )
    run = simulate(
        [
            request(0, 0, prompt=7, output=3, priority=9),
            request(1, 5, prompt=10, output=2, priority=0),
        ],
        config,
        cost,
    )
    # Steps: 7 tokens, 1 + 10 tokens, (none), 1 token, 9 tokens.
    assert run.steps == 4
    assert run.end_ns == 7010 + (11_008 + 10) + (1011 + 10) + 9010
    assert run.audit.passed


def test_equals_of_one_nanosecond_do_not_take_each_others_blocks_for_ever():
    config = replace(
        CONFIG,
        policy="priority",
        num_gpu_blocks=18,
        block_size=1,
        max_num_seqs=2,
        long_prefill_token_threshold=3,
        scheduler_reserve_full_isl=False,
    )
    run = simulate([request(n, 0, prompt=12, output=3) for n in (0, 1)], config, cost)
    assert [(result.id, result.preemptions > 0) for result in run.requests] == [
        (0, False),
        (1, True),
    ]
    assert run.audit.passed


def test_the_digest_is_the_same_on_every_machine():
    run = simulate([request(3, 500, prompt=10, output=3)], CONFIG, cost)
    words = [500, 8010, 0, 0, 1, 8, 0, 8510, 2010, 0, 0, 1, 2, 8]
    words += [10520, 1021, 1, 11, 0, 11541, 1022, 1, 12, 0]
    results = [3, 500, 500, 10520, 12563, 10, 3, 0, 0, 0, 0]
    assert run.digest == digest_of(words, results)


def digest_of(*streams: list[int]) -> str:
    from hashlib import sha256

    parts = [
        sha256(b"".join(word.to_bytes(8, "little", signed=True) for word in words)).digest()
        for words in streams
    ]
    return sha256(b"".join(parts)).hexdigest()


def test_each_integer_of_the_run_is_in_the_digest():
    def digest(more_ns=0, overhead_ns=10, output=3, arrival_ns=500):
        config = replace(CONFIG, step_overhead_ns=overhead_ns)
        work = [request(3, arrival_ns, prompt=10, output=output)]
        return simulate(work, config, lambda shape: cost(shape) + more_ns).digest

    others = {
        digest(more_ns=1),
        digest(output=4),
        digest(arrival_ns=501),
    }
    assert len(others | {digest()}) == 4
    # The host's time and the kernels' are one duration.
    assert digest(more_ns=1, overhead_ns=9) == digest()


def test_results_can_be_handed_on_as_they_come():
    requests = [request(n, 100 * n, prompt=4, output=3) for n in range(9)]
    kept = simulate(requests, CONFIG, cost)
    handed: list[RequestResult] = []
    run = simulate(requests, CONFIG, cost, watch=Watch(result=handed.append))
    assert run.requests == ()
    assert tuple(handed) == kept.requests
    assert run.digest == kept.digest


def test_requests_are_read_as_they_arrive():
    read: list[int] = []

    def trace():
        for number in range(50):
            read.append(number)
            yield request(number, 1_000_000 * number, prompt=4, output=3)

    ahead = []
    simulate(trace(), CONFIG, cost, watch=Watch(result=lambda result: ahead.append(len(read))))
    # The one that arrives next, and the one after it, which tells that no other arrives with it.
    assert ahead == [min(number + 3, 50) for number in range(50)]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "holds no request"),
        ([request(0, -1, 1, 1)], "request 0: expected an arrival from 0 .* got -1"),
        ([request(0, 2**62, 1, 1)], r"below 2\*\*62"),
        ([request(0, 5, 1, 1), request(1, 4, 1, 1)], "request 1 arrives at 4 ns, after .* 5 ns"),
        ([request(0, 0, 0, 1)], "request 0: expected prompt_tokens of at least 1, got 0"),
        ([request(0, 0, 1, 0)], "request 0: expected output_tokens of at least 1, got 0"),
        ([request(7, 0, 1, 1), request(7, 0, 1, 1)], "request 7 arrives twice"),
        ([request(7, 0, 1, 9), request(7, 1, 1, 1)], "request 7 arrives twice"),
        ([request(0, 0, 4, 1, segments=((-1, 2),))], "segments from 0"),
        ([request(0, 0, 4, 1, segments=((1, 0),))], "at least 1 token each"),
        ([request(0, 0, 4, 1, segments=((1, 6),))], "name 6 tokens, it has 5"),
        ([request(0, 0, 64, 1)], "request 0: a prompt of 64 tokens .* max_model_len 64"),
        ([request(0, 0, 60, 5)], "request 0: .* are 65: .* max_model_len 64"),
        ([request(0, 0, 36, 2)], "request 0: .* need 10 blocks of 4 tokens: the pool has 9"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_door(requests, told):
    with pytest.raises(UsageError, match=told):
        simulate(requests, CONFIG, cost)


def test_refused_requests_can_be_kept_and_do_not_stop_the_others():
    requests = [
        request(0, 0, prompt=36, output=2),
        request(1, 3, prompt=4, output=1),
        request(2, 4, prompt=64, output=1),
    ]
    run = simulate(requests, CONFIG, cost, keep_refused=True)
    assert [result.id for result in run.requests] == [1]
    assert [(refusal.id, refusal.arrival_ns) for refusal in run.refusals] == [(0, 0), (2, 4)]
    assert "need 10 blocks" in run.refusals[0].reason
    assert run.audit.passed


def test_a_run_that_served_nobody_does_not_pass_its_audit():
    run = simulate([request(0, 0, 64, 1)], CONFIG, cost, keep_refused=True)
    assert run.audit.findings == ()
    assert not run.audit.passed


@pytest.mark.parametrize("price", [0, -3, 1.5, True, None])
@pytest.mark.parametrize("prompt", [1, 2])
def test_a_price_that_is_no_whole_number_of_nanoseconds_is_refused(price, prompt):
    def priced(shape: StepShape) -> object:
        return price if shape.tokens == prompt else 5

    with pytest.raises(UsageError, match=rf"price of StepShape.* above 0, got {price}"):
        simulate([request(0, 0, prompt=2, output=5)], CONFIG, priced)


def test_an_engine_that_cannot_go_on_says_so(monkeypatch):
    monkeypatch.setattr(KvCache, "admit", lambda *_, **__: False)
    with pytest.raises(BitgateError, match="1 requests wait and none can ever run"):
        simulate([request(0, 0, 4, 1)], CONFIG, cost)
