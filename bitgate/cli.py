"""The command line: mounts the folders' groups. Every error reaches the user through `main`."""

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from bitgate import __version__
from bitgate.bench.cli import app as bench_app
from bitgate.bench.cli import new_candidate_command, run_command
from bitgate.bench.import_cli import app as import_app
from bitgate.kernels.cli import app as kernels_app
from bitgate.parity.cli import app as parity_app
from bitgate.parity.cli import capture_command
from bitgate.parity.gates_cli import app as gate_app
from bitgate.records.cli import build_app
from bitgate.records.console import console
from bitgate.records.errors import BitgateError
from bitgate.records.policy import Recheck
from bitgate.sim.cli import app as sim_app

NEEDS = {
    "torch": "pip install -c constraints.txt -e '.[cpu]' (or use the node's own build)",
    "triton": "pip install -c constraints.txt -e '.[cpu]' (or use the node's own build)",
    "numba": "pip install -c constraints.txt -e '.[cpu]'",
    "transformers": "pip install -c constraints.txt -e '.[transformers]'",
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Promote a kernel only on proof: bitwise parity, determinism, measured gain.",
)
new = typer.Typer(no_args_is_help=True, help="Write a commented file to start from.")


def _recheck() -> Recheck:
    """What promotion uses to judge stored evidence again; known to bench and parity only."""
    from bitgate.bench.recheck import recheck

    return recheck()


def _version(*, show: bool) -> None:
    if show:
        typer.echo(f"bitgate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(show=value), is_eager=True)
    ] = False,
) -> None:
    """Promote a kernel only on proof: bitwise parity, determinism, measured gain."""


@app.command()
def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False
) -> None:
    """What this node can do: devices, versions, mapped libraries, end-of-life packages."""
    from bitgate.doctor import run

    raise typer.Exit(run(as_json=as_json))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("demo-out"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """The whole flow on this machine's CPU; writes OUT/ledger and OUT/report.html."""
    from bitgate.demo.story import run

    raise typer.Exit(run(out, as_json=as_json))


app.command("run")(run_command)
app.command("capture")(capture_command)
new.command("candidate")(new_candidate_command)
app.add_typer(new, name="new")
app.add_typer(kernels_app, name="kernels")
app.add_typer(parity_app, name="parity")
app.add_typer(gate_app, name="gate")
app.add_typer(bench_app, name="bench")
records_app = build_app(_recheck)
records_app.add_typer(import_app, name="import")
app.add_typer(records_app, name="records")
app.add_typer(sim_app, name="sim")


def main() -> None:
    """Run the command line; turn what a user can mend into one message and its exit code."""
    try:
        app()
    except BitgateError as error:
        _tell(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDS:
            raise
        _tell(f"this command needs {missing}, which is not installed.\nDo: {NEEDS[missing]}", 4)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        _tell(f"no room left on the disk while writing {error.filename}; free some, try again", 4)


def _tell(message: str, code: int) -> None:
    console(stderr=True).print(f"bitgate: {message}", markup=False)
    sys.exit(code)
