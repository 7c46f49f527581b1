"""`bitgate sim`: what the ledger's timings mean in service."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from bitgate.records.base import InvariantError, require_decimal
from bitgate.records.errors import BitgateError, UsageError

app = typer.Typer(no_args_is_help=True, help="From kernel timings to TTFT, TPOT and tok/s.")

_LEDGER = Path("ledger")


@app.callback()
def _group() -> None:
    """From kernel timings to TTFT, TPOT and tok/s."""


@app.command("run")
def run_command(
    ledger: Annotated[
        Path | None,
        typer.Option(help="Whose timings are the prices; default: ledger, where there is one."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A config.json or its directory; default: the built-in tiny Qwen3-MoE."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="An Azure trace (CSV); default: the beginning of one, built in."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many; default: 256 of the built-in trace, else all."),
    ] = None,
    prices: Annotated[
        str, typer.Option(help="standing: the lanes' records; replaced: what these replaced.")
    ] = "standing",
    device: Annotated[
        str | None, typer.Option(help="The kind of device, where the ledger has several.")
    ] = None,
    peaks: Annotated[
        Path | None,
        typer.Option(help="TOML of a device's declared peaks: they price what no record does."),
    ] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="KV blocks; default: 4096.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of a step; default: 2048.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Running requests at most; default: 128, or the budget.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of a request at most; default: the model's.")
    ] = None,
    step_overhead_ns: Annotated[
        int | None, typer.Option(help="The host's time of each step; default: declared to be 0.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other setting of the engine; vLLM's names."),
    ] = None,
    min_exact: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 1 where less of the time was measured."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; default: as --prices.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write summary.json, requests.csv and steps.csv there.")
    ] = None,
    *,
    allow_extrapolation: Annotated[
        bool, typer.Option("--allow-extrapolation", help="Price shapes beyond the measured ones.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Append the summary to the ledger.")
    ] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions", help="Only say what each metric means.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Serve a trace with one engine, its steps priced by the ledger's timings."""
    from bitgate.records.ledger import Ledger
    from bitgate.sim import scenario, show
    from bitgate.sim.peaks import load_peaks

    if definitions:
        show.definitions(as_json=as_json)
        return
    least = None if min_exact is None else _share(min_exact)
    if prices not in ("standing", "replaced"):
        raise UsageError(f"--prices: expected standing or replaced, got {prices!r}")
    book = ledger or (_LEDGER if _LEDGER.is_dir() else None)
    if record and book is None:
        raise UsageError("--record: there is no ledger to append to; name one with --ledger DIR")
    if book is not None and not Ledger(book).heads() and any(book.iterdir()):
        raise UsageError(f"{book}: expected a ledger, got a directory without any row of one")
    settings = {
        "num_gpu_blocks": num_gpu_blocks,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len,
        "step_overhead_ns": step_overhead_ns,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    others = scenario.engine_settings(engine or [])
    if twice := given.keys() & others.keys():
        raise UsageError(f"--engine {min(twice)}=...: it has an option of its own; give it once")
    path = model or scenario.TINY_MODEL
    outcome = scenario.run(
        scenario.Scenario(
            name=name or prices,
            engine=scenario.default_engine(path, **given, **others),
            model=path,
            trace=trace or scenario.AZURE_SLICE,
            requests=requests or (256 if trace is None else None),
            ledger=book,
            basis="standing" if prices == "standing" else "replaced",
            device=device,
            peaks=None if peaks is None else load_peaks(peaks),
            allow_extrapolation=allow_extrapolation,
        ),
        out,
    )
    entry = None
    if record and book is not None:
        entry = scenario.record(outcome, Ledger(book).writer())
    show.outcome(outcome.summary, entry, out, as_json=as_json)
    if least is not None and outcome.exact < least:
        raise BitgateError(
            f"--min-exact: expected at least {min_exact} of the time measured at its very shapes, "
            f"got {show.coverage_line(outcome.summary)}. Open lanes for the shapes above"
        )


def _share(text: str) -> Decimal:
    try:
        share = require_decimal(text, "--min-exact")
    except InvariantError as error:
        raise UsageError(str(error)) from None
    if not 0 <= share <= 1:
        raise UsageError(f"--min-exact: expected a share from 0 to 1, got {text}")
    return share
