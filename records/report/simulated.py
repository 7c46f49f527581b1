"""What the page shows of simulations; all of it comes from their stored summaries."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction

from bitgate.records.errors import LedgerBroken
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.report.charts import WIDTH
from bitgate.records.rows import Simulation
from bitgate.records.stats import decimal_string
from bitgate.records.summaries import (
    Metrics,
    Spread,
    Summary,
    audit_line,
    in_words,
    milliseconds,
    model_line,
    one_line,
    percent,
    prices_line,
    read_summary,
    shares,
    source_line,
    tokens_per_second,
    workload_line,
)

BAR_HEIGHT = 28

# What the template calls to say a summary in words.
WORDS = {
    "audit_line": audit_line,
    "in_words": in_words,
    "milliseconds": milliseconds,
    "model_line": model_line,
    "one_line": one_line,
    "percent": percent,
    "prices_line": prices_line,
    "source_line": source_line,
    "tokens_per_second": tokens_per_second,
    "workload_line": workload_line,
}

# Narrower segments have no room for a word; the line below the bar has all of them.
_WORD_WIDTH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of the coverage bar; `word` is empty where there is no room for one."""

    how: str
    x: float
    width: float
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPage:
    """One simulation. Without a readable summary there is a `problem`, and nothing else to show."""

    id: str
    row: Simulation
    summary: Summary | None
    problem: str | None
    bar: tuple[Segment, ...]

    @property
    def anchor(self) -> str:
        """The name of its place on the page."""
        return f"simulation-{self.id[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two simulations that differ in nothing but their prices.

    `rows` are (metric, before, after, ratio); a ratio above 1 says that `after` is better.
    """

    before: SimulationPage
    after: SimulationPage
    rows: tuple[tuple[str, str, str, str], ...]


def simulation_pages(ledger: Ledger) -> list[SimulationPage]:
    """All simulations of the ledger in the order of their times."""
    return [_page(ledger, entry) for entry in ledger.simulations()]


def comparisons(pages: Iterable[SimulationPage]) -> list[Comparison]:
    """One comparison for each set of simulations that differ in their prices only.

    What stands is compared with what it replaced, or the newest with the oldest of one basis.
    """
    groups: dict[str, list[SimulationPage]] = {}
    for page in pages:
        if page.summary is not None:
            groups.setdefault(_terms(page.summary), []).append(page)
    return [found for group in groups.values() for found in _compared(group)]


def metric_rows(metrics: Metrics) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    """(time, requests, (mean, p50, p90, p99)) in milliseconds."""
    return tuple(
        (name, spread.count, tuple(milliseconds(value) for value in _values(spread).values()))
        for name, spread in _times(metrics)
    )


def _page(ledger: Ledger, entry: Entry[Simulation]) -> SimulationPage:
    summary = problem = None
    try:
        summary = read_summary(ledger, entry)
    except LedgerBroken as error:
        problem = str(error)
    return SimulationPage(
        id=entry.id,
        row=entry.body,
        summary=summary,
        problem=problem,
        bar=() if summary is None else _bar(shares(summary.coverage)),
    )


def _bar(parts: Sequence[tuple[str, Decimal]]) -> tuple[Segment, ...]:
    segments, before = [], Decimal(0)
    for how, share in parts:
        x, end = (round(float(place * WIDTH), 1) for place in (before, before + share))
        word = f"{how} {percent(share)}" if end - x >= _WORD_WIDTH else ""
        segments.append(Segment(how=how, x=x, width=round(end - x, 1), word=word))
        before += share
    return tuple(segments)


def _terms(summary: Summary) -> str:
    """Everything that a simulation was asked, except whose timings to take."""
    prices = summary.prices
    return json.dumps(
        [
            summary.workload.sha256,
            asdict(summary.model),
            summary.engine,
            prices.device,
            prices.node,
            prices.regime,
            prices.allow_extrapolation,
            prices.peaks,
        ],
        sort_keys=True,
    )


def _compared(group: list[SimulationPage]) -> Iterable[Comparison]:
    newest = {page.summary.prices.basis: page for page in group if page.summary is not None}
    ordered = sorted(newest.items(), key=lambda item: item[0] == "standing")
    found = [page for _, page in ordered] if len(newest) > 1 else group
    before, after = found[0], found[-1]
    old, new = before.summary, after.summary
    if old is not None and new is not None and old.prices.ops != new.prices.ops:
        yield Comparison(before=before, after=after, rows=tuple(_rows(old, new)))


def _rows(old: Summary, new: Summary) -> Iterable[tuple[str, str, str, str]]:
    rates = [Fraction(one.metrics.output_tokens_per_second) for one in (old, new)]
    served = tokens_per_second(old), tokens_per_second(new)
    yield "output tok/s", *served, _ratio(rates[1], rates[0])
    pairs = zip(_times(old.metrics), _times(new.metrics), strict=True)
    for (name, before), (_, after) in pairs:
        values = zip(_values(before).items(), _values(after).values(), strict=True)
        for (what, one), other in values:
            if one is not None and other is not None:
                ratio = _ratio(Fraction(one), Fraction(other))
                yield f"{name} {what}", milliseconds(one), milliseconds(other), ratio


def _ratio(over: Fraction, under: Fraction) -> str:
    return decimal_string(over / under)[:-3] if under else "none"


def _times(metrics: Metrics) -> tuple[tuple[str, Spread], ...]:
    return (("TTFT", metrics.ttft_ns), ("TPOT", metrics.tpot_ns), ("E2E", metrics.e2e_ns))


def _values(spread: Spread) -> dict[str, int | str | None]:
    return {"mean": spread.mean, "p50": spread.p50, "p90": spread.p90, "p99": spread.p99}
