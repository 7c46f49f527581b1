"""`bitgate records`: look into a ledger, verify it, and decide on its records."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bitgate.records import views
from bitgate.records.base import InvariantError
from bitgate.records.codec import json_schema
from bitgate.records.console import console, print_json
from bitgate.records.errors import Inconclusive, LedgerBroken, UsageError
from bitgate.records.lanes import standing
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.policy import Recheck, promote, reject
from bitgate.records.provenance import user
from bitgate.records.rows import Decision, Simulation, Waiver
from bitgate.records.summaries import read_summary
from bitgate.records.tables import (
    print_chains,
    print_record,
    print_records,
    print_simulation,
    print_simulations,
    wide_console,
)

LedgerDir = Annotated[Path, typer.Option("--ledger", help="The ledger's directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
RecordId = Annotated[str, typer.Argument(help="A record's id, or the beginning of it.")]
Author = Annotated[str | None, typer.Option(help="Who answers for it; default: who is logged in.")]
WriterId = Annotated[str | None, typer.Option("--writer", help="Default: this clone's own id.")]

DEFAULT_LEDGER = Path("ledger")


def build_app(recheck_provider: Callable[[], Recheck]) -> typer.Typer:
    """The command group; `recheck_provider` supplies what promotion judges evidence with."""
    app = typer.Typer(no_args_is_help=True, help="The ledger: list, verify, promote, reject.")
    app.command("list")(list_command)
    app.command("best")(best_command)
    app.command("show")(show_command)
    app.command("verify")(verify_command)
    app.command("promote")(_promote_command(recheck_provider))
    app.command("reject")(reject_command)
    app.command("report")(report_command)
    app.command("head")(head_command)
    app.command("schema")(schema_command)
    return app


def list_command(
    ledger: LedgerDir = DEFAULT_LEDGER,
    lane: Annotated[str | None, typer.Option(help="Only this lane.")] = None,
    as_json: AsJson = False,
) -> None:
    """All records, rejected ones too: has this been tried, and why did it fail?

    Simulations are listed as well, except with --lane.
    """
    rows = views.record_views(Ledger(ledger), lane)
    simulations = views.simulation_views(Ledger(ledger)) if lane is None else []
    if as_json:
        records = [asdict(row) for row in rows]
        print_json({"records": records, "simulations": [asdict(row) for row in simulations]})
    else:
        out = wide_console()
        print_records(out, rows)
        print_simulations(out, simulations)


def best_command(
    lane: Annotated[str, typer.Argument(help="The lane's id.")],
    ledger: LedgerDir = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """The record that stands in a lane now."""
    rows = Ledger(ledger)
    entry = views.best(rows, lane)
    if entry is None:
        known = sorted({made.body.lane for made in rows.decisions()})
        raise UsageError(
            f"no record stands in the lane {lane!r}; lanes with one: {', '.join(known) or 'none'}"
        )
    _show(rows, entry.id, as_json=as_json)


def show_command(
    record: RecordId, ledger: LedgerDir = DEFAULT_LEDGER, as_json: AsJson = False
) -> None:
    """Everything about one record: identity, gates with counts and bounds, timing, decisions.

    Of a simulation: its metrics, its coverage, and each price with the records it came from.
    """
    _show(Ledger(ledger), record, as_json=as_json)


def verify_command(
    ledger: LedgerDir = DEFAULT_LEDGER,
    strict: Annotated[bool, typer.Option("--strict", help="Also ask for canonical form.")] = False,
    against: Annotated[
        list[str] | None, typer.Option(help="A line of `records head` noted elsewhere.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify every chain and all evidence. Exit 0: holds, 3: empty, 5: broken."""
    report = Ledger(ledger).verify(strict=strict, noted=against or ())
    if as_json:
        print_json({"ok": report.ok, "rows": report.rows, **asdict(report)})
    else:
        print_chains(wide_console(), report)
    if report.breaks:
        first = report.breaks[0]
        where = f"{first.file}, line {first.line}" if first.line else first.file
        raise LedgerBroken(
            f"the ledger {ledger} is broken: {first.kind}: {first.message} ({where})"
        )
    if not report.ok:
        raise Inconclusive(f"the ledger {ledger} is empty: zero rows verify nothing")


def _promote_command(recheck_provider: Callable[[], Recheck]) -> Callable[..., None]:
    def promote_command(
        record: RecordId,
        ledger: LedgerDir = DEFAULT_LEDGER,
        first: Annotated[
            bool, typer.Option("--first", help="Open the lane; no claim of speed.")
        ] = False,
        waive: Annotated[
            list[str] | None,
            typer.Option(help="'REQUIREMENT; UNTIL (2027-01-31T00:00:00Z); REASON'."),
        ] = None,
        author: Author = None,
        writer: WriterId = None,
        as_json: AsJson = False,
    ) -> None:
        """Make a record's candidate its lane's baseline, if the policy finds all it asks for."""
        name = author or user()
        decision = promote(
            _writable(ledger).writer(writer),
            record,
            recheck=recheck_provider(),
            author=name,
            first=first,
            waivers=tuple(_waiver(text, name) for text in waive or ()),
        )
        _tell(decision, as_json=as_json)

    return promote_command


def reject_command(
    record: RecordId,
    reason: Annotated[str, typer.Option(help="Why; the next one who tries reads it.")],
    ledger: LedgerDir = DEFAULT_LEDGER,
    author: Author = None,
    writer: WriterId = None,
    as_json: AsJson = False,
) -> None:
    """Reject a record, with a reason that stays, and say which record holds its lane afterwards."""
    if not reason.strip():
        raise UsageError("--reason is empty; say why, the next one who tries reads it")
    rows = _writable(ledger)
    decision = reject(rows.writer(writer), record, author=author or user(), reason=reason)
    held = standing(rows, decision.lane)
    if as_json:
        print_json(asdict(decision) | {"standing": None if held is None else held.id})
        return
    _tell(decision, as_json=False)
    if held is None:
        _say("no record stands in the lane now; `bitgate records promote --first` opens it")
    else:
        _say(f"in the lane stands {held.body.candidate.name} ({held.id[:12]})")


def report_command(
    ledger: LedgerDir = DEFAULT_LEDGER,
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write the whole ledger as one HTML page that works offline."""
    from bitgate.records.report import render

    render(Ledger(ledger), out)
    if as_json:
        print_json({"report": str(out)})
    else:
        _say(f"wrote {out}")


def head_command(ledger: LedgerDir = DEFAULT_LEDGER, as_json: AsJson = False) -> None:
    """One line for each writer, to note elsewhere: only it shows a chain that was rebuilt."""
    heads = Ledger(ledger).heads()
    if as_json:
        print_json([asdict(head) for head in heads])
    else:
        for head in heads:
            _say(f"{head.writer} {head.count} {head.sha256}")


def schema_command() -> None:
    """The JSON Schema of a ledger line."""
    print_json(json_schema())


# --- helpers -------------------------------------------------------------------------------------


def _show(ledger: Ledger, record: str, *, as_json: bool) -> None:
    entry = ledger.look_up(record)
    if isinstance(entry.body, Simulation):
        _show_simulation(ledger, entry, as_json=as_json)
    elif as_json:
        print_json(views.as_json(entry, ledger))
    else:
        print_record(wide_console(), entry, ledger)


def _show_simulation(ledger: Ledger, entry: Entry[Simulation], *, as_json: bool) -> None:
    if as_json:
        print_json(views.simulation_as_json(entry, ledger))
    else:
        print_simulation(wide_console(), entry, read_summary(ledger, entry))


def _writable(root: Path) -> Ledger:
    """A ledger that exists: a decision never makes a new one by a mistyped path."""
    ledger = Ledger(root)
    ledger.writer_directories()
    return ledger


def _waiver(text: str, author: str) -> Waiver:
    parts = [part.strip() for part in text.split(";", 2)]
    if len(parts) != 3:
        raise UsageError(f"--waive: expected 'REQUIREMENT; UNTIL; REASON', got {text!r}")
    requirement, expires, reason = parts
    try:
        return Waiver(requirement=requirement, author=author, reason=reason, expires=expires)
    except InvariantError as error:
        raise UsageError(f"--waive {text!r}: {error}") from error


def _tell(decision: Decision, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(decision))
    else:
        text = f"{decision.kind}: {decision.record_id[:12]} in {decision.lane}: {decision.reason}"
        _say(text)


def _say(line: str) -> None:
    """One line, never folded: others may read it."""
    console().print(line, markup=False, soft_wrap=True)
