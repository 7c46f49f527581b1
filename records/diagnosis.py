"""Where is the first break of a chain, and of what kind?

One edit makes several lines disagree. The diagnosis asks what each line's neighbours and the head
say of it, and names the line that was touched rather than the first that no longer fits.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitgate.records.chain import HEAD, Head, Stored, genesis, read_head, segments
from bitgate.records.codec import FormatError
from bitgate.records.rows import Decision, Record, Simulation

BreakKind = Literal[
    "row",  # a line is not the one that its successor, or the head, was written upon
    "gap",  # a line is missing
    "order",  # lines changed places
    "duplicate",  # one line lies there twice
    "inserted",  # a line stands between two that follow each other
    "fork",  # two lines claim the same place: one writer id was used by two clones
    "predecessor",  # a line does not continue the one before it
    "tail",  # lines are missing at the end, or a last line was not written to its end
    "head",  # head.json is damaged or missing
    "schema",  # a line is what it was, and cannot be read
    "object",  # a piece of evidence is missing or changed
    "decision",  # a decision names a record that is not there, or is not what was decided on
    "simulation",  # a simulation names a record that is not there, or that never held a lane
    "file",  # a file of the chain cannot be read, or is no file
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The first break of a chain. `seq` names the row; `drop_bytes` a torn end to be cut off."""

    kind: BreakKind
    file: str
    line: int | None
    seq: int | None
    message: str
    drop_offset: int | None = None
    drop_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a record is to the rows that name it."""

    lane: str
    verdict: str
    passed: bool


def judged(record: Record) -> Judged:
    """The record as other rows see it."""
    return Judged(lane=record.lane, verdict=record.verdict.kind, passed=record.verdict.passed)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a line says of itself; None where it cannot be read. `fault` is a decoding trouble.

    `id` is the row's, and `said` what other rows have to do with.
    """

    file: Path
    number: int
    sha256: str
    seq: int | None
    prev: str | None
    writer: str | None
    fault: str | None
    id: str = ""
    said: Judged | Decision | Simulation | None = None


class Diagnosis:
    """One walk over a chain's lines and what follows them; see the module's page."""

    def __init__(self, directory: Path, lines: list[Facts], torn: Stored | None) -> None:
        self._directory = directory
        self._lines = lines
        self._torn = torn
        self._head: Head | None = None
        self._head_fault: str | None = None
        try:
            self._head = read_head(directory)
        except FormatError as error:
            self._head_fault = str(error)
        if self._head is not None and self._head.writer != directory.name:
            self._head_fault = f"it belongs to the writer {self._head.writer!r}"
            self._head = None
        seqs = [line.seq for line in lines if line.seq is not None]
        self._seqs = set(seqs)
        self._distinct = len(self._seqs) == len(lines)
        self._copies = Counter(line.sha256 for line in lines)
        # The number that belongs to a line, by the hash of its predecessor.
        self._after: dict[str | None, int] = {
            line.sha256: line.seq + 1 for line in lines if line.seq is not None
        }

    def first_break(self, *, lines_only: bool = False) -> Break | None:
        """The first break in the order of the lines; None where the chain holds.

        `lines_only` asks nothing of the end, which could not be read.
        """
        for place in range(1, len(self._lines) + 1):
            broken = self._at(place)
            if broken is not None:
                return broken
        return None if lines_only else self._end()

    def notes(self) -> tuple[str, ...]:
        """What is remarkable and no break."""
        if self._head is None or self._head.count >= len(self._lines):
            return ()
        behind = len(self._lines) - self._head.count
        note = (
            f"head.json is {behind} row(s) behind: a writer was stopped after writing them; "
            "the next append brings it up to date"
        )
        return (note,)

    # --- one line

    def _at(self, place: int) -> Break | None:
        """The break at this place, counted from 1."""
        line = self._lines[place - 1]
        before = self._lines[place - 2].sha256 if place > 1 else genesis(self._directory.name)
        linked = line.prev == before
        if line.seq == place and linked and line.writer == self._directory.name:
            if line.fault is None:
                return None
            kind: BreakKind = "schema" if self._confirmed(place) else "row"
            return self._break(kind, line, f"row {place}: {line.fault}")
        if self._copies[line.sha256] > 1:
            return self._break("duplicate", line, f"row {line.seq} lies there more than once")
        following = self._line(place + 1)
        swapped = following is not None and line.prev == following.sha256
        if following and not swapped and (following.seq, following.prev) == (place, before):
            return self._surplus(line, place, linked=linked)
        return self._relabelled(line, place) if linked else self._unlinked(line, place)

    def _surplus(self, line: Facts, place: int, *, linked: bool) -> Break:
        """The next line continues the one before this: this one is one too many."""
        if (linked and line.seq == place) or self._has_rival(line):
            return self._fork(line)
        if self._distinct and line.seq is not None and line.seq == self._after.get(line.prev):
            return self._break(
                "order", line, f"row {line.seq} was moved: it stands where row {place} belongs"
            )
        return self._break(
            "inserted", line, f"a line that belongs to no chain stands before row {place}"
        )

    def _relabelled(self, line: Facts, place: int) -> Break:
        """It continues its predecessor, but calls itself another row or another writer's."""
        if line.writer != self._directory.name and self._confirmed(place):
            return self._break(
                "predecessor",
                line,
                f"row {place} was written by {line.writer!r} and lies in {self._directory.name!r}",
            )
        return self._break(
            "row", line, f"row {place} was edited: it calls itself row {line.seq} of {line.writer}"
        )

    def _unlinked(self, line: Facts, place: int) -> Break:
        """It does not continue the line before it, or says nothing of that."""
        if line.seq is None:
            return self._break("row", line, f"row {place} cannot be read: {line.fault}")
        return self._in_place(line, place) if line.seq == place else self._misplaced(line, place)

    def _in_place(self, line: Facts, place: int) -> Break:
        """It is the right row by number, and does not continue the line before it."""
        head = self._head
        first_of_all = place == 1
        head_confirms = (
            head is not None
            and head.count == place - 1
            and place > 1
            and head.sha256 == self._lines[place - 2].sha256
        )
        if head_confirms or (first_of_all and self._confirmed(place)):
            return self._break(
                "predecessor", line, f"row {place} does not continue what was written before it"
            )
        if first_of_all:
            return self._break("row", line, f"row {place} was edited")
        if not self._confirmed(place):
            return self._break(
                "row", line, f"row {place} was edited; nothing can tell whether the one before was"
            )
        edited = self._lines[place - 2]
        return self._break(
            "row", edited, f"row {place - 1} was edited: row {place} was written upon another"
        )

    def _misplaced(self, line: Facts, place: int) -> Break:
        """It neither continues the line before it nor has the number of its place."""
        if self._has_rival(line):
            return self._fork(line)
        if place in self._seqs and self._distinct:
            return self._break(
                "order",
                line,
                f"row {line.seq} stands where row {place} belongs; rows {place} and {line.seq} "
                "changed places",
            )
        if line.seq is not None and line.seq > place and place not in self._seqs:
            missing = str(place) if line.seq == place + 1 else f"{place} to {line.seq - 1}"
            return self._break("gap", line, f"row {missing} is missing before row {line.seq}")
        return self._break(
            "predecessor", line, f"expected row {place}, got row {line.seq}, which follows another"
        )

    def _fork(self, line: Facts) -> Break:
        return self._break(
            "fork",
            line,
            f"two different rows {line.seq} continue the same row: the writer id "
            f"{self._directory.name!r} was used by two clones. Keep one line of history here, "
            "and append the other's rows under a new writer id",
        )

    # --- the end

    def _end(self) -> Break | None:
        """The break between the last line and the head, if any."""
        found = len(self._lines)
        if self._head is None:
            if found == 0 and self._torn is None and self._head_fault is None:
                return None
            why = self._head_fault or "it is missing"
            return self._at_end("head", f"head.json: {why}; {found} rows were found")
        if self._torn is not None:
            return self._torn_end(self._torn, self._head)
        if found < self._head.count:
            return self._at_end("tail", f"head.json says {self._head.count} rows, found {found}")
        return self._against_head(self._head)

    def _against_head(self, head: Head) -> Break | None:
        """The break where the row that the head names is another."""
        found, line = len(self._lines), self._line(head.count)
        if line is None or line.sha256 == head.sha256:
            return None
        if found == head.count:
            return self._break("row", line, f"row {found} was edited: head.json knows another")
        return self._break(
            "fork", line, f"head.json knows another row {line.seq}: two clones wrote as this writer"
        )

    def _torn_end(self, torn: Stored, head: Head) -> Break:
        """The last piece has no end of line."""
        found = len(self._lines)
        offset = size = None
        kind: BreakKind = "tail"
        if hashlib.sha256(torn.data[:-1]).hexdigest() == head.sha256:
            kind, message = "row", f"row {found + 1}: its end of line was edited"
        elif found < head.count:
            message = f"head.json says {head.count} rows, found {found} and a part of the next"
        else:
            offset, size = torn.offset, len(torn.data)
            message = (
                f"the last {size} bytes are a row that was not written to its end and never "
                f"acknowledged; drop them: truncate -s {offset} {torn.file}"
            )
        return Break(
            kind=kind,
            file=str(torn.file),
            line=torn.line,
            seq=found + 1,
            message=message,
            drop_offset=offset,
            drop_bytes=size,
        )

    # --- helpers

    def _has_rival(self, line: Facts) -> bool:
        """Whether another line claims the same number after the same predecessor."""
        claim = (line.seq, line.prev)
        return any((other.seq, other.prev) == claim for other in self._lines if other is not line)

    def _line(self, place: int) -> Facts | None:
        return self._lines[place - 1] if 1 <= place <= len(self._lines) else None

    def _confirmed(self, place: int) -> bool:
        """Whether the successor, or for the last line the head, was written upon this line."""
        line, following = self._lines[place - 1], self._line(place + 1)
        if following is not None:
            return following.prev == line.sha256
        return self._head is not None and self._head.sha256 == line.sha256

    @staticmethod
    def _break(kind: BreakKind, line: Facts, message: str) -> Break:
        return Break(
            kind=kind, file=str(line.file), line=line.number, seq=line.seq, message=message
        )

    def _at_end(self, kind: BreakKind, message: str) -> Break:
        files = segments(self._directory)
        where = files[-1] if kind == "tail" and files else self._directory / HEAD
        return Break(kind=kind, file=str(where), line=None, seq=len(self._lines), message=message)
