"""What the demo prints at its end."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bitgate.demo.endings import Ended
from bitgate.demo.service import REQUESTS, Service, again
from bitgate.records.console import console, table
from bitgate.sim.show import coverage_line

_METRICS = (
    ("TTFT, mean", "ttft_ns", "mean"),
    ("TTFT, p99", "ttft_ns", "p99"),
    ("TPOT, mean", "tpot_ns", "mean"),
    ("E2E, mean", "e2e_ns", "mean"),
)


def show(out: Path, digests: dict[str, str], ends: list[Ended], service: Service) -> None:
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
    _show_service(screen, service)
    screen.print()
    for model, digest in digests.items():
        screen.print(f"captured   {escape(str(out / model))} (digests {digest[:12]})")
    for name in ("candidates", "ledger", "simulation", "report.html"):
        screen.print(f"{name.partition('.')[0]:10} {escape(str(out / name))}")
    sorted_file = escape(str(out / "candidates/experts_sorted.toml"))
    screen.print(f"\nnext       bitgate records list --ledger {escape(str(out / 'ledger'))}")
    screen.print(f"           bitgate run {sorted_file} --plan")
    screen.print(f"           bitgate sim run {escape(again(out))}", soft_wrap=True)


def _explain(screen: Console, one: Ended) -> None:
    """Why a candidate ended as it did, where the table does not say it."""
    for workload, reason in one.unsettled:
        screen.print(f"{one.candidate}, {escape(_short(workload))}: {escape(reason)}")
    if one.finding != "exact" or not one.as_expected:
        screen.print(f"{one.candidate}: {escape(one.reason)}")
    if not one.as_expected:
        screen.print(f"{one.candidate} did not end as it should on a quiet machine; see above")


def _show_service(screen: Console, service: Service) -> None:
    """Both simulations side by side, and what must be known before any number."""
    both = (service.replaced["metrics"], service.standing["metrics"])
    shown = table(f"{REQUESTS} requests of an Azure trace", "metric", "before", "promoted", "ratio")
    for label, name, percentile in _METRICS:
        before, after = (_milliseconds(metrics[name][percentile]) for metrics in both)
        shown.add_row(label, f"{before:.1f} ms", f"{after:.1f} ms", f"{after / before:.2f}")
    before, after = (Decimal(metrics["output_tokens_per_second"]) for metrics in both)
    shown.add_row("output", f"{before:.0f} tok/s", f"{after:.0f} tok/s", f"{after / before:.2f}")
    screen.print()
    screen.print(shown)
    for label in service.standing["labels"][:1]:
        screen.print(escape(label))
    screen.print(escape(coverage_line(service.standing)))


def _milliseconds(ns: Any) -> Decimal:
    return Decimal(ns) / 10**6


def _short(workload: str) -> str:
    """The operator and its number of tokens; the shape is the same throughout the demo."""
    op, _, rest = workload.partition("[")
    tokens = next(axis for axis in rest.partition("]")[0].split(",") if axis.startswith("tokens="))
    return f"{op} {tokens}"
