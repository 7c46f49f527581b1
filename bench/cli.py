"""`bitgate run`, `bitgate new candidate`, and `bitgate bench`."""

import getpass
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from bitgate.bench import show
from bitgate.bench.tune_cli import tune_command
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.candidate_text import template
from bitgate.records.console import console, print_json, table, telling
from bitgate.records.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Timing: coin-flipped pairs, verified outputs.")
app.command("tune")(tune_command)

_File = Annotated[Path, typer.Argument(metavar="CANDIDATE.toml", help="A candidate file.")]
_Ledger = Annotated[Path, typer.Option("--ledger", help="The ledger's directory.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
_LEDGER = Path("ledger")
_INTERRUPTED = 130


def run_command(
    file: _File,
    ledger: _Ledger = _LEDGER,
    author: Annotated[
        str | None, typer.Option("--author", help="Who answers for it; default: the user's name.")
    ] = None,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would happen.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Use passed gates of an interrupted run again.")
    ] = False,
    open_lane: Annotated[
        bool, typer.Option("--open-lane", help="Make it the first baseline of its lanes.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Take a candidate through its gates and its timing to a record and a decision.

    With --plan the exit code is 2 where something is missing.
    """
    from bitgate.bench.plan import plan_run
    from bitgate.bench.stages import run_candidate
    from bitgate.records.ledger import Ledger

    candidate, book = load_candidate_file(file), Ledger(ledger)
    if plan:
        planned = plan_run(candidate, book, open_lane=open_lane)
        show.plan(planned, as_json=as_json)
        raise typer.Exit(UsageError.exit_code if planned.missing else 0)
    again = f"bitgate run {file} --ledger {ledger}" + (" --open-lane" if open_lane else "")
    try:
        with telling(quiet=as_json) as tell:
            report = run_candidate(
                candidate,
                book,
                author=author or _user(),
                progress=tell,
                resume=resume,
                open_lane=open_lane,
            )
    except KeyboardInterrupt:
        console(stderr=True).print(
            f"interrupted; no record was made and passed gates are kept: {again} --resume",
            markup=False,
        )
        raise typer.Exit(_INTERRUPTED) from None
    show.run(report, again, ledger, as_json=as_json)
    raise typer.Exit(report.exit_code)


def new_candidate_command(
    out: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("candidate.toml"),
    op: Annotated[str, typer.Option("--op", help="The operator.")] = "moe_experts",
    *,
    as_json: _Json = False,
) -> None:
    """Write a commented candidate file."""
    from bitgate.kernels import catalogue

    kernel = catalogue.kernel(op)
    example = kernel.suites["default"][0]
    contract, reference = next(iter(kernel.references.items()))
    text = template(
        op,
        contract=contract,
        tier=catalogue.implementation(reference).tier,
        dtype=example.dtype,
        axes=example.axes,
    )
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{out} exists; name another file with --out, or remove it") from None
    if as_json:
        print_json({"file": str(out), "op": op})
    else:
        console().print(
            f"wrote {escape(str(out))}\nnext: set impl, then bitgate run {escape(str(out))} --plan"
        )


@app.command("run")
def bench_run_command(file: _File, ledger: _Ledger = _LEDGER, *, as_json: _Json = False) -> None:
    """Time a candidate against its baseline, outputs verified, gates not run: not a record."""
    from bitgate.bench.effect import effect
    from bitgate.bench.rounds import time_only
    from bitgate.records.ledger import Ledger

    with telling(quiet=as_json) as tell:
        timed = time_only(load_candidate_file(file), Ledger(ledger), progress=tell)
    found = [(workload.key, effect(result.measurement), result.notes) for workload, result in timed]
    if as_json:
        rows = [
            {
                "workload": key,
                "effect": report.effect,
                "summary": report.summary,
                "notes": dict(notes),
            }
            for key, report, notes in found
        ]
        print_json({"record": None, "rows": rows})
        return
    shown = table("timing without gates: not a record", "workload", "effect")
    for key, report, _ in found:
        shown.add_row(escape(key), report.summary)
    console().print(shown)
    console().print("nothing was written; `bitgate run` runs the gates and makes records")


@app.command("compare")
def compare_command(
    first: Annotated[str, typer.Argument(metavar="REC_A", help="A record's id, or its start.")],
    second: Annotated[str, typer.Argument(metavar="REC_B", help="Another one.")],
    ledger: _Ledger = _LEDGER,
    *,
    as_json: _Json = False,
) -> None:
    """Put the times of two records side by side, if nothing else differs."""
    from bitgate.bench.comparable import side_by_side
    from bitgate.records.ledger import Ledger

    book = Ledger(ledger)
    old, new = book.find(first).body, book.find(second).body
    found = side_by_side(old, new)
    if as_json:
        print_json({**asdict(found), "paired": False})
        return
    shown = table(f"median per call, {old.workload.key}", "record", "candidate", "ns")
    shown.add_row(first, escape(old.candidate.name), str(found.first_ns))
    shown.add_row(second, escape(new.candidate.name), str(found.second_ns))
    console().print(shown)
    console().print(
        f"ratio {found.ratio}; the two were not timed in pairs, so this is no effect. "
        "`bitgate run` with one as the baseline of the other measures one"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # Containers may run under a number without a name.
        return "unnamed"
