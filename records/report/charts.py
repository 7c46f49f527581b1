"""Where marks and lines lie in the report's drawings. Units are those of the SVG's own grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bitgate.records.rows import Measurement
from bitgate.records.views import RecordView, first_line

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 110, 20, 16, 40
STRIP_HEIGHT = 140

MarkKind = Literal["baseline", "promoted", "rejected", "undecided", "untimed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One record in a lane's chart; `target` is the anchor of its line in the table."""

    x: float
    y: float
    kind: MarkKind
    label: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled height."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A lane's record history: `steps` is the path of the standing time.

    Without any time there are no steps and no ticks, and nothing to draw.
    """

    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]
    steps: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The paired samples of one measurement as points, in the order of the rounds."""

    baseline: tuple[tuple[float, float], ...]
    candidate: tuple[tuple[float, float], ...]
    ticks: tuple[Tick, ...]


def history(rows: Sequence[RecordView]) -> History:
    """The step chart of one lane, records in the order of their times."""
    times = [row.candidate_ns or row.baseline_ns or 0 for row in rows]
    top = max([*times, *(row.baseline_ns or 0 for row in rows)], default=0)
    standing = next((row.baseline_ns for row in rows if row.baseline_ns is not None), None)
    marks, corners = [], []
    for place, row in enumerate(rows):
        x = _across(place, len(rows))
        if row.decision == "opening-baseline":
            height = standing
        else:
            height = row.candidate_ns
            if row.decision == "promoted":
                standing = row.candidate_ns
        marks.append(_mark(row, x, height, top))
        if standing is not None:
            corners.append((x, _up(standing, top, HEIGHT)))
    return History(
        marks=tuple(marks),
        ticks=_ticks(0, top, HEIGHT) if top else (),
        steps=_steps(corners),
        summary=_summary(rows, standing),
    )


def strip(measurement: Measurement) -> Strip:
    """The samples of a measurement between their smallest and their largest time."""
    both = measurement.baseline_ns + measurement.candidate_ns
    low, high = min(both), max(both)
    low = low - 1 if low == high else low

    def points(samples: tuple[int, ...]) -> tuple[tuple[float, float], ...]:
        return tuple(
            (_across(place, len(samples)), _up(sample - low, high - low, STRIP_HEIGHT))
            for place, sample in enumerate(samples)
        )

    return Strip(
        baseline=points(measurement.baseline_ns),
        candidate=points(measurement.candidate_ns),
        ticks=_ticks(low, high, STRIP_HEIGHT),
    )


def nanoseconds(value: int) -> str:
    """A time with separators: 1,234,567 ns."""
    return f"{value:,} ns"


def _mark(row: RecordView, x: float, height: int | None, top: int) -> Mark:
    kind: MarkKind = "undecided"
    if row.decision == "opening-baseline":
        kind = "baseline"
    elif row.decision == "promoted":
        kind = "promoted"
    elif row.decision == "rejected" or row.outcome == "rejected":
        kind = "rejected"
    time = "no time" if height is None else nanoseconds(height)
    return Mark(
        x=x,
        y=HEIGHT - BOTTOM if height is None else _up(height, top, HEIGHT),
        kind="untimed" if height is None and kind == "undecided" else kind,
        label=f"{row.candidate}: {row.decision or row.outcome}, {time}. {first_line(row.reason)}",
        target=f"record-{row.id[:12]}",
    )


def _across(place: int, count: int) -> float:
    return round(LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / count, 1)


def _up(value: int, top: int, height: int) -> float:
    return round(height - BOTTOM - (height - BOTTOM - TOP) * value / top, 1)


def _ticks(low: int, high: int, height: int) -> tuple[Tick, ...]:
    values = (low, (low + high) // 2, high)
    return tuple(
        Tick(y=_up(value - low, high - low, height), label=nanoseconds(value)) for value in values
    )


def _steps(corners: list[tuple[float, float]]) -> str:
    """The path that keeps its height until the next mark."""
    if not corners:
        return ""
    (x, y), *rest = corners
    parts = [f"M{x} {y}", *(f"H{across}V{up}" for across, up in rest), f"H{WIDTH - RIGHT}"]
    return "".join(parts)


def _summary(rows: Sequence[RecordView], standing: int | None) -> str:
    promoted = sum(row.decision == "promoted" for row in rows)
    rejected = sum("rejected" in {row.decision, row.outcome} for row in rows)
    time = "not timed yet" if standing is None else nanoseconds(standing)
    return (
        f"{len(rows)} records, {promoted} promoted, {rejected} rejected; "
        f"the standing baseline's time is {time}."
    )
