"""Do rows that name other rows name what is there, and what it has to be?

A decision names the record that it decides on, a simulation the records that its prices come from.
Chains are merged, cut and lost one by one, so each name is looked for in all of them.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bitgate.records.chain import Entry
from bitgate.records.diagnosis import Break, BreakKind, Facts, Judged, judged
from bitgate.records.rows import Decision, Record, Simulation


class Rows(Protocol):
    """What is asked of a ledger."""

    def records(self, ids: Collection[str] | None = None) -> Iterator[Entry[Record]]:
        """The records, or those that have one of the `ids`."""

    def decisions(self) -> Iterator[Entry[Decision]]:
        """The decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The records that rows may name, by id, and the ids of those that ever held a lane."""

    records: dict[str, Judged]
    accepted: set[str]


def known_to(ledger: Rows, ids: Collection[str]) -> Known:
    """What the ledger holds of the named records."""
    return Known(
        records={entry.id: judged(entry.body) for entry in ledger.records(ids)},
        accepted=_accepted(entry.body for entry in ledger.decisions()),
    )


def unfit_source(simulation: Simulation, known: Known) -> str | None:
    """Why a simulation cannot have been priced from what it names; None where it can."""
    for identity in simulation.record_ids:
        if identity not in known.records:
            return f"{identity[:16]} is in no chain of this ledger; a chain is missing, or was cut"
        if identity not in known.accepted:
            return (
                f"{identity[:16]} was never promoted and never opened its lane; only decisions "
                "make a price"
            )
    return None


def broken_names(lines: Iterable[Facts], ledger: Rows) -> dict[str, Break]:
    """The first row of each chain, by its writer, that names what is not there or not fit for it.

    `lines` are those of all chains. What they lack is looked for in the ledger once more: it may
    have been appended while one chain after the other was walked.
    """
    rows = list(lines)
    known = _known(rows, ledger)
    broken: dict[str, Break] = {}
    for line in rows:
        found = _misnamed(line, known)
        if found is not None and line.writer is not None:
            broken.setdefault(line.writer, found)
    return broken


def _misnamed(line: Facts, known: Known) -> Break | None:
    if isinstance(line.said, Decision):
        identity = line.said.record_id
        problem = _misdecided(line.said, known.records.get(identity))
        if problem is not None:
            return _break("decision", line, f"decides on record {identity[:16]}: {problem}")
    if isinstance(line.said, Simulation):
        problem = unfit_source(line.said, known)
        if problem is not None:
            return _break("simulation", line, f"takes its prices from a record: {problem}")
    return None


def _misdecided(decision: Decision, record: Judged | None) -> str | None:
    if record is None:
        return "it is in no chain of this ledger; a chain is missing, or was cut"
    if record.lane != decision.lane:
        return f"it belongs to the lane {record.lane!r}, the decision is for {decision.lane!r}"
    if decision.kind != "rejected" and not record.passed:
        return f"{decision.kind}, and its verdict is {record.verdict}"
    return None


def _known(lines: list[Facts], ledger: Rows) -> Known:
    """What the lines hold, and what is named beyond it and was appended since."""
    records = {line.id: line.said for line in lines if isinstance(line.said, Judged)}
    decisions = [line.said for line in lines if isinstance(line.said, Decision)]
    simulations = [line.said for line in lines if isinstance(line.said, Simulation)]
    accepted = _accepted(decisions)
    priced = {identity for one in simulations for identity in one.record_ids}
    absent = (priced | {made.record_id for made in decisions}) - records.keys()
    if not absent and priced <= accepted:
        return Known(records=records, accepted=accepted)
    later = known_to(ledger, absent)
    return Known(records=records | later.records, accepted=accepted | later.accepted)


def _accepted(decisions: Iterable[Decision]) -> set[str]:
    return {made.record_id for made in decisions if made.kind != "rejected"}


def _break(kind: BreakKind, line: Facts, what: str) -> Break:
    return Break(
        kind=kind,
        file=str(line.file),
        line=line.number,
        seq=line.seq,
        message=f"row {line.seq} {what}",
    )
