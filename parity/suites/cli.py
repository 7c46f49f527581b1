"""`bitgate parity run`: a whole comparison with the engine of this node's own environment."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, table
from bitgate.records.errors import UsageError

if TYPE_CHECKING:
    from bitgate.parity.suites.results import CaseResult, SuiteResult

_EXIT = {"passed": 0, "differs": 1, "inconclusive": 3}
_DEVICES = ("cuda", "xpu", "cpu")
# What a reader asks of a launch first; the rest is in the JSON.
_TILES = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
    "compute_type",
    "block_shape",
)


def run_command(
    suite: Annotated[str, typer.Option("--suite", help="vllm-moe, the only one so far.")],
    device: Annotated[str, typer.Option("--device", help="cuda, xpu or cpu.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", help="A new file for the whole result, as JSON.")
    ] = None,
    assume_version: Annotated[
        str | None,
        typer.Option("--assume-version", help="Call an unknown vLLM like this known version."),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Compare with the node's own engine: exit code 0 all equal, 1 differs, 3 not all compared."""
    from bitgate.parity.suites.catalogue import SUITES

    if suite not in SUITES or device not in _DEVICES:
        raise UsageError(
            f"expected --suite of {', '.join(SUITES)} and --device of {', '.join(_DEVICES)}, got "
            f"{suite} and {device}"
        )
    if out is not None and (out.exists() or not out.absolute().parent.is_dir()):
        raise UsageError(
            f"--out {out}: expected a new file in an existing directory; name another one"
        )
    result = SUITES[suite](device, assume_version)
    if out is not None:
        out.write_text(json.dumps(result.plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if as_json:
        print_json(result.plain)
    else:
        _print(result, out)
    raise typer.Exit(_EXIT[result.verdict])


def _print(result: "SuiteResult", out: Path | None) -> None:
    shown = table(
        f"{result.suite} on {result.device}: {result.engine}, {result.path}",
        "case",
        "found",
        "compared",
        "sizes",
        "first difference",
    )
    for case in result.cases:
        sizes = ", ".join(f"{name} {value}" for name, value in case.shapes.items())
        shown.add_row(case.name, case.status, str(case.compared), sizes, escape(_finding(case)))
    console().print(shown)
    for case in result.cases:
        for number, launch in enumerate(case.tiles, 1):
            told = ", ".join(f"{name} {launch[name]}" for name in _TILES if name in launch)
            console().print(f"{case.name}, product {number}: {escape(told)}")
    for name, fact in result.facts.items():
        console().print(f"{name}: {escape(fact)}")
    if result.substitutes:
        console().print(
            "substituted on both sides alike, so nothing is said about vLLM's own: "
            + escape("; ".join(result.substitutes))
        )
    claims = dict.fromkeys(case.claim for case in result.cases)
    console().print(f"claim: {escape('; '.join(claims) or 'none')}")
    if out is not None:
        console().print(f"written: {escape(str(out))}")
    console().print(f"verdict: {result.verdict}")


def _finding(case: "CaseResult") -> str:
    if case.first is not None:
        return f"{case.first.boundary}: {case.first.difference}"
    return case.reason or "none"
