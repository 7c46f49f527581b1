"""The meter: a step costs what its calls cost, and the books add up to the engine's time."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.records.errors import BitgateError
from bitgate.sim import meter as module
from bitgate.sim.arch import calls, load_model, terms
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.meter import Meter
from bitgate.sim.prices import MissingPrice, PriceBook
from bitgate.sim.scenario import TINY_MODEL
from bitgate.sim.step import StepShape
from bitgate.sim.summary import coverage, shares
from bitgate.sim.workload import Request

MODEL = load_model(TINY_MODEL)
CONFIG = EngineConfig(
    num_gpu_blocks=200,
    max_num_batched_tokens=64,
    max_num_seqs=8,
    max_model_len=400,
    step_overhead_ns=0,
)
REQUESTS = [
    Request(id=n, arrival_ns=40_000 * n, prompt_tokens=20 + 13 * n % 90, output_tokens=5 + n % 7)
    for n in range(20)
]


@pytest.fixture(scope="module")
def book(make) -> PriceBook:
    """Experts measured from 1 to 64 tokens, everything else assumed."""
    experts = next(term for term in terms(MODEL) if term.op == "moe_experts")
    timings = [make["timing"](experts.at(tokens), 900 + 31 * tokens) for tokens in (1, 16, 64)]
    return PriceBook(timings, device="cpu", peaks=make["peaks"]())


shapes = st.builds(
    StepShape,
    prefills=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 50)), max_size=3).map(tuple),
    decodes=st.integers(1, 4),
    decode_kv_tokens=st.integers(4, 4_000),
    logits=st.integers(1, 7),
)


@given(found=st.lists(shapes, min_size=1, max_size=6))
def test_a_step_costs_what_its_calls_cost(book, found):
    """The remembered sums against every call of every step, priced one by one."""
    meter = Meter(terms(MODEL), book)
    expected = [
        sum(count * book.price(call).ns for call, count in calls(MODEL, shape).items())
        for shape in found
    ]
    assert [meter(shape) for shape in found] == expected
    spent = meter.close(sum(expected), 0)
    counts: dict[str, int] = {}
    for shape in found:
        for call, count in calls(MODEL, shape).items():
            counts[call.op] = counts.get(call.op, 0) + count
    assert {op: one.calls for op, one in spent.items()} == counts


def test_the_books_say_how_each_nanosecond_was_priced(book, make):
    meter = Meter(terms(MODEL), book)
    steps = [StepShape((), decodes, 99, decodes) for decodes in (1, 16, 10, 16)]
    spent = meter.close(sum(map(meter, steps)), 0)
    experts = spent["moe_experts"]
    assert experts.ns == {
        "exact": 2 * (931 + 1_396 + 1_396),  # two layers
        "interpolated": 2 * 1_210,
        "extrapolated": 0,
        "assumed": 0,
    }
    assert len(experts.sources) == 2  # 64 tokens priced nothing
    assert {how for how, ns in spent["gemm"].ns.items() if ns} == {"assumed"}
    assert coverage(spent.values())["exact"] == experts.ns["exact"]


def test_the_books_of_a_simulation_add_up_to_the_engines_own(book):
    meter = Meter(terms(MODEL), book)
    config = replace(CONFIG, step_overhead_ns=777)
    run = simulate(REQUESTS, config, meter)
    spent = meter.close(run.busy_ns, 777)
    assert sum(one.total_ns for one in spent.values()) == run.busy_ns
    assert spent["step_overhead"].ns["assumed"] == 777 * run.steps
    assert list(spent) == sorted(spent, key=lambda op: -spent[op].total_ns)


def test_books_that_do_not_add_up_are_an_error(book):
    """A step that is priced behind the engine's back, and time that nobody priced."""
    for planted_ns in (-1, 1):
        meter = Meter(terms(MODEL), book)
        run = simulate(REQUESTS, CONFIG, meter)
        with pytest.raises(BitgateError, match=r"add up to \d+ ns, the engine was busy for"):
            meter.close(run.busy_ns + planted_ns, 0)
    meter = Meter(terms(MODEL), book)
    run = simulate(REQUESTS, CONFIG, lambda shape: max(meter(shape), meter(shape)))
    with pytest.raises(BitgateError, match="a step was priced twice"):
        meter.close(run.busy_ns, 0)


def test_books_are_the_same_however_little_is_remembered(book, monkeypatch):
    found = []
    for remembered in (1, 3, 1 << 14):
        monkeypatch.setattr(module, "_REMEMBERED", remembered)
        meter = Meter(terms(MODEL), book)
        run = simulate(REQUESTS, CONFIG, meter)
        spent = meter.close(run.busy_ns, 0)
        found.append((run.digest, {op: (one.calls, one.ns) for op, one in spent.items()}))
    assert found[0] == found[1] == found[2]


def test_every_operator_without_a_price_is_named_before_anything_runs(make):
    experts = next(term for term in terms(MODEL) if term.op == "moe_experts")
    priced = PriceBook([make["timing"](experts.at(16), 1_000)], device="cpu")
    with pytest.raises(MissingPrice) as missing:
        Meter(terms(MODEL), priced)
    text = str(missing.value)
    assert text.count("nearest priced: none") == len(terms(MODEL)) - 1
    assert "moe_experts" not in text
    assert "generation_attention[head_dim=32,heads=4,kv_heads=2" in text


@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10**12), min_size=1))
def test_shares_are_decimals_that_add_up_to_one(parts):
    if not sum(parts.values()):
        return
    found = shares(parts)
    assert sum(map(Fraction, found.values())) == 1
    for name, part in parts.items():
        assert abs(Fraction(found[name]) - Fraction(part, sum(parts.values()))) < Fraction(1, 10**6)
