"""Does a writer's chain hold? Reports, and the walk over the stored bytes.

The stored bytes are hashed, never a re-encoding. Tamper-evident, not tamper-proof: somebody who
recomputes a whole chain and its head is found only against a head that was noted elsewhere.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bitgate.records.base import InvariantError
from bitgate.records.chain import (
    Head,
    Row,
    Stored,
    genesis,
    is_canonical,
    make_head,
    read_entry,
    read_header,
    segments,
    stored_lines,
)
from bitgate.records.codec import FormatError, is_json
from bitgate.records.diagnosis import Break, Diagnosis, Facts, judged
from bitgate.records.errors import UsageError
from bitgate.records.objects import ObjectError
from bitgate.records.proof import Evidence
from bitgate.records.rows import Lane, Record, Simulation

_NOTED = re.compile(r"([a-z0-9][a-z0-9._-]{0,63})\s+([0-9]{1,15})\s+([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """One writer's answer: how many rows, the hash of the last, the first break, notes."""

    writer: str
    rows: int
    sha256: str
    broken: Break | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The answer for a whole ledger."""

    chains: tuple[ChainReport, ...]

    @property
    def rows(self) -> int:
        """How many rows were verified; zero verifies nothing."""
        return sum(chain.rows for chain in self.chains)

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The first break of each broken chain."""
        return tuple(chain.broken for chain in self.chains if chain.broken is not None)

    @property
    def ok(self) -> bool:
        """True only if there was at least one row and nothing is broken."""
        return self.rows > 0 and not self.breaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The lines of one chain as they were read, a torn last piece, and why reading ended early.

    `objects` holds each piece of evidence that the rows name, with the first line that names it.
    """

    directory: Path
    lines: list[Facts]
    objects: dict[Evidence, Facts]
    torn: Stored | None
    unreadable: OSError | None


def walk(directory: Path, *, strict: bool = False) -> Walk:
    """Read every line of a chain; `strict` also asks for canonical form."""
    lines: list[Facts] = []
    objects: dict[Evidence, Facts] = {}
    torn: Stored | None = None
    unreadable: OSError | None = None
    try:
        last = segments(directory)[-1:]
        for stored in stored_lines(directory):
            if not stored.terminated and [stored.file] == last:
                torn = stored
            else:
                line, named = _look(stored, strict=strict)
                lines.append(line)
                for evidence in named:
                    objects.setdefault(evidence, line)
    except OSError as error:
        unreadable = error
    return Walk(directory=directory, lines=lines, objects=objects, torn=torn, unreadable=unreadable)


def chain_report(walked: Walk, get: Callable[[str], bytes] | None = None) -> ChainReport:
    """Does the chain that was walked hold? With `get`, also each object that its rows name.

    `get` returns the bytes of an object by its SHA-256 or raises ObjectError.
    """
    directory, lines, unreadable = walked.directory, walked.lines, walked.unreadable
    diagnosis = Diagnosis(directory, lines, walked.torn)
    broken = diagnosis.first_break(lines_only=unreadable is not None)
    if broken is None and unreadable is not None:
        broken = _unreadable(directory, len(lines), unreadable)
    if broken is None and get is not None:
        broken = _first_bad_object(walked.objects, get)
    return ChainReport(
        writer=directory.name,
        rows=len(lines),
        sha256=lines[-1].sha256 if lines else genesis(directory.name),
        broken=broken,
        notes=diagnosis.notes(),
    )


def _unreadable(directory: Path, rows: int, error: OSError) -> Break:
    file = str(error.filename or directory)
    return Break(
        kind="file",
        file=file,
        line=None,
        seq=rows + 1,
        message=f"what follows row {rows} cannot be read: {file}: {error.strerror}",
    )


def _look(stored: Stored, *, strict: bool) -> tuple[Facts, tuple[Evidence, ...]]:
    """What a line says as far as it can be read, and the evidence that it names."""
    file, number = stored.file, stored.line
    unended = None if stored.terminated else "its end of line is missing"
    try:
        entry = read_entry(stored.data)
    except FormatError as error:
        seq, prev, writer = _claims(stored.data)
        sha256 = hashlib.sha256(stored.data).hexdigest()
        claimed = None if unended else seq
        return Facts(file, number, sha256, claimed, prev, writer, unended or str(error)), ()
    fault = unended
    if fault is None and strict and not is_canonical(stored.data, entry):
        fault = "it is not in canonical form (RFC 8785)"
    seq, row = None if unended else entry.seq, entry.body
    line = Facts(
        file,
        number,
        entry.sha256,
        seq,
        entry.prev,
        entry.writer,
        fault,
        id=entry.id,
        said=judged(row) if isinstance(row, Record) else None if isinstance(row, Lane) else row,
    )
    return line, _evidence(row)


def _claims(line: bytes) -> tuple[int | None, str | None, str | None]:
    """The seq, prev and writer of a line whose body cannot be read."""
    try:
        header = read_header(line)
    except FormatError:
        return None, None, None
    # Two lines that ran together show the header of the second.
    return (header.seq, header.prev, header.writer) if is_json(line) else (None, None, None)


def _evidence(row: Row) -> tuple[Evidence, ...]:
    if isinstance(row, Simulation):
        return (row.summary,)
    if not isinstance(row, Record):
        return ()
    found = (result.evidence for result in row.verdict.results)
    return tuple(evidence for evidence in found if evidence is not None)


def _first_bad_object(objects: dict[Evidence, Facts], get: Callable[[str], bytes]) -> Break | None:
    for evidence, line in objects.items():
        try:
            size = len(get(evidence.sha256))
        except (ObjectError, OSError) as error:
            problem = str(error)
        else:
            if size == evidence.size_bytes:
                continue
            problem = f"expected {evidence.size_bytes} bytes, got {size}"
        return Break(
            kind="object",
            file=str(line.file),
            line=line.number,
            seq=line.seq,
            message=f"row {line.seq} names evidence {evidence.sha256}: {problem}",
        )
    return None


def parse_noted(line: str) -> Head:
    """The head that a line of `records head` holds: WRITER COUNT SHA256; raises UsageError."""
    found = _NOTED.fullmatch(line.strip())
    try:
        if found is not None:
            return make_head(int(found[2]), found[3], found[1])
    except InvariantError as error:
        raise UsageError(f"no line of `records head`: {error}; got {line!r:.200}") from None
    raise UsageError(f"expected a line of `records head`: WRITER COUNT SHA256, got {line!r:.200}")


def against_noted(
    root: Path, chains: Iterable[ChainReport], noted: Iterable[Head]
) -> tuple[ChainReport, ...]:
    """The reports, broken where a head that was noted elsewhere names a row that is not there."""
    reports = {chain.writer: chain for chain in chains}
    for head in noted:
        empty = ChainReport(writer=head.writer, rows=0, sha256=genesis(head.writer), broken=None)
        report = reports.setdefault(head.writer, empty)
        if report.broken is None and not _holds(root / head.writer, head):
            message = (
                f"the noted head names another row {head.count}: the chain was rewritten or cut"
            )
            broken = Break(
                kind="head",
                file=str(root / head.writer),
                line=None,
                seq=head.count,
                message=message,
            )
            reports[head.writer] = replace(report, broken=broken)
    return tuple(reports.values())


def _holds(directory: Path, head: Head) -> bool:
    """Whether the chain has the noted row at its place."""
    if head.count == 0:
        return True
    if not directory.is_dir():
        return False
    for place, stored in enumerate(stored_lines(directory), 1):
        if place == head.count:
            return hashlib.sha256(stored.data).hexdigest() == head.sha256
    return False
