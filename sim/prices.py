"""What a call costs: measured, between measured points, or, only if asked for, beyond them.

Every price says how it was found, and which records it comes from:

    exact         the median that was measured at these very sizes
    interpolated  linear in each size between measured points (see sim/tables.py)
    extrapolated  the nearest place of the table, times the growth of bytes or of operations from
                  there, whichever grew more, and never less than there. A kernel that keeps its
                  utilisation takes at most that, whatever the device's balance. Only if allowed
    assumed       bytes / bandwidth or operations / peak of a declared device, whichever takes
                  longer, plus its time for a launch. Only if peaks are declared

Times are whole nanoseconds, rounded once, half to even, from exact rationals. There is no other
price: a call that none of these covers raises MissingPrice.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import floor
from typing import NamedTuple

from bitgate.records.errors import UsageError
from bitgate.records.lanes import lane_id
from bitgate.records.ops import bytes_of, flops_of, operator
from bitgate.records.timings import LaneTiming
from bitgate.records.types import PriceSource, Workload
from bitgate.sim.arch import Key, Term
from bitgate.sim.peaks import Peaks
from bitgate.sim.tables import END, SUMMED, Nearest, Point, Sources, Table

_NS = 1_000_000_000


class MissingPrice(UsageError):  # noqa: N818 - what is missing, not a defect
    """A call that has no price; names it, the nearest priced shapes and the lane to open."""


class Price(NamedTuple):
    """What one call takes, how that was found, and the records behind it."""

    ns: int
    how: PriceSource
    sources: Sources


class Quote(NamedTuple):
    """The price for every last size from low to high: (rise * size + base) / over nanoseconds."""

    low: int
    high: int
    rise: int
    base: int
    over: int
    how: PriceSource
    sources: Sources

    def ns(self, size: int) -> int:
        """The price at a last size."""
        return half_even(self.rise * size + self.base, self.over)


class PriceBook:
    """The prices of one device. Sizes are those of the operator's `sizes`, in their order."""

    def __init__(
        self,
        timings: Iterable[LaneTiming],
        *,
        device: str,
        peaks: Peaks | None = None,
        allow_extrapolation: bool = False,
    ) -> None:
        if peaks is not None and peaks.device != device:
            raise UsageError(
                f"the peaks of {peaks.name} are declared for the device {peaks.device}, the "
                f"timings are of {device}; one simulation prices one kind of device"
            )
        self._device, self._peaks, self._extrapolate = device, peaks, allow_extrapolation
        points: dict[Key, list[Point]] = {}
        for found in timings:
            key, sizes = split(found.workload)
            point = Point(sizes, found.timing.ns, found.timing.record_ids)
            points.setdefault(key, []).append(point)
        self._tables: Mapping[Key, Table] = {
            key: Table(found, summed=key[0] in SUMMED) for key, found in points.items()
        }

    def price(self, workload: Workload) -> Price:
        """What one call takes.

        Raises:
            MissingPrice: nothing that was allowed covers it.
        """
        key, sizes = split(workload)
        quote = self.quote(key, sizes)
        return Price(quote.ns(sizes[-1]), quote.how, quote.sources)

    def quote(self, key: Key, sizes: tuple[int, ...]) -> Quote:
        """The price around these sizes; as `price`."""
        table = self._tables.get(key)
        if table is not None:
            point = table.points.get(sizes)
            if point is not None:
                x = sizes[-1]
                return Quote(x, x, 0, point.ns, 1, "exact", point.sources)
            line = table.line(sizes)
            if line is not None:
                low, high, rise, base, over, sources = line
                return Quote(low, high, rise, base, over, "interpolated", sources)
            if self._extrapolate:
                return _extrapolated(key, sizes, table.nearest(sizes))
        if self._peaks is not None:
            return _assumed(key, sizes, self._peaks, everywhere=table is None)
        raise MissingPrice(self._missing([(key, sizes)]))

    def check(self, terms: Iterable[Term]) -> None:
        """Raise MissingPrice for all operators that have no price of any size, at once."""
        lacking = [
            (term.key, (1,) * len(operator(term.op).sizes))
            for term in terms
            if term.key not in self._tables
        ]
        if lacking and self._peaks is None:
            raise MissingPrice(self._missing(lacking))

    def _missing(self, calls: list[tuple[Key, tuple[int, ...]]]) -> str:
        lines = ["no price for"]
        for key, sizes in calls:
            wanted = workload_at(key, sizes)
            near = ", ".join(self._nearest(key, sizes)) or "none"
            lane = lane_id(self._device, wanted)
            lines.append(f"  {_name(wanted)}: nearest priced: {near}; its lane: {lane}")
        lines.append(
            "Open the lanes (`bitgate run FILE --open-lane`), or ask for a price that nobody "
            "measured: allow extrapolation where some shape is priced, or declare peaks"
        )
        return "\n".join(lines)

    def _nearest(self, key: Key, sizes: tuple[int, ...]) -> list[str]:
        """Up to three priced shapes of the operator, those of the same fixed axes first."""

        def distance(other: Key, point: Point) -> tuple[int, int]:
            fixed = len(set(key[1]) ^ set(other[1])) + (key[2] != other[2])
            return fixed, sum(abs(a - b) for a, b in zip(sizes, point.sizes, strict=True))

        known = [
            (distance(other, point), _name(workload_at(other, point.sizes)))
            for other, table in self._tables.items()
            if other[0] == key[0]
            for point in table.points.values()
        ]
        return [name for _, name in sorted(known)[:3]]


def split(workload: Workload) -> tuple[Key, tuple[int, ...]]:
    """What a model fixes of a call, and its sizes in the operator's order."""
    names = operator(workload.op).sizes
    fixed = tuple((name, extent) for name, extent in workload.axes if name not in names)
    return (workload.op, fixed, workload.dtype), tuple(workload.axis(name) for name in names)


def workload_at(key: Key, sizes: tuple[int, ...]) -> Workload:
    """The call of these sizes."""
    op, fixed, dtype = key
    axes = (*fixed, *zip(operator(op).sizes, sizes, strict=True))
    return Workload(op=op, axes=tuple(sorted(axes)), dtype=dtype)


def _extrapolated(key: Key, sizes: tuple[int, ...], near: Nearest) -> Quote:
    """The nearest place's time, times the larger growth of bytes and operations from there."""
    ns = near.value.ns
    lines = [(0, ns.numerator, ns.denominator)]
    span = (sizes[-1], near.high)
    for count in (bytes_of, flops_of):
        there = _at_fraction(count, key, near.sizes)
        if there:
            rise, base = _growth(count, key, sizes, span)
            scale = ns / there
            lines.append((rise * scale.numerator, base * scale.numerator, scale.denominator))
    return _highest(lines, sizes[-1], span, "extrapolated", near.value.sources)


def _assumed(key: Key, sizes: tuple[int, ...], peaks: Peaks, *, everywhere: bool) -> Quote:
    """What the declared peaks allow at best, and a launch."""
    span = (1, END) if everywhere and key[0] in SUMMED else (sizes[-1], sizes[-1])
    rates = ((bytes_of, peaks.bytes_per_second), (flops_of, peaks.flops(key[2])))
    lines = []
    for count, rate in rates:
        rise, base = _growth(count, key, sizes, span)
        lines.append((rise * _NS, base * _NS + peaks.launch_ns * rate, rate))
    return _highest(lines, sizes[-1], span, "assumed", ())


def _growth(
    count: Callable[[Workload], int], key: Key, sizes: tuple[int, ...], span: tuple[int, int]
) -> tuple[int, int]:
    """Bytes or operations as rise * last size + base, over the span of last sizes.

    Only operators in SUMMED are asked for more than one size; theirs grow evenly.
    """
    here = count(workload_at(key, sizes))
    if span[0] == span[1]:
        return 0, here
    rise = count(workload_at(key, (*sizes[:-1], sizes[-1] + 1))) - here
    return rise, here - rise * sizes[-1]


def _at_fraction(
    count: Callable[[Workload], int], key: Key, sizes: tuple[int | Fraction, ...]
) -> Fraction:
    """Bytes or operations at a last size that may lie between two whole ones."""
    *first, last = sizes
    below = floor(last)
    low = count(workload_at(key, (*map(int, first), below)))
    if below == last:
        return Fraction(low)
    return Fraction(low) + (last - below) * (
        count(workload_at(key, (*map(int, first), below + 1))) - low
    )


def _highest(
    lines: list[tuple[int, int, int]],
    x: int,
    span: tuple[int, int],
    how: PriceSource,
    sources: Sources,
) -> Quote:
    """The highest of some lines at x, as far as it stays the highest within the span."""
    rise, base, over = max(lines, key=lambda line: Fraction(line[0] * x + line[1], line[2]))
    low, high = span
    for other_rise, other_base, other_over in lines:
        # Above the other where gain * x + lead >= 0; true at x itself.
        gain = rise * other_over - other_rise * over
        lead = base * other_over - other_base * over
        if gain > 0:
            low = max(low, -(lead // gain))
        elif gain < 0:
            high = min(high, lead // -gain)
    return Quote(low, high, rise, base, over, how, sources)


def _name(workload: Workload) -> str:
    """The key without the kind of data, which no price depends on."""
    return workload.key.rpartition("/")[0]


def half_even(number: int, over: int) -> int:
    """The quotient, rounded to whole, half to even."""
    whole, rest = divmod(number, over)
    return whole + (2 * rest > over or (2 * rest == over and whole % 2 == 1))
