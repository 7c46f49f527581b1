"""`bitgate parity order`: which order of additions and roundings has the observed bits?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json
from bitgate.records.errors import UsageError

if TYPE_CHECKING:
    from bitgate.parity.order.identify import Finding


def order_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Bundles, or safetensors files of one call each."),
    ],
    op: Annotated[str | None, typer.Option("--op", help="Only this operator.")] = None,
    boundary: Annotated[
        str, typer.Option("--boundary", help="Only boundaries whose name holds this.")
    ] = "",
    calls: Annotated[int, typer.Option("--calls", help="At most so many calls; 0: all.")] = 16,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Only the first tokens of every call.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Replay known orders of arithmetic until one has the bits that were observed.

    Exit code 0: one order or several reproduce them; 1: none does; 3: there is nothing to compare.
    """
    from bitgate.parity.order import show
    from bitgate.parity.order.calls import read_calls
    from bitgate.parity.order.catalogue import orders_of
    from bitgate.parity.order.identify import identify

    if calls < 0 or (tokens is not None and tokens < 1):
        raise UsageError("expected --calls of 0 or more and --tokens of 1 or more")
    findings: list[Finding] = []
    for name, found in read_calls(paths, op, boundary).items():
        part = found[: calls or None]
        if len(part) < len(found) and not as_json:
            console().print(f"{name}: {len(part)} of {len(found)} calls; --calls 0 takes all")
        findings += identify(orders_of(name), part, tokens=tokens)
    if as_json:
        print_json([show.facts(finding) for finding in findings])
    else:
        for finding in findings:
            for line in show.lines(finding):
                console().print(escape(line))
            if finding.reproducing:
                console().print(show.decisions(finding))
    verdicts = {finding.verdict for finding in findings}
    raise typer.Exit(1 if "none" in verdicts else 3 if "nothing" in verdicts else 0)
