"""What the page shows, gathered from the ledger, and the one file it becomes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from bitgate.records.errors import BitgateError, EnvironmentUnfit
from bitgate.records.lanes import declarations, latest_decisions, standing
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.proof import GateResult
from bitgate.records.report import charts
from bitgate.records.report.maps import ParityMap, class_counts, letters, parity_map, read_cases
from bitgate.records.report.simulated import (
    BAR_HEIGHT,
    WORDS,
    comparisons,
    metric_rows,
    simulation_pages,
)
from bitgate.records.rows import Environment, Lane, Record
from bitgate.records.tables import bound_text, mismatch_text
from bitgate.records.views import RecordView, TimingView, first_line, timing, view


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    """What one piece of evidence holds: cases by class, and a map where it has steps."""

    sha256: str
    counts: tuple[tuple[str, int], ...]
    map: ParityMap | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """One record with all that is shown of it."""

    row: RecordView
    record: Record
    gates: Mapping[str, GateResult]
    evidence: Mapping[str, EvidenceView]
    timing: TimingView | None
    strip: charts.Strip | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePage:
    """One lane: what was declared, what stands, and every record in it."""

    id: str
    declared: Lane | None
    standing: RecordView | None
    history: charts.History
    records: tuple[RecordPage, ...]


def render(ledger: Ledger, out: Path) -> None:
    """Write the report of the ledger to the file `out`.

    Raises:
        UsageError: there is no such ledger.
        LedgerBroken: a row cannot be read.
        EnvironmentUnfit: the file cannot be written.
    """
    lanes = _lanes(ledger)
    records = [page for lane in lanes for page in lane.records]
    templates = Templates(
        loader=PackageLoader("bitgate.records.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    simulations = simulation_pages(ledger)
    html = templates.get_template("page.html").render(
        verification=ledger.verify(),
        lanes=lanes,
        simulations=simulations,
        comparisons=comparisons(simulations),
        known={page.row.id for page in records},
        bar_height=BAR_HEIGHT,
        metric_rows=metric_rows,
        gates=_gate_names(records),
        environments=_environments(records),
        letters=letters(),
        charts=charts,
        bound_text=bound_text,
        mismatch_text=mismatch_text,
        nanoseconds=charts.nanoseconds,
        first_line=first_line,
        **WORDS,
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"cannot write the report {out}: {error.strerror}") from error


def _lanes(ledger: Ledger) -> list[LanePage]:
    decisions = latest_decisions(ledger)
    entries = sorted(ledger.records(), key=lambda entry: entry.body.lane)
    pages = []
    for lane, group in groupby(entries, key=lambda entry: entry.body.lane):
        records = tuple(
            _record(ledger, entry, view(entry, decisions.get(entry.id))) for entry in group
        )
        rows = [page.row for page in records]
        declared = declarations(ledger, lane)
        held = standing(ledger, lane)
        pages.append(
            LanePage(
                id=lane,
                declared=declared[0].body if declared else None,
                standing=next((row for row in rows if held and row.id == held.id), None),
                history=charts.history(rows),
                records=records,
            )
        )
    return pages


def _record(ledger: Ledger, entry: Entry[Record], row: RecordView) -> RecordPage:
    record = entry.body
    measured = record.measurement
    return RecordPage(
        row=row,
        record=record,
        gates={result.gate: result for result in record.verdict.results},
        evidence={
            result.gate: _evidence(ledger, result.evidence.sha256)
            for result in record.verdict.results
            if result.evidence is not None
        },
        timing=None if measured is None else timing(measured),
        strip=None if measured is None else charts.strip(measured),
    )


def _evidence(ledger: Ledger, sha256: str) -> EvidenceView:
    try:
        cases = read_cases(ledger.get(sha256))
    except (BitgateError, ValueError) as error:
        return EvidenceView(sha256=sha256, counts=(), map=None, problem=str(error))
    return EvidenceView(
        sha256=sha256, counts=class_counts(cases), map=parity_map(cases), problem=None
    )


def _gate_names(records: list[RecordPage]) -> list[str]:
    """The gates that any record answers, in the order of their numbers."""
    names = {gate for page in records for gate in page.gates}
    return sorted(names, key=lambda name: (len(name), name))


def _environments(records: list[RecordPage]) -> list[tuple[Environment, list[RecordView]]]:
    """Each distinct environment with the records that were made in it."""
    found: dict[Environment, list[RecordView]] = {}
    for page in records:
        found.setdefault(page.record.environment, []).append(page.row)
    return list(found.items())
