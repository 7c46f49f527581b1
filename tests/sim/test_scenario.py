"""A whole simulation: from a ledger to the summary, the same bytes every time."""

import csv
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.summaries import read_summary
from bitgate.records.types import PRICE_SOURCES
from bitgate.sim import scenario
from bitgate.sim.arch import load_model, terms
from bitgate.sim.metrics import DEFINITIONS, TIMES
from bitgate.sim.run import RequestResult
from bitgate.sim.scenario import AZURE_SLICE, Scenario, default_engine
from bitgate.sim.workload import read_azure

FULL_TRACE = Path(__file__).parents[3] / "shared" / "data" / "traces" / "azure_2023_conv.csv"
EXPERTS = next(term for term in terms(load_model(scenario.TINY_MODEL)) if term.op == "moe_experts")
FAST, SLOW = 10_000, 40_000


@pytest.fixture
def priced(lanes):
    """Lanes of the experts, open at 1, 16 and 64 tokens; at 16 a faster record stands."""
    for tokens in (1, 16, 64):
        opened = lanes.open(EXPERTS.at(tokens), SLOW + 1_000 * tokens)
        if tokens == 16:
            faster = lanes.append(EXPERTS.at(16), FAST, name="sorted")
            lanes.decide(EXPERTS.at(16), faster, "promoted")
    rejected = lanes.append(EXPERTS.at(64), 7, name="wrong")
    lanes.decide(EXPERTS.at(64), rejected, "rejected")
    lanes.ids = {"opened": opened, "faster": faster, "rejected": rejected}
    return lanes


@pytest.fixture
def small(priced, make) -> Scenario:
    """Forty requests of the trace, experts from the ledger and all else assumed."""
    return Scenario(
        name="small",
        engine=default_engine(),
        requests=40,
        ledger=priced.ledger.root,
        peaks=make["peaks"](),
        allow_extrapolation=True,
    )


def numbers(value: object) -> list[object]:
    """Every number in plain JSON."""
    if isinstance(value, dict):
        return [one for part in value.values() for one in numbers(part)]
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [value] if isinstance(value, int | float) else []


def test_a_second_simulation_gives_the_same_bytes(small, tmp_path):
    for out in ("one", "two"):
        scenario.run(small, tmp_path / out)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["requests.csv", "steps.csv", "summary.json"]
    for name in names:
        one, two = ((tmp_path / out / name).read_bytes() for out in ("one", "two"))
        assert one == two
        assert str(tmp_path).encode() not in one
    # Not because nothing can change them.
    scenario.run(replace(small, requests=41), tmp_path / "three")
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() != (tmp_path / "three" / name).read_bytes()


def test_the_summary_says_everything_exactly(small, priced, tmp_path):
    outcome = scenario.run(small, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_bytes())
    assert found == json.loads(json.dumps(outcome.summary))
    assert found["schema"] == "bitgate-sim/1"
    assert not [number for number in numbers(found) if isinstance(number, float)]
    assert found["metrics"].keys() | {"percentiles"} == found["definitions"].keys()
    assert found["definitions"] == dict(DEFINITIONS)
    coverage = {how: Decimal(found["coverage"][how]) for how in PRICE_SOURCES}
    assert sum(coverage.values()) == 1
    assert coverage["assumed"] > 0 < coverage["interpolated"]
    rows = {row["op"]: row for row in found["prices"]["ops"]}
    assert sum(row["ns"] for row in rows.values()) == found["coverage"]["busy_ns"]
    assert sum(Decimal(row["share"]) for row in rows.values()) == 1
    assert rows["gemm"]["how"]["assumed"] == "1.000000"
    assert rows["moe_experts"]["how"]["assumed"] == "0.000000"
    used = set(rows["moe_experts"]["record_ids"])
    assert priced.ids["faster"] in used
    assert priced.ids["rejected"] not in used
    assert outcome.record_ids == tuple(sorted(used))
    assert found["audit"]["passed"]
    assert found["audit"]["requests"] == found["workload"]["requests"] == 40


def test_the_tables_hold_each_request_and_each_step_once(small, tmp_path):
    outcome = scenario.run(small, tmp_path)
    with (tmp_path / "requests.csv").open(newline="") as file:
        requests = list(csv.DictReader(file))
    assert list(requests[0]) == [*RequestResult._fields, *TIMES]
    asked = {str(r.id): (str(r.prompt_tokens), str(r.output_tokens)) for r in _slice(40)}
    served = {row["id"]: (row["prompt_tokens"], row["output_tokens"]) for row in requests}
    assert served == asked
    ttft = sorted(int(row["ttft_ns"]) for row in requests)
    assert ttft[19] == outcome.summary["metrics"]["ttft_ns"]["p50"]
    with (tmp_path / "steps.csv").open(newline="") as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == outcome.run.steps
    assert sum(int(row["ns"]) for row in steps) == outcome.run.busy_ns
    assert sum(int(row["tokens"]) for row in steps) == outcome.summary["audit"]["tokens_computed"]
    mixed = next(row for row in steps if row["prefills"])
    new = [int(chunk.partition("+")[0]) for chunk in mixed["prefills"].split()]
    assert sum(new) + int(mixed["decodes"]) == int(mixed["tokens"])


def _slice(count: int):
    return [request for request in read_azure(AZURE_SLICE) if request.id < count]


def test_promotions_are_worth_what_they_replaced_costs_more(small):
    now, before = (
        scenario.run(replace(small, basis=basis, name=basis)) for basis in ("standing", "replaced")
    )
    rate = "output_tokens_per_second"
    assert Decimal(now.summary["metrics"][rate]) >= Decimal(before.summary["metrics"][rate])
    assert now.run.busy_ns < before.run.busy_ns
    assert any("replaced" in label for label in before.summary["labels"])


def test_labels_say_where_the_prices_are_from(small, make):
    labels = scenario.run(small).summary["labels"]
    assert labels[0] == "CPU timings of node lab-1 (a CPU): they say nothing about another device"
    assert any("assumed from declared peaks: a declared device" in label for label in labels)
    assert any("extrapolated" in label for label in labels)
    assert any("declared to be zero" in label for label in labels)
    assert any("stand-in" in label for label in labels)
    declared = replace(small, ledger=None, engine=default_engine(step_overhead_ns=5_000))
    labels = scenario.run(declared).summary["labels"]
    assert labels[0] == "nothing here was measured"
    assert "host time between steps: 5000 ns a step, declared" in labels


def test_a_ledger_of_two_devices_is_refused_until_one_is_chosen(small, priced):
    priced.open(EXPERTS.at(32), 5_000, device="cuda")
    with pytest.raises(UsageError, match="devices cpu, cuda"):
        scenario.run(small)
    assert scenario.run(replace(small, device="cpu")).summary["prices"]["device"] == "cpu"


def test_without_extrapolation_or_peaks_a_missing_price_is_an_error(small):
    with pytest.raises(UsageError, match="no price for") as missing:
        scenario.run(replace(small, peaks=None))
    assert "its lane: cpu/gemm/" in str(missing.value)


def test_an_engine_that_can_serve_nobody_is_inconclusive(small, tmp_path):
    with pytest.raises(Inconclusive, match="none of the 40 requests"):
        scenario.run(replace(small, engine=default_engine(max_model_len=40)), tmp_path / "out")


def test_refused_requests_are_counted_and_said(small):
    found = scenario.run(replace(small, engine=default_engine(max_model_len=1_000))).summary
    refused = found["audit"]["refused"]
    assert 0 < refused < 40
    assert found["audit"]["requests"] == 40 - refused
    assert found["metrics"]["e2e_ns"]["count"] == 40 - refused
    assert any(label.startswith(f"{refused} requests were refused") for label in found["labels"])


def test_a_simulation_is_recorded_with_its_sources(small, priced):
    outcome = scenario.run(small)
    entry = scenario.record(outcome, priced.ledger.writer("a"))
    (stored,) = Ledger(small.ledger).simulations()
    assert stored.id == entry.id
    body = stored.body
    assert (body.name, body.device, body.node, body.model) == (
        "small",
        "cpu",
        "lab-1",
        "tiny-qwen3-moe",
    )
    assert body.record_ids == outcome.record_ids
    assert json.loads(priced.ledger.get(body.summary.sha256)) == json.loads(
        json.dumps(outcome.summary)
    )
    assert read_summary(Ledger(small.ledger), stored).digest == outcome.summary["digest"]
    assert Ledger(small.ledger).verify(strict=True).ok


def test_a_recorded_simulation_that_names_a_rejected_record_is_refused(small, priced):
    outcome = scenario.run(small)
    rows = outcome.summary["prices"]["ops"]
    next(row for row in rows if row["record_ids"])["record_ids"] = [priced.ids["rejected"]]
    with pytest.raises(UsageError, match="nothing was appended"):
        scenario.record(outcome, priced.ledger.writer("a"))
    assert not list(priced.ledger.simulations())


@pytest.mark.needs_data
def test_the_built_in_trace_is_the_beginning_of_the_published_one():
    if not FULL_TRACE.is_file():
        pytest.skip("the published trace is not beside this checkout")
    published = read_azure(FULL_TRACE)
    ours = list(read_azure(AZURE_SLICE))
    assert len(ours) == 1_000
    assert ours == [next(published) for _ in ours]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("watermarks=0.1", "expected one of num_gpu_blocks"),
        ("block_size=x", "expected a value of type int"),
        ("enable_prefix_caching=yes", "expected a value of type bool"),
        ("policy", "policy: expected fcfs or priority, got ''"),
    ],
)
def test_settings_that_the_engine_does_not_know_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        default_engine(**scenario.engine_settings([text]))


def test_settings_of_every_type_are_read():
    texts = ["block_size=8", "enable_prefix_caching=false", "watermark=0.25", "policy=priority"]
    engine = default_engine(**scenario.engine_settings([*texts, "max_num_active_seqs=9"]))
    assert (engine.block_size, engine.enable_prefix_caching) == (8, False)
    assert (engine.watermark, engine.policy, engine.max_num_active_seqs) == (0.25, "priority", 9)


def test_a_small_budget_limits_the_running_requests_too():
    assert default_engine(max_num_batched_tokens=64).max_num_seqs == 64
    assert default_engine().max_num_seqs == 128
