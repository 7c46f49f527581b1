"""Measured points of one operator, and what lies between them: piecewise linear, in linear space.

A point has one size (the tokens) or two (the tokens and the context; the sequences and the tokens
that they attend to). With two, the points of one first size form a row. Within a row, time is
linear between neighbours in the second size; between rows it is linear in the first, from the
nearest rows below and above that were measured on both sides of the second size. So ragged tables
are never filled up with numbers that nobody measured. Where the second size is a sum over the
first, rows are compared at the same mean: tables are regular in lengths, not in their sums.
"""

from bisect import bisect_left
from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor, lcm
from typing import NamedTuple

# Operators whose second size is a sum over the first.
SUMMED = frozenset({"generation_attention"})

# Beyond every size.
END = 1 << 62

Sources = tuple[str, ...]


class Point(NamedTuple):
    """One measured time: the sizes, the nanoseconds, and the records that it comes from."""

    sizes: tuple[int, ...]
    ns: int
    sources: Sources


class Value(NamedTuple):
    """An exact time, and the records that it comes from."""

    ns: Fraction
    sources: Sources


class Nearest(NamedTuple):
    """A place at the edge of a table; it serves every last size up to `high`.

    The last of its sizes is a fraction where rows are compared by the mean.
    """

    sizes: tuple[int | Fraction, ...]
    value: Value
    high: int


class Line(NamedTuple):
    """Time as (rise * x + base) / over nanoseconds, for the last size x from low to high."""

    low: int
    high: int
    rise: int
    base: int
    over: int
    sources: Sources


class Table:
    """The points of one operator with one set of fixed axes."""

    def __init__(self, points: Iterable[Point], *, summed: bool) -> None:
        self.points = {point.sizes: point for point in points}
        self._summed = summed
        rows: dict[int, list[Point]] = {}
        for point in sorted(self.points.values()):
            rows.setdefault(self._split(point.sizes)[0], []).append(point)
        self._rows = {
            first: _Row([self._split(point.sizes)[1] for point in row], row)
            for first, row in rows.items()
        }
        self._knots = sorted({x for row in self._rows.values() for x in row.xs})

    def line(self, sizes: tuple[int, ...]) -> Line | None:
        """The interpolation around these sizes; None where no points lie on both sides.

        Its range ends before the next measured second size, so it never covers a measured point.
        """
        first, where = self._split(sizes)
        at = bisect_left(self._knots, where)
        if at < len(self._knots) and self._knots[at] == where:
            value = self._value(first, where, (where, where))
            return None if value is None else _level(sizes[-1], value)
        if not 0 < at < len(self._knots):
            return None
        ends = (self._knots[at - 1], self._knots[at])
        values = [self._value(first, end, ends) for end in ends]
        scale = first if self._summed else 1
        low, high = (end * scale for end in ends)
        return (
            None
            if values[0] is None or values[1] is None
            else _through((low, values[0]), (high, values[1]))
        )

    def nearest(self, sizes: tuple[int, ...]) -> Nearest:
        """The place within the table that is the closest to these sizes.

        The first size is clamped to the rows; then the second, or its mean, to what they cover.
        """
        wanted, where = self._split(sizes)
        rows = list(self._rows)
        first = min(max(wanted, rows[0]), rows[-1])
        below = [x for x in self._knots if x <= where]
        above = [x for x in self._knots if x > where]
        for x in (where, *reversed(below), *above):
            value = self._value(first, x, (x, x))
            if value is not None:
                place = (x,) if len(sizes) == 1 else (first, x * first if self._summed else x)
                wide = self._summed and first == wanted and not above
                return Nearest(place, value, END if wide else sizes[-1])
        raise AssertionError("a row covers its own points")

    def _split(self, sizes: tuple[int, ...]) -> tuple[int, Fraction]:
        """The row, and the place in it."""
        if len(sizes) == 1:
            return 0, Fraction(sizes[0])
        first, second = sizes
        return first, Fraction(second, first) if self._summed else Fraction(second)

    def _value(self, first: int, where: Fraction, span: tuple[Fraction, Fraction]) -> Value | None:
        """The time at a place, from the nearest rows on both sides that cover the span."""
        covering = [row for row in self._rows if self._rows[row].covers(*span)]
        lower = max((row for row in covering if row <= first), default=None)
        upper = min((row for row in covering if row >= first), default=None)
        if lower is None or upper is None:
            return None
        one, other = self._rows[lower].value(where), self._rows[upper].value(where)
        if lower == upper:
            return one
        share = Fraction(first - lower, upper - lower)
        sources = tuple(sorted({*one.sources, *other.sources}))
        return Value(one.ns + share * (other.ns - one.ns), sources)


class _Row:
    """The points of one first size, in the order of the second."""

    def __init__(self, xs: list[Fraction], points: list[Point]) -> None:
        self.xs, self.points = xs, points

    def covers(self, low: Fraction, high: Fraction) -> bool:
        return self.xs[0] <= low and high <= self.xs[-1]

    def value(self, where: Fraction) -> Value:
        """The time at a place that the row covers."""
        at = bisect_left(self.xs, where)
        right = self.points[at]
        if self.xs[at] == where:
            return Value(Fraction(right.ns), right.sources)
        left = self.points[at - 1]
        share = (where - self.xs[at - 1]) / (self.xs[at] - self.xs[at - 1])
        sources = tuple(sorted({*left.sources, *right.sources}))
        return Value(left.ns + share * (right.ns - left.ns), sources)


def _level(x: int, value: Value) -> Line:
    """The line of one place."""
    return Line(x, x, 0, value.ns.numerator, value.ns.denominator, value.sources)


def _through(left: tuple[Fraction, Value], right: tuple[Fraction, Value]) -> Line:
    """The line through two places, for the whole sizes between them."""
    (x0, y0), (x1, y1) = left, right
    rise = (y1.ns - y0.ns) / (x1 - x0)
    base = y0.ns - rise * x0
    over = lcm(rise.denominator, base.denominator)
    sources = tuple(sorted({*y0.sources, *y1.sources}))
    return Line(floor(x0) + 1, ceil(x1) - 1, int(rise * over), int(base * over), over, sources)
