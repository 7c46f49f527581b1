"""`bitgate parity faults`: the catalogue of planted defects, judged in processes of its own."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, progress, table
from bitgate.records.errors import EnvironmentUnfit, UsageError

# Areas that run side by side, of about equal work; those that are not here join the first.
_BESIDE = ("address", "experts", "routing")
_CHILD_SECONDS = 900


def faults_command(
    area: Annotated[
        list[str] | None, typer.Option("--area", help="Only this area; may be repeated.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the page of the documentation there.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Plant every catalogued defect and see that exactly the listed checks catch it.

    Exit code 0: each fault is caught as stated, and every check passes what is correct. Otherwise
    1, and no page is written.
    """
    if area and write is not None:
        raise UsageError("--write needs the whole catalogue: leave out --area")
    with progress(quiet=as_json) as display:
        display.add_task("planting faults", total=None)
        document = _judged(tuple(area or ()))
    if write is not None and document["passed"]:
        from bitgate.parity.faults.document import page

        write.write_text(page(document), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        _show(document)
    raise typer.Exit(0 if document["passed"] else 1)


def _judged(asked: tuple[str, ...]) -> dict[str, Any]:
    """The documents of two processes, as one, in the order of the catalogue."""
    from bitgate.parity.faults.catalogue import AREAS
    from bitgate.parity.faults.document import merged

    if unknown := set(asked) - AREAS.keys():
        raise UsageError(f"unknown areas {sorted(unknown)}; known: {', '.join(AREAS)}")
    chosen = asked or tuple(AREAS)
    shares = [[name for name in AREAS if name in chosen and (name in _BESIDE) == beside]
              for beside in (False, True)]  # fmt: skip
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(_child, [share for share in shares if share]))
    document = merged(parts)
    order = list(AREAS)
    document["faults"].sort(key=lambda fault: order.index(fault["area"]))
    return document


def _child(areas: list[str]) -> dict[str, Any]:
    from bitgate.records.provenance import process_environment

    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bitgate.parity.faults", *areas],
            env=process_environment({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfit(f"{', '.join(areas)} took over {_CHILD_SECONDS} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise EnvironmentUnfit(f"the process of {', '.join(areas)} failed: {last[0]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _show(document: dict[str, Any]) -> None:
    out = console()
    shown = table("planted faults", "bug", "what", "in", "caught by", "missed by")
    for fault in document["faults"]:
        mark = "" if not fault["problems"] else "! "
        shown.add_row(
            mark + fault["id"],
            escape(fault["title"]),
            fault["target"],
            ", ".join(fault["caught"]),
            ", ".join(fault["missed"]) or "-",
        )
    out.print(shown)
    for gap in document["open"]:
        out.print(f"open: {gap['id']} {escape(gap['title'])}: {escape(gap['reason'])}")
    for problem in document["problems"]:
        out.print(f"problem: {escape(problem)}")
    caught = sum(bool(fault["caught"]) for fault in document["faults"])
    out.print(
        f"{'passed' if document['passed'] else 'failed'}: {caught} of {len(document['faults'])} "
        f"faults caught, {len(document['problems'])} problems, {len(document['controls'])} "
        f"controls, {len(document['open'])} open"
    )
