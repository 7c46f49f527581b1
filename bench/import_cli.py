"""`bitgate records import`: what was measured elsewhere, as rows of this ledger."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from bitgate.records.console import console, print_json
from bitgate.records.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="Append what was measured elsewhere.")


@app.callback()
def _group() -> None:
    """Append what was measured elsewhere."""


@app.command("device-check")
def device_check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="--out of the device check.")],
    ledger: Annotated[Path, typer.Option("--ledger", help="The ledger's directory.")] = Path(
        "ledger"
    ),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Append one record for each implementation and workload of a device check."""
    from bitgate.bench.device_import import import_device_check, read

    entries = import_device_check(folder, Ledger(ledger))
    outcomes = Counter(entry.body.outcome for entry in entries)
    if as_json:
        print_json({"records": [entry.id for entry in entries], "outcomes": outcomes})
        return
    counts = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    console().print(f"{len(entries)} records appended to {ledger}: {counts}")
    stopped = read(folder).unfinished
    if stopped:
        console().print(f"stopped before their end, by their time: {', '.join(stopped)}")
    console().print(f"look at them: bitgate records list --ledger {ledger}")
