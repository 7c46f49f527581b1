"""What people see of a simulation; every number is from its summary."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.markup import escape

from bitgate.records.console import console, print_json, table
from bitgate.records.ledger import Entry, Row
from bitgate.records.types import PRICE_SOURCES
from bitgate.sim.files import REQUESTS, STEPS, SUMMARY
from bitgate.sim.metrics import DEFINITIONS, PERCENTILES, TIMES

_RATES = (
    ("output_tokens_per_second", "output tok/s"),
    ("total_tokens_per_second", "total tok/s"),
    ("requests_per_second", "requests/s"),
)


def definitions(*, as_json: bool) -> None:
    """What each metric means."""
    if as_json:
        print_json(dict(DEFINITIONS))
        return
    shown = table("definitions", "metric", "means")
    for name, meaning in DEFINITIONS.items():
        shown.add_row(name, escape(meaning))
    console().print(shown)


def outcome(
    summary: dict[str, Any], entry: Entry[Row] | None, out: Path | None, *, as_json: bool
) -> None:
    """A simulation: metrics, prices, coverage, audit and what to know before any of them."""
    if as_json:
        print_json(summary)
        return
    screen = console()
    screen.print(_metrics(summary["metrics"]))
    screen.print(_prices(summary["prices"]["ops"]))
    for line in (
        _rates_line(summary["metrics"]),
        coverage_line(summary),
        _workload_line(summary),
        _audit_line(summary["audit"]),
        *(f"note: {label}" for label in summary["labels"]),
    ):
        screen.print(line, markup=False, soft_wrap=True)
    if out is not None:
        screen.print(f"wrote {out}: {SUMMARY}, {REQUESTS}, {STEPS}", markup=False)
    if entry is not None:
        screen.print(f"recorded {entry.id[:12]}", markup=False)


def coverage_line(summary: dict[str, Any]) -> str:
    """How the simulated time was priced, in one line."""
    found = summary["coverage"]
    parts = ", ".join(f"{_percent(found[how])} {how}" for how in PRICE_SOURCES)
    return f"coverage: {parts} of {_seconds(found['busy_ns'])} s of steps"


def _metrics(metrics: dict[str, Any]) -> Any:
    shown = table("latency in ms", "metric", "count", "mean", *(f"p{p}" for p in PERCENTILES))
    for name in (*TIMES[:3], "itl_ns", TIMES[3]):
        found = metrics[name]
        values = [found["mean"], *(found[f"p{p}"] for p in PERCENTILES)]
        shown.add_row(name.removesuffix("_ns"), str(found["count"]), *map(_milliseconds, values))
    return shown


def _rates_line(metrics: dict[str, Any]) -> str:
    rates = ", ".join(f"{Decimal(metrics[key]):.2f} {name}" for key, name in _RATES)
    return f"throughput: {rates} over {_seconds(metrics['makespan_ns'])} s"


def _prices(rows: list[dict[str, Any]]) -> Any:
    shown = table("where the time went", "operator", "calls", "ms", "share", *PRICE_SOURCES)
    for row in rows:
        how = [_percent(row["how"][name]) for name in PRICE_SOURCES]
        name, calls, share = row["op"], str(row["calls"]), _percent(row["share"])
        shown.add_row(name, calls, _milliseconds(row["ns"]), share, *how)
    return shown


def _workload_line(summary: dict[str, Any]) -> str:
    work, model = summary["workload"], summary["model"]
    return (
        f"workload: {work['requests']} requests of {work['trace']}, {work['prompt_tokens']} prompt "
        f"and {work['output_tokens']} output tokens; model: {model['name']}, "
        f"{model['parameters']} parameters"
    )


def _audit_line(audit: dict[str, Any]) -> str:
    return (
        f"audit: {'passed' if audit['passed'] else 'FAILED'}: {audit['requests']} requests served "
        f"once, {audit['refused']} refused; {audit['tokens_computed']} tokens computed in "
        f"{audit['steps']} steps, {audit['tokens_lost']} of them lost to preemption"
    )


def _percent(share: str) -> str:
    return f"{Decimal(share) * 100:.1f} %"


def _milliseconds(ns: str | int | None) -> str:
    return "-" if ns is None else f"{Decimal(ns) / 10**6:.3f}"


def _seconds(ns: int) -> str:
    return f"{Decimal(ns) / 10**9:.3f}"
