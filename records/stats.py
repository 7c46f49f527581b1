"""Statistics of raw integer nanoseconds, exact: integers in, integers or decimal strings out.

Nothing is trimmed. A quantile is a linear interpolation between order statistics (the definition
that NumPy calls linear), rounded half to even to a whole nanosecond.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from bitgate.records.base import require

_PLACES = 6


def median_ns(samples: Sequence[int]) -> int:
    """The median in nanoseconds; between two samples the mean, rounded half to even."""
    return quantile_ns(samples, "0.5")


def quantile_ns(samples: Sequence[int], q: str) -> int:
    """The quantile `q`, a decimal string from 0 to 1, in nanoseconds."""
    return round(_quantile(sorted(samples), q))


def saving_ns(baseline_ns: Sequence[int], candidate_ns: Sequence[int]) -> Fraction:
    """The baseline's median minus the candidate's, in nanoseconds, exact."""
    return _quantile(sorted(baseline_ns), "0.5") - _quantile(sorted(candidate_ns), "0.5")


def ratio_median(baseline_ns: Sequence[int], candidate_ns: Sequence[int]) -> str:
    """The median over rounds of baseline / candidate, as a decimal string with six places.

    Above 1 the candidate is faster. Pairs are kept together, so that drift cancels.
    """
    require(
        len(baseline_ns) == len(candidate_ns),
        f"pairs: {len(baseline_ns)} baseline and {len(candidate_ns)} candidate samples",
    )
    require(bool(baseline_ns), "quantile: no sample")
    # Two unequal ratios of numbers below 2**53 are more than 2**-107 apart, so whole numbers of
    # 2**-128 sort them as fractions would, in a fifth of the time.
    pairs = sorted(
        zip(baseline_ns, candidate_ns, strict=True), key=lambda pair: (pair[0] << 128) // pair[1]
    )
    middle = pairs[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1]
    return decimal_string(sum((Fraction(*pair) for pair in middle), Fraction()) / len(middle))


def decimal_string(value: Fraction) -> str:
    """A decimal with six places, rounded half to even."""
    return str(Decimal(round(value * 10**_PLACES)).scaleb(-_PLACES))


def _quantile(ordered: Sequence[int], q: str) -> Fraction:
    require(bool(ordered), "quantile: no sample")
    share = Fraction(Decimal(q))
    require(0 <= share <= 1, f"quantile: expected 0 to 1, got {q}")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
