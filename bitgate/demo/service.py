"""What the demo's promotions mean in service: a piece of a real trace, priced before and after."""

import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from bitgate.records.ledger import Ledger
from bitgate.records.timings import Basis
from bitgate.sim.peaks import load_peaks
from bitgate.sim.scenario import Scenario, default_engine, record, run

PEAKS = "peaks.toml"
REQUESTS = 128
# The lanes hold 1, 16 and 64 tokens: a step of more would have no measured price.
STEP_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The summaries of two simulations that differ only in the prices of the experts."""

    replaced: dict[str, Any]
    standing: dict[str, Any]


def simulate(out: Path, ledger: Ledger) -> Service:
    """Serve the trace twice, with what the promotions replaced and with what stands now.

    Both summaries become rows of the ledger; the files lie in `out`/simulation.
    """
    with as_file(files("bitgate.demo").joinpath(PEAKS)) as declared:
        shutil.copyfile(declared, out / PEAKS)
    return Service(
        replaced=_simulate(out, ledger, "replaced"), standing=_simulate(out, ledger, "standing")
    )


def again(out: Path) -> str:
    """The arguments of `bitgate sim run` that repeat the second simulation."""
    prices = f"--ledger {out / 'ledger'} --peaks {out / PEAKS} --requests {REQUESTS}"
    return f"{prices} --max-num-batched-tokens {STEP_TOKENS} --name {_name('standing')}"


def _simulate(out: Path, ledger: Ledger, basis: Basis) -> dict[str, Any]:
    outcome = run(
        Scenario(
            name=_name(basis),
            engine=default_engine(max_num_batched_tokens=STEP_TOKENS),
            requests=REQUESTS,
            ledger=ledger.root,
            basis=basis,
            peaks=load_peaks(out / PEAKS),
        ),
        out / "simulation" / basis,
    )
    record(outcome, ledger.writer())
    return outcome.summary


def _name(basis: Basis) -> str:
    return f"azure-slice-{basis}"
