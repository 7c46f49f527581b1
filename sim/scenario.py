"""One simulation from end to end: a model, a trace, prices and an engine, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bitgate.records.clock import utc_now
from bitgate.records.durable import replace_file
from bitgate.records.errors import BitgateError, Inconclusive, UsageError
from bitgate.records.ledger import Entry, Ledger, Row, Writer
from bitgate.records.summaries import SUMMARY_SCHEMA
from bitgate.records.timings import Basis, lane_timings
from bitgate.records.types import PRICE_SOURCES, Simulation
from bitgate.sim.arch import load_model, terms
from bitgate.sim.cluster import simulate
from bitgate.sim.config import EngineConfig
from bitgate.sim.files import SUMMARY, watching
from bitgate.sim.meter import Meter
from bitgate.sim.metrics import DEFINITIONS, Latencies
from bitgate.sim.peaks import Peaks
from bitgate.sim.prices import PriceBook
from bitgate.sim.run import Run
from bitgate.sim.sources import Sources, select
from bitgate.sim.summary import (
    Offered,
    as_bytes,
    audit_row,
    coverage,
    engine_row,
    model_row,
    peaks_row,
    price_rows,
    sealed,
    shares,
)
from bitgate.sim.workload import read_azure

_DATA = Path(__file__).parent / "data"
# A stand-in that needs no download: the tiny model of the captures, and a piece of a real trace.
TINY_MODEL: Final = _DATA / "tiny-qwen3-moe"
AZURE_SLICE: Final = _DATA / "azure_2023_conv_first_1000.csv"
# The stand-in's weights are never run here; it takes the prompts of the trace as they are.
_TINY_MODEL_LEN = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated.

    ledger: whose timings are the prices; None for none
    basis: prices of the records that stand in their lanes, or of what these replaced
    device: the kind of device, where the ledger has several
    peaks: a device's declared peaks, which price what no record does
    allow_extrapolation: price shapes beyond the measured ones
    trace: an Azure trace; `requests` of it from its beginning, or None for all
    """

    name: str
    engine: EngineConfig
    model: Path = TINY_MODEL
    trace: Path = AZURE_SLICE
    requests: int | None = None
    ledger: Path | None = None
    basis: Basis = "standing"
    device: str | None = None
    peaks: Peaks | None = None
    allow_extrapolation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation. `summary` is what summary.json holds."""

    run: Run
    summary: dict[str, Any]
    coverage_ns: dict[str, int]

    @property
    def exact(self) -> Fraction:
        """The share of the simulated time that was measured at its very shapes."""
        return Fraction(self.coverage_ns["exact"], sum(self.coverage_ns.values()))

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Every record that a price came from."""
        found = {record for row in self.summary["prices"]["ops"] for record in row["record_ids"]}
        return tuple(sorted(found))


def default_engine(model: Path = TINY_MODEL, **settings: Any) -> EngineConfig:
    """An engine for a model: 65,536 tokens of cache, vLLM's token budget of small devices.

    `settings` replace any of them; without a max_model_len it is the model's own, and a smaller
    token budget limits the running requests too.
    """
    if "max_model_len" not in settings:
        known = model.resolve() == TINY_MODEL.resolve()
        settings["max_model_len"] = _TINY_MODEL_LEN if known else load_model(model).max_model_len
    budget = settings.get("max_num_batched_tokens", 2048)
    plain: dict[str, Any] = {
        "num_gpu_blocks": 4096,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(128, budget),
        "step_overhead_ns": 0,
    }
    return EngineConfig(**(plain | settings))


def engine_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Settings of the engine from NAME=VALUE texts.

    Raises:
        UsageError: no such setting, or a value of another type.
    """
    known = {
        field.name: getattr(field.type, "__name__", str(field.type))
        for field in fields(EngineConfig)
    }
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise UsageError(f"--engine {text}: expected one of {', '.join(known)} and its value")
        found[name] = _setting(known[name], value, text)
    return found


def run(scenario: Scenario, out: Path | None = None) -> Outcome:
    """Simulate; with a directory `out`, write summary.json, requests.csv and steps.csv there.

    The same scenario gives the same bytes, every time and on every machine.

    Raises:
        UsageError: an unusable input, timings that must not be mixed, or a call without a price.
        Inconclusive: the engine can serve none of the requests.
        BitgateError: the simulation broke a law of conservation, or its prices do not add up.
    """
    model = load_model(scenario.model)
    found = terms(model)
    timings = (
        [] if scenario.ledger is None else lane_timings(Ledger(scenario.ledger), scenario.basis)
    )
    sources = select(timings, found, device=scenario.device, peaks=scenario.peaks)
    book = PriceBook(
        sources.timings,
        device=sources.device,
        peaks=scenario.peaks,
        allow_extrapolation=scenario.allow_extrapolation,
    )
    meter, offered, latencies = Meter(found, book), Offered(), Latencies()
    requests = offered.passing(islice(read_azure(scenario.trace), scenario.requests))
    with watching(latencies, out) as watch:
        ran = simulate(requests, scenario.engine, meter, keep_refused=True, watch=watch)
    _require_served(ran)
    spent = meter.close(ran.busy_ns, scenario.engine.step_overhead_ns)
    facts = {
        "schema": SUMMARY_SCHEMA,
        "name": scenario.name,
        "model": model_row(model, scenario.model),
        "workload": offered.row(scenario.trace),
        "engine": engine_row(scenario.engine),
        "prices": _how_priced(scenario, sources) | {"ops": price_rows(spent)},
        "coverage": {"busy_ns": ran.busy_ns} | shares(coverage(spent.values())),
        "metrics": latencies.summary(ran.end_ns),
        "definitions": dict(DEFINITIONS),
        "audit": audit_row(ran.audit, len(ran.refusals)),
        "labels": _labels(scenario, sources, ran),
        "run_digest": ran.digest,
    }
    outcome = Outcome(run=ran, summary=sealed(facts), coverage_ns=coverage(spent.values()))
    if out is not None:
        replace_file(out / SUMMARY, as_bytes(outcome.summary))
    return outcome


def record(outcome: Outcome, writer: Writer) -> Entry[Row]:
    """Append a simulation to the ledger that its prices came from.

    Raises:
        UsageError: a price came from a record that the ledger never accepted.
    """
    found = outcome.summary
    shown = {how: share for how, share in found["coverage"].items() if how in PRICE_SOURCES}
    simulation = Simulation(
        created_at=utc_now(),
        name=found["name"],
        device=found["prices"]["device"],
        node=found["prices"]["node"],
        model=found["model"]["name"],
        summary=writer.ledger.put(as_bytes(found), "application/json"),
        record_ids=outcome.record_ids,
        coverage=tuple(shown.items()),
        notes=(("basis", found["prices"]["basis"]),),
    )
    return writer.append(simulation)


def _setting(kind: str, value: str, text: str) -> Any:
    """A value of the kind that its annotation names."""
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False}[value]
        if kind.startswith("int"):
            return int(value)
        return float(value) if kind.startswith("float") else value
    except (KeyError, ValueError):
        raise UsageError(f"--engine {text}: expected a value of type {kind}") from None


def _require_served(ran: Run) -> None:
    if not ran.audit.requests:
        raise Inconclusive(
            f"the engine can serve none of the {len(ran.refusals)} requests; the first: "
            f"{ran.refusals[0].reason}"
        )
    if not ran.audit.passed:
        laws = "; ".join(f"{law.law}: {law.first}" for law in ran.audit.findings)
        raise BitgateError(f"the simulation broke a law of conservation and says nothing: {laws}")


def _how_priced(scenario: Scenario, sources: Sources) -> dict[str, Any]:
    return {
        "basis": scenario.basis,
        "device": sources.device,
        "device_name": sources.device_name,
        "node": sources.node,
        "regime": sources.regime,
        "allow_extrapolation": scenario.allow_extrapolation,
        "peaks": peaks_row(scenario.peaks),
    }


def _labels(scenario: Scenario, sources: Sources, ran: Run) -> list[str]:
    """What a reader must know before any number."""
    if sources.timings:
        kind = "CPU timings" if sources.device == "cpu" else f"timings of {sources.device}"
        where = f"{kind} of node {sources.node} ({sources.device_name})"
        labels = [f"{where}: they say nothing about another device"]
        if scenario.basis == "replaced":
            labels.append("prices of what the standing records replaced, timed beside them")
    else:
        labels = ["nothing here was measured"]
    if scenario.peaks is not None:
        labels.append(
            f"what no record prices is assumed from declared peaks: {scenario.peaks.name}"
        )
    if scenario.allow_extrapolation:
        labels.append("prices beyond the measured shapes are extrapolated")
    overhead = scenario.engine.step_overhead_ns
    labels.append(
        f"host time between steps: {overhead} ns a step, declared"
        if overhead
        else "host time between steps: declared to be zero; scheduling and sampling cost nothing"
    )
    if scenario.model.resolve() == TINY_MODEL.resolve():
        labels.append("the model is the built-in stand-in, not a checkpoint")
    if ran.refusals:
        labels.append(f"{len(ran.refusals)} requests were refused: {ran.refusals[0].reason}")
    return labels
