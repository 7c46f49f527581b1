"""`bitgate gate`: the gates alone. What they find is shown and kept as files, but not recorded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, table, telling
from bitgate.records.errors import Inconclusive

if TYPE_CHECKING:
    from bitgate.records.types import Mismatch, Verdict

app = typer.Typer(no_args_is_help=True, help="The gates: list them, size a run, judge a candidate.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


@app.command("list")
def list_command(*, as_json: _Json = False) -> None:
    """Every gate in its order, and why some do not run."""
    from bitgate.parity.gates import GATES, ORDER, PLANNED

    runs = {gate.id: (gate.title, "runs") for gate in GATES}
    named = runs | {gate.id: (gate.title, f"not run: {gate.reason}") for gate in PLANNED}
    rows = [(gate, *named[gate]) for gate in ORDER]
    if as_json:
        facts = [{"gate": gate, "title": title, "state": state} for gate, title, state in rows]
        print_json(facts)
        return
    shown = table("gates, in order", "gate", "asks", "in this version")
    for gate, title, state in rows:
        shown.add_row(gate, escape(title), escape(state))
    console().print(shown)


@app.command()
def size(
    max_p: Annotated[str, typer.Option("--max-p", help="Failure probability per execution.")],
    confidence: Annotated[str, typer.Option("--confidence", help="Such as 0.95.")] = "0.95",
    *,
    as_json: _Json = False,
) -> None:
    """How much must run, without one failure, to prove a bound; and what a whole run then risks."""
    from bitgate.parity.bounds import bound, needed, percent, scaled

    executions = needed(max_p, confidence)
    bounds = scaled(bound(0, executions, "boundary execution", confidence))
    if as_json:
        facts: dict[str, Any] = {
            "max_p": max_p,
            "confidence": confidence,
            "executions": executions,
            "processes": executions,
            "bounds": [{"unit": one.unit, "upper": one.upper} for one in bounds],
        }
        print_json(facts)
        return
    out = console()
    out.print(f"p <= {max_p} at {confidence} needs {executions} clean executions")
    out.print(f"and, for faults drawn once per process, {executions} clean fresh processes")
    for one in bounds:
        out.print(f"then at most {percent(one)} per {one.unit}")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A candidate file; `bitgate new candidate`.")],
    evidence: Annotated[
        Path, typer.Option("--evidence", help="Directory that keeps the evidence.")
    ] = Path("gate-evidence"),
    *,
    as_json: _Json = False,
) -> None:
    """Judge a candidate by every gate, stopping at the first failure; nothing is recorded.

    Exit code 0: exact; 1: a gate failed; 3: inconclusive or blocked.
    """
    from bitgate.parity import gates
    from bitgate.parity.gates.resolve import resolve
    from bitgate.records.candidate_file import load_candidate_file
    from bitgate.records.objects import ObjectStore

    task = resolve(load_candidate_file(file))
    with telling(quiet=as_json) as tell:
        verdict = gates.run(
            task.subject,
            workloads=task.workloads,
            bundle=task.bundle,
            budget=task.budget,
            put=ObjectStore(evidence).put,
            progress=tell,
        )
    if as_json:
        from bitgate.records.codec import canonical

        print_json(json.loads(canonical(verdict)))
    else:
        _show(verdict, file, evidence)
    raise typer.Exit(_exit_code(verdict))


def _exit_code(verdict: "Verdict") -> int:
    if verdict.passed:
        return 0
    failure = verdict.first_failure
    failed = failure is not None and failure.outcome == "fail"
    return 1 if failed else Inconclusive.exit_code


def _show(verdict: "Verdict", file: Path, evidence: Path) -> None:
    out = console()
    shown = table(f"verdict: {verdict.kind}", "gate", "outcome", "compared", "reason")
    for result in verdict.results:
        compared = f"{result.compared} of {result.expected}"
        # Long reasons go on with a traceback; the whole first failure follows below.
        reason = result.reason.splitlines()[0]
        shown.add_row(result.gate, result.outcome, compared, escape(reason))
    out.print(shown)
    failure = verdict.first_failure
    if failure is not None:
        out.print(f"first failure: {failure.gate}: {escape(failure.reason)}")
        if failure.mismatch is not None:
            out.print(f"first mismatch: {escape(_mismatch(failure.mismatch))}")
    out.print(f"coverage: {escape(verdict.coverage)}")
    for result in verdict.results:
        if result.evidence is not None:
            sha256 = result.evidence.sha256
            path = evidence / sha256[:2] / sha256
            out.print(f"evidence of {result.gate}: {escape(str(path))}")
    out.print(f"again: bitgate gate run {escape(str(file))}")


def _mismatch(mismatch: "Mismatch") -> str:
    from bitgate.parity.gates.sweep import describe

    hints = f" ({'; '.join(mismatch.hints)})" if mismatch.hints else ""
    return describe(mismatch) + hints
