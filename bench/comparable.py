"""May two stored records be compared, and what do their times say side by side?"""

from dataclasses import dataclass

from bitgate.kernels.moe import tiles
from bitgate.records.errors import UsageError
from bitgate.records.policy.judge import difference
from bitgate.records.stats import median_ns
from bitgate.records.types import Pairs, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Medians of two records in nanoseconds per call. Not paired, so there is no effect."""

    first_ns: int
    second_ns: int
    ratio: str


def comparability(record: Record) -> Pairs:
    """All that must agree before two records' times may be compared.

    Raises:
        UsageError: the record holds no time.
    """
    measurement = record.measurement
    if measurement is None:
        raise UsageError(
            f"the record of {record.candidate.name} ({record.outcome}: {record.reason}) holds no "
            "time; only records with a passed verdict and a measurement can be compared"
        )
    own = (
        ("workload", record.workload.key),
        ("contract", record.candidate.contract),
        ("config", str(tiles.without(record.candidate.config))),
        ("regime", measurement.plan.regime),
        ("timer", measurement.timer),
    )
    return own + record.environment.comparability


def side_by_side(first: Record, second: Record) -> SideBySide:
    """The medians of two comparable records.

    Raises:
        UsageError: something differs that must agree; every such field is named.
    """
    differing = difference(comparability(first), comparability(second))
    if differing:
        raise UsageError(
            f"these records cannot be compared; they differ in: {'; '.join(differing)}. "
            "Measure both under the same conditions"
        )
    times = [
        median_ns(record.measurement.candidate_ns)
        for record in (first, second)
        if record.measurement is not None
    ]
    return SideBySide(first_ns=times[0], second_ns=times[1], ratio=f"{times[0] / times[1]:.4f}")
