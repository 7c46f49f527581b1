"""Ledger rows as plain data for people and programs: what lists, pages and JSON output show."""

import json
from dataclasses import dataclass
from typing import Any

from bitgate.records.codec import canonical
from bitgate.records.errors import LedgerBroken
from bitgate.records.lanes import latest_decisions, standing
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.rows import Decision, Measurement, Record, Simulation
from bitgate.records.stats import median_ns, quantile_ns, ratio_median
from bitgate.records.summaries import in_words, read_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One line of a list. Times are medians in nanoseconds per call; `ratio` above 1 is faster."""

    id: str
    created_at: str
    lane: str
    candidate: str
    baseline: str | None
    contract: str
    outcome: str
    verdict: str
    decision: str | None
    effect: str | None
    baseline_ns: int | None
    candidate_ns: int | None
    ratio: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """One line of a list; `output_tokens_per_second` is None where `problem` says why."""

    id: str
    created_at: str
    name: str
    model: str
    device: str
    node: str
    records: int
    coverage: str
    output_tokens_per_second: str | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingView:
    """What a measurement says, derived from its raw samples; nanoseconds per call."""

    rounds: int
    processes: int
    discarded: int
    regime: str
    timer: str
    baseline_ns: tuple[int, int, int]
    candidate_ns: tuple[int, int, int]
    ratio: str


def record_views(ledger: Ledger, lane: str | None = None) -> list[RecordView]:
    """All records in the order of their times, or those of one lane."""
    decisions = latest_decisions(ledger)
    return [
        view(entry, decisions.get(entry.id))
        for entry in ledger.records()
        if lane is None or entry.body.lane == lane
    ]


def view(entry: Entry[Record], decision: Decision | None) -> RecordView:
    """One record as a line. The reason, whole, is that of the decision where there is one."""
    record, measured = entry.body, entry.body.measurement
    baseline_ns = None if measured is None else median_ns(measured.baseline_ns)
    candidate_ns = None if measured is None else median_ns(measured.candidate_ns)
    ratio = None if measured is None else ratio_median(measured.baseline_ns, measured.candidate_ns)
    return RecordView(
        id=entry.id,
        created_at=entry.created_at,
        lane=record.lane,
        candidate=record.candidate.name,
        baseline=None if record.baseline is None else record.baseline.name,
        contract=record.candidate.contract,
        outcome=record.outcome,
        verdict=record.verdict.kind,
        decision=None if decision is None else decision.kind,
        effect=record.effect,
        baseline_ns=baseline_ns,
        candidate_ns=candidate_ns,
        ratio=ratio,
        reason=record.reason if decision is None else decision.reason,
    )


def simulation_views(ledger: Ledger) -> list[SimulationView]:
    """All simulations in the order of their times."""
    return [_simulation_view(ledger, entry) for entry in ledger.simulations()]


def _simulation_view(ledger: Ledger, entry: Entry[Simulation]) -> SimulationView:
    rate = problem = None
    try:
        rate = read_summary(ledger, entry).metrics.output_tokens_per_second
    except LedgerBroken as error:
        problem = str(error)
    body = entry.body
    return SimulationView(
        id=entry.id,
        created_at=entry.created_at,
        name=body.name,
        model=body.model,
        device=body.device,
        node=body.node,
        records=len(body.record_ids),
        coverage=in_words(dict(body.coverage)),
        output_tokens_per_second=rate,
        problem=problem,
    )


def first_line(text: str) -> str:
    """The first line of a text that says anything, with dots where more follows."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] + (" ..." if len(lines) > 1 else "") if lines else ""


def timing(measurement: Measurement) -> TimingView:
    """Median and tenth and ninetieth percentile of both sides: (p10, median, p90)."""
    base, cand = measurement.baseline_ns, measurement.candidate_ns
    return TimingView(
        rounds=len(base),
        processes=len(set(measurement.process)),
        discarded=len(measurement.discards),
        regime=measurement.plan.regime,
        timer=measurement.timer,
        baseline_ns=(quantile_ns(base, "0.1"), median_ns(base), quantile_ns(base, "0.9")),
        candidate_ns=(quantile_ns(cand, "0.1"), median_ns(cand), quantile_ns(cand, "0.9")),
        ratio=ratio_median(base, cand),
    )


def best(ledger: Ledger, lane: str) -> Entry[Record] | None:
    """The record that stands in the lane now: the last promoted, not the fastest ever seen."""
    return standing(ledger, lane)


def attempts(ledger: Ledger, record: Record) -> int:
    """How many records of this lane have the same candidate; the best of many tries is luck."""
    return sum(
        1
        for entry in ledger.records()
        if entry.body.lane == record.lane and entry.body.candidate.digest == record.candidate.digest
    )


def simulation_as_json(entry: Entry[Simulation], ledger: Ledger) -> dict[str, Any]:
    """A simulation with its identity and the whole summary that it stored, as plain JSON."""
    read_summary(ledger, entry)
    summary = json.loads(ledger.get(entry.body.summary.sha256))
    return _as_json(entry) | {"summary": summary}


def as_json(entry: Entry[Record], ledger: Ledger) -> dict[str, Any]:
    """A record with its identity and the decisions on it, as plain JSON."""
    return _as_json(entry) | {
        "decisions": [
            json.loads(canonical(made.body))
            for made in ledger.decisions()
            if made.body.record_id == entry.id
        ],
    }


def _as_json(entry: Entry[Record] | Entry[Simulation]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "seq": entry.seq,
        "writer": entry.writer,
        "line_sha256": entry.sha256,
        entry.kind: json.loads(canonical(entry.body)),
    }
