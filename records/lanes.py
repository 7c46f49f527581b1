"""Record lanes: how one is named and declared, and which record stands in it."""

from collections.abc import Iterable
from fractions import Fraction

from bitgate.records.ledger import Entry, Ledger
from bitgate.records.proof import Workload
from bitgate.records.rows import Decision, Lane, Measurement, Record
from bitgate.records.stats import decimal_string, saving_ns


def lane_id(device: str, workload: Workload) -> str:
    """The readable name of the lane of one workload on one kind of device.

    device/op/axis=extent,.../dtype, and /case where the data are not the plain random ones.
    """
    axes = ",".join(f"{name}={extent}" for name, extent in workload.axes)
    parts = [device, workload.op, axes, workload.dtype]
    return "/".join(parts if workload.case == "random" else [*parts, workload.case])


def make_lane(
    device: str,
    workload: Workload,
    *,
    target: str | None = None,
    kill_criterion: str | None = None,
) -> Lane:
    """The latency lane of a workload: median nanoseconds per call, lower is better."""
    return Lane(
        id=lane_id(device, workload),
        op=workload.op,
        workload=workload,
        device=device,
        metric="latency",
        unit="ns",
        statistic="median",
        higher_is_better=False,
        target=target,
        kill_criterion=kill_criterion,
    )


def declarations(ledger: Ledger, lane: str) -> list[Entry[Lane]]:
    """The rows that declare a lane, oldest first; a lane is declared once, or alike."""
    return [entry for entry in ledger.lanes() if entry.body.id == lane]


def standing(ledger: Ledger, lane: str) -> Entry[Record] | None:
    """The record that holds the lane: the last one promoted and not rejected since."""
    held = standing_id(entry.body for entry in ledger.decisions() if entry.body.lane == lane)
    return None if held is None else ledger.find(held)


def standing_id(decisions: Iterable[Decision]) -> str | None:
    """The id of the record that holds a lane after its decisions, oldest first."""
    held: list[str] = []
    for decision in decisions:
        held = [record for record in held if record != decision.record_id]
        if decision.kind != "rejected":
            held.append(decision.record_id)
    return held[-1] if held else None


def current_baseline(ledger: Ledger, lane: str) -> Record | None:
    """The record whose candidate is the lane's baseline now; None where the lane is not open."""
    entry = standing(ledger, lane)
    return None if entry is None else entry.body


def latest_decisions(ledger: Ledger) -> dict[str, Decision]:
    """The last decision on each record, by the record's id."""
    return {entry.body.record_id: entry.body for entry in ledger.decisions()}


def saving_shortfall(lane: Lane, measurement: Measurement) -> str | None:
    """Why the saving per call is below the lane's kill criterion; None where it is not."""
    if lane.kill_criterion is None:
        return None
    saved = saving_ns(measurement.baseline_ns, measurement.candidate_ns)
    if saved >= Fraction(lane.kill_criterion):
        return None
    return (
        f"the median saving is {decimal_string(saved)} {lane.unit} per call; the lane's kill "
        f"criterion asks for {lane.kill_criterion}"
    )
