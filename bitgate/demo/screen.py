"""What the demo prints at its end."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bitgate.demo.endings import Ended
from bitgate.records.console import console, table


def show(out: Path, digests: dict[str, str], ends: list[Ended]) -> None:
    """Print the table of candidates, the reasons, and where everything lies."""
    screen = console()
    shown = table("what became of each", "candidate", "finding", "workload", "effect", "ending")
    for one in ends:
        for place, (workload, effect, ending) in enumerate(one.endings):
            first = (one.candidate, one.finding) if place == 0 else ("", "")
            shown.add_row(*first, escape(_short(workload)), effect, ending)
    screen.print(shown)
    for one in ends:
        _explain(screen, one)
    screen.print()
    for model, digest in digests.items():
        screen.print(f"captured   {escape(str(out / model))} (digests {digest[:12]})")
    for name in ("candidates", "ledger", "report.html"):
        screen.print(f"{name.partition('.')[0]:10} {escape(str(out / name))}")
    sorted_file = escape(str(out / "candidates/experts_sorted.toml"))
    screen.print(f"\nnext       bitgate records list --ledger {escape(str(out / 'ledger'))}")
    screen.print(f"           bitgate run {sorted_file} --plan")


def _explain(screen: Console, one: Ended) -> None:
    """Why a candidate ended as it did, where the table does not say it."""
    for workload, reason in one.unsettled:
        screen.print(f"{one.candidate}, {escape(_short(workload))}: {escape(reason)}")
    if one.finding != "exact" or not one.as_expected:
        screen.print(f"{one.candidate}: {escape(one.reason)}")
    if not one.as_expected:
        screen.print(f"{one.candidate} did not end as it should on a quiet machine; see above")


def _short(workload: str) -> str:
    """The operator and its number of tokens; the shape is the same throughout the demo."""
    op, _, rest = workload.partition("[")
    tokens = next(axis for axis in rest.partition("]")[0].split(",") if axis.startswith("tokens="))
    return f"{op} {tokens}"
