"""The ledger's timings: what the implementation that holds each lane takes, for the simulator.

Only decisions make a price: the record that stands in its lane, or what that record replaced, as it
was timed beside it. A rejected record is none, however fast it was.
"""

from dataclasses import dataclass
from typing import Literal

from bitgate.records.errors import LedgerBroken
from bitgate.records.lanes import standing_id
from bitgate.records.ledger import Ledger
from bitgate.records.proof import Pairs, Workload
from bitgate.records.rows import Decision, Environment, Record, Timing
from bitgate.records.stats import median_ns

Basis = Literal["standing", "replaced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTiming:
    """What one call takes in a lane, by whose implementation, and under which conditions."""

    lane: str
    workload: Workload
    timing: Timing
    candidate: str
    environment: Environment
    regime: str
    timer: str

    @property
    def comparability(self) -> Pairs:
        """The facts that must agree before two timings may enter one sum."""
        own = (("regime", self.regime), ("timer", self.timer))
        return own + self.environment.comparability


def lane_timings(ledger: Ledger, basis: Basis) -> list[LaneTiming]:
    """The timing of each lane that has one, in the order of the lanes' names.

    `standing` takes the record that holds the lane now, `replaced` the baseline that it was
    measured against, in the same rounds: their difference is what the last promotions are worth,
    whatever else the machine did in other sessions. A lane that was only opened has one time for
    both. A lane whose record holds no measurement, or whose opening was rejected since, has none.

    Raises:
        UsageError: there is no such ledger.
        LedgerBroken: the ledger cannot be read, or a decision stands on what it must not.
    """
    decisions: dict[str, list[Decision]] = {}
    for made in ledger.decisions():
        decisions.setdefault(made.body.lane, []).append(made.body)
    chosen = {lane: standing_id(made) for lane, made in sorted(decisions.items())}
    ids = {record_id for record_id in chosen.values() if record_id is not None}
    records = {entry.id: entry.body for entry in ledger.records(ids)} if ids else {}
    found = [
        _timing(lane, record_id, records.get(record_id), basis)
        for lane, record_id in chosen.items()
        if record_id is not None
    ]
    return [timing for timing in found if timing is not None]


def _timing(lane: str, record_id: str, record: Record | None, basis: Basis) -> LaneTiming | None:
    if record is None:
        raise LedgerBroken(
            f"the lane {lane} is held by the record {record_id[:16]}, which is in no chain of this "
            "ledger; `bitgate records verify` names the break"
        )
    if record.lane != lane or record.outcome != "passed" or not record.verdict.passed:
        raise LedgerBroken(
            f"the lane {lane} is held by the record {record_id[:16]}: expected a passed one of "
            f"this lane, got {record.outcome} with the verdict {record.verdict.kind} in "
            f"{record.lane}; no decision can make it a price"
        )
    measured = record.measurement
    if measured is None:
        return None
    side, samples = record.candidate, measured.candidate_ns
    # A record that opened its lane was timed against itself and replaced nothing.
    if basis == "replaced" and record.baseline and record.baseline.digest != side.digest:
        side, samples = record.baseline, measured.baseline_ns
    return LaneTiming(
        lane=lane,
        workload=record.workload,
        timing=Timing(ns=median_ns(samples), basis="exact", record_ids=(record_id,)),
        candidate=side.name,
        environment=record.environment,
        regime=measured.plan.regime,
        timer=measured.timer,
    )
