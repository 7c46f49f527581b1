"""Ledger rows on a terminal. Text from the ledger is never read as markup."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.text import Text

from bitgate.records.console import console, table
from bitgate.records.ledger import Entry, Ledger, VerifyReport
from bitgate.records.proof import Bound, GateResult, Mismatch
from bitgate.records.rows import Record, Simulation
from bitgate.records.summaries import (
    Summary,
    audit_line,
    in_words,
    milliseconds,
    model_line,
    one_line,
    percent,
    prices_line,
    source_line,
    tokens_per_second,
    workload_line,
)
from bitgate.records.views import RecordView, SimulationView, attempts, first_line, timing

_PLAIN_WIDTH = 240


def print_records(out: Console, rows: list[RecordView]) -> None:
    """The records, one table for each lane, in the order of their times."""
    if not rows:
        out.print("no records")
    ordered = sorted(rows, key=lambda row: row.lane)
    for lane, group in groupby(ordered, key=lambda row: row.lane):
        names = ("id", "time", "candidate", "outcome", "decision", "effect", "median ns", "ratio")
        _print(out, lane, (*names, "reason"), (_cells(row) for row in group))


def print_simulations(out: Console, rows: list[SimulationView]) -> None:
    """The simulations in the order of their times; nothing where there is none."""
    if rows:
        names = ("id", "time", "simulation", "model", "timings of", "tok/s", "records", "coverage")
        _print(out, "simulations", names, (_simulation_cells(row) for row in rows))


def print_simulation(out: Console, entry: Entry[Simulation], summary: Summary) -> None:
    """Everything about one simulation."""
    title = f"simulation {entry.id}"
    _print(out, title, ("field", "value"), _simulation_facts(entry, summary))
    metrics = summary.metrics
    times = (("TTFT", metrics.ttft_ns), ("TPOT", metrics.tpot_ns), ("E2E", metrics.e2e_ns))
    columns = ("time", "requests", "mean", "p50", "p90", "p99")
    shown = (
        (name, str(one.count), *map(milliseconds, (one.mean, one.p50, one.p90, one.p99)))
        for name, one in times
    )
    _print(out, f"{tokens_per_second(summary)} output tok/s", columns, shown)
    prices = (
        (
            price.op,
            str(price.calls),
            milliseconds(price.ns),
            percent(price.share),
            in_words(price.how),
            " ".join(identity[:12] for identity in price.record_ids),
        )
        for price in summary.prices.ops
    )
    _print(
        out,
        "prices, by operator",
        ("operator", "calls", "time", "share", "how", "records"),
        prices,
    )


def print_chains(out: Console, report: VerifyReport) -> None:
    """One line for each chain of a verified ledger, and what is remarkable."""
    rows = (
        (
            chain.writer,
            str(chain.rows),
            chain.sha256[:16],
            f"broken: {chain.broken.kind}" if chain.broken else "holds" if chain.rows else "empty",
            "; ".join([*chain.notes, *([chain.broken.message] if chain.broken else [])]),
        )
        for chain in report.chains
    )
    _print(out, f"{report.rows} rows", ("writer", "rows", "head", "chain", "notes"), rows)


def print_record(out: Console, entry: Entry[Record], ledger: Ledger) -> None:
    """Everything about one record."""
    record = entry.body
    _print(out, f"record {entry.id}", ("field", "value"), _facts(entry, ledger))
    gates = (
        (
            result.gate,
            result.outcome,
            f"{result.compared}/{result.expected}",
            "; ".join(bound_text(bound) for bound in result.bounds),
            result.evidence.sha256[:16] if result.evidence else "",
            _why(result),
        )
        for result in record.verdict.results
    )
    _print(
        out,
        f"gates: {record.verdict.kind} ({record.verdict.coverage})",
        ("gate", "outcome", "compared", "bound", "evidence", "reason"),
        gates,
    )
    if record.measurement is not None:
        shown = timing(record.measurement)
        sides = (("baseline", shown.baseline_ns), ("candidate", shown.candidate_ns))
        title = (
            f"timing: {record.effect}, median ratio {shown.ratio} over {shown.rounds} rounds in "
            f"{shown.processes} processes, {shown.discarded} discarded, {shown.regime}"
        )
        columns = ("side", "p10 ns", "median ns", "p90 ns")
        _print(out, title, columns, ((name, *map(str, values)) for name, values in sides))


def bound_text(bound: Bound) -> str:
    """A bound in words."""
    return f"p <= {bound.upper} per {bound.unit} ({bound.trials} trials, {bound.confidence})"


def mismatch_text(found: Mismatch) -> str:
    """A mismatch in words: where, both bit patterns, how many, how far."""
    if found.kind != "bits":
        return f"{found.tensor}: {found.kind}: {found.detail}"
    ulp = "" if found.max_ulp is None else f", at most {found.max_ulp} ULP"
    return (
        f"{found.tensor}{list(found.first_index or ())}: expected {found.expected_bits}, got "
        f"{found.actual_bits}; {found.differing} of {found.total} elements differ{ulp}"
    )


def _cells(row: RecordView) -> tuple[str, ...]:
    times = "" if row.candidate_ns is None else f"{row.baseline_ns} -> {row.candidate_ns}"
    return (
        row.id[:12],
        row.created_at[:19],
        row.candidate,
        row.outcome,
        row.decision or "",
        row.effect or "",
        times,
        row.ratio or "",
        first_line(row.reason),
    )


def _simulation_cells(row: SimulationView) -> tuple[str, ...]:
    return (
        row.id[:12],
        row.created_at[:19],
        row.name,
        row.model,
        f"{row.device} on {row.node}",
        row.output_tokens_per_second or row.problem or "",
        str(row.records),
        row.coverage,
    )


def _simulation_facts(entry: Entry[Simulation], summary: Summary) -> list[tuple[str, str]]:
    return [
        ("name", entry.body.name),
        ("written", f"{entry.created_at} by {entry.writer}, row {entry.seq}"),
        ("timings", source_line(summary)),
        *(("label", label) for label in summary.labels),
        ("model", model_line(summary)),
        ("workload", workload_line(summary)),
        ("engine", one_line(summary.engine)),
        ("prices", prices_line(summary)),
        ("coverage", in_words(summary.coverage)),
        ("audit", audit_line(summary)),
        ("digest", summary.digest),
        *entry.body.notes,
    ]


def _why(result: GateResult) -> str:
    parts = [result.reason]
    if result.culprit is not None:
        parts.append(f"first culprit {result.culprit}")
    if result.mismatch is not None:
        parts.append(mismatch_text(result.mismatch))
    return "; ".join(parts)


def _facts(entry: Entry[Record], ledger: Ledger) -> list[tuple[str, str]]:
    record = entry.body
    candidate, environment, harness = record.candidate, record.environment, record.harness
    facts = [
        ("lane", record.lane),
        ("written", f"{entry.created_at} by {entry.writer}, row {entry.seq}"),
        ("candidate", f"{candidate.name} ({candidate.implementation}), {candidate.digest[:16]}"),
        ("contract", f"{candidate.contract}, tier {candidate.tier}"),
        ("sources", f"{len(candidate.sources)} files"),
        ("attempts", f"{attempts(ledger, record)} records of this candidate in this lane"),
        ("workload", record.workload.key),
        ("outcome", f"{record.outcome}: {record.reason}"),
        ("harness", f"{harness.version} {harness.commit or 'no commit'}{' dirty' * harness.dirty}"),
        ("node", f"{environment.node}, {environment.device_name} x {environment.device_count}"),
        ("versions", " ".join(f"{name} {version}" for name, version in environment.packages)),
        ("switches", " ".join(f"{name}={value}" for name, value in environment.switches)),
    ]
    optional = [
        ("baseline", record.baseline and f"{record.baseline.name}, {record.baseline.digest[:16]}"),
        ("bundle", record.bundle_sha256),
        ("supersedes", record.supersedes),
        ("reopen requires", "; ".join(record.reopen_requires)),
        *record.notes,
    ]
    facts += [(name, value) for name, value in optional if value]
    for made in ledger.decisions():
        if made.body.record_id == entry.id:
            reason = f"{made.body.kind} by {made.body.author}: {made.body.reason}"
            facts.append(("decision", reason))
            facts += [("waiver", f"{w.requirement}: {w.reason}") for w in made.body.waivers]
    return facts


def _print(
    out: Console, title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> None:
    out.print(Text(title, style="bold"), soft_wrap=True)
    made = table("", *columns)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    out.print(made)


def wide_console() -> Console:
    """A console for tables: where the output is a file or a pipe, cells are hardly ever folded."""
    out = console()
    if not out.is_terminal:
        out.width = _PLAIN_WIDTH
    return out
