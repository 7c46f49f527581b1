"""Metrics against hand-made requests and against a slow definition of each."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.sim.book import Watch
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.metrics import DEFINITIONS, PERCENTILES, TIMES, Latencies, times_of
from bitgate.sim.run import RequestResult
from bitgate.sim.step import StepShape
from bitgate.sim.workload import Request


def result(arrival: int, start: int, first: int, end: int, output: int = 1) -> RequestResult:
    return RequestResult(0, arrival, start, first, end, 10, output, 0, 0, 0, 0)


def collected(results: Iterable[RequestResult]) -> Latencies:
    latencies = Latencies()
    for one in results:
        latencies.request(one)
    return latencies


def test_the_times_of_a_request():
    assert times_of(result(100, 130, 200, 300, output=4)) == (30, 100, 33, 200)
    assert times_of(result(100, 130, 200, 205, output=3)) == (30, 100, 2, 105)  # 2.5, half to even
    assert times_of(result(100, 130, 200, 200)) == (30, 100, None, 100)


def test_rates_count_completed_requests_over_the_makespan():
    found = collected([result(0, 0, 4, 10, 7), result(0, 0, 9, 20, 8)]).summary(3_000_000_000)
    assert found["makespan_ns"] == 3_000_000_000
    assert found["output_tokens_per_second"] == "5.000000"
    assert found["total_tokens_per_second"] == "11.666667"
    assert found["requests_per_second"] == "0.666667"


def test_without_a_second_token_there_is_no_time_per_token():
    found = collected([result(0, 0, 4, 4)]).summary(10)
    nothing = {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    assert found["tpot_ns"] == nothing
    assert found["itl_ns"] == nothing | {"left_out": 0, "left_out_ns": 0}
    assert found["ttft_ns"] == {"count": 1, "mean": "4.000000", "p50": 4, "p90": 4, "p99": 4}


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=40))
def test_percentiles_are_values_that_occurred_at_their_nearest_rank(times):
    found = collected(result(0, 0, one, one) for one in times).summary(1)["ttft_ns"]
    for percent in PERCENTILES:
        assert found[f"p{percent}"] == sorted(times)[ceil(Fraction(percent * len(times), 100)) - 1]
    assert abs(Fraction(found["mean"]) - Fraction(sum(times), len(times))) <= Fraction(1, 2 * 10**6)


def test_each_gap_counts_once_for_each_decode():
    latencies = collected([result(0, 0, 10, 40, output=4)])
    for start, ns, decodes in ((0, 10, 0), (10, 5, 1), (15, 20, 1), (35, 5, 1)):
        latencies.step(start, ns, StepShape((), decodes, 9, 1))
    found = latencies.summary(40)["itl_ns"]
    assert (found["count"], found["mean"], found["p50"], found["p99"]) == (3, "10.000000", 5, 20)
    assert (found["left_out"], found["left_out_ns"]) == (0, 0)


def gaps_by_hand(steps: list[tuple[int, int, StepShape]]) -> list[int]:
    ends = [start + ns for start, ns, _ in steps]
    before = [0, *ends]
    return [
        end - last
        for end, last, (_, _, shape) in zip(ends, before, steps, strict=False)
        for _ in range(shape.decodes)
    ]


@pytest.mark.parametrize(("blocks", "preempts"), [(400, False), (13, True)])
def test_the_gaps_of_a_simulation_are_all_shown_or_counted_as_left_out(blocks, preempts):
    config = EngineConfig(
        num_gpu_blocks=blocks,
        block_size=4,
        max_num_batched_tokens=32,
        max_num_seqs=6,
        max_model_len=48,
        step_overhead_ns=0,
    )
    requests = [
        Request(id=n, arrival_ns=9 * n, prompt_tokens=5 + n % 9, output_tokens=1 + 7 * n % 23)
        for n in range(40)
    ]
    latencies, steps, results = Latencies(), [], []

    def on_step(*step):
        steps.append(step)
        latencies.step(*step)

    def on_result(one):
        results.append(one)
        latencies.request(one)

    run = simulate(
        requests,
        config,
        lambda shape: 7 + shape.tokens + shape.decode_kv_tokens // 50,
        watch=Watch(result=on_result, step=on_step),
    )
    assert any(one.preemptions for one in results) == preempts
    found = latencies.summary(run.end_ns)["itl_ns"]
    tokens = sum(one.output_tokens - 1 for one in results)
    total = sum(one.finish_ns - one.first_token_ns for one in results)
    gaps = gaps_by_hand(steps)
    assert found["count"] == tokens
    assert abs(Fraction(found["mean"]) - Fraction(total, tokens)) <= Fraction(1, 2 * 10**6)
    assert found["left_out"] == tokens - len(gaps)
    assert found["left_out_ns"] == total - sum(gaps)
    assert (found["left_out"] > 0) == (found["left_out_ns"] > 0) == preempts
    for percent in PERCENTILES:
        assert found[f"p{percent}"] == sorted(gaps)[ceil(Fraction(percent * len(gaps), 100)) - 1]


def test_every_metric_has_a_definition():
    found = collected([result(0, 0, 4, 8, 3)]).summary(10)
    assert set(DEFINITIONS) == set(found) | {"percentiles"}
    assert set(TIMES) < set(DEFINITIONS)
