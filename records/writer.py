"""Appending to one chain: all or nothing, durable, one process at a time."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bitgate.records.chain import (
    HEAD,
    Entry,
    Head,
    Header,
    Row,
    genesis,
    kind_of,
    make_head,
    read_head,
    read_header,
    segments,
    write_entry,
)
from bitgate.records.clock import utc_now
from bitgate.records.codec import SCHEMA, FormatError, canonical
from bitgate.records.durable import append_bytes, locked, make_directory, replace_file, unfit
from bitgate.records.errors import EnvironmentUnfit, LedgerBroken, UsageError
from bitgate.records.references import known_to, unfit_source
from bitgate.records.rows import Simulation
from bitgate.records.verify import chain_report, walk

if TYPE_CHECKING:
    from bitgate.records.ledger import Ledger

_TAIL_STEP_BYTES = 65_536


class Writer:
    """Appends to one chain. Several processes may hold the same writer: they wait for another."""

    def __init__(self, ledger: "Ledger", name: str) -> None:
        self.ledger = ledger
        self.name = name
        self._directory = ledger.root / name

    def append(self, row: Row) -> Entry[Row]:
        """Append one row; when this returns, the row is on the disk."""
        return self.append_many([row])[0]

    def append_many(self, rows: list[Row]) -> list[Entry[Row]]:
        """Append rows with one fsync: all of them, or none.

        Raises:
            UsageError: a simulation names a record that was not accepted before.
            LedgerBroken: the chain's end does not fit its head, and the chain does not verify; or
                a simulation's summary is not among the ledger's objects.
            EnvironmentUnfit: no room on disk, or another process holds the lock for too long.
        """
        if not rows:
            return []
        for row in rows:
            if isinstance(row, Simulation):
                self._require_sources(row)
        make_directory(self._directory)
        with locked(self._directory):
            count, prev, newest = self._tail()
            now = max(utc_now(), newest)
            lines: list[bytes] = []
            entries: list[Entry[Row]] = []
            for row in rows:
                header = Header(
                    created_at=now,
                    kind=kind_of(row),
                    prev=prev,
                    schema=SCHEMA,
                    seq=count + len(lines) + 1,
                    writer=self.name,
                )
                line, entry = write_entry(row, header)
                lines.append(line)
                entries.append(entry)
                prev = entry.sha256
            self._store(lines, make_head(count + len(lines), prev, self.name))
        return entries

    def _require_sources(self, simulation: Simulation) -> None:
        """What verification would name as a break is not written in the first place."""
        self.ledger.get(simulation.summary.sha256)
        known = known_to(self.ledger, simulation.record_ids)
        problem = unfit_source(simulation, known)
        if problem is not None:
            raise UsageError(
                f"nothing was appended: the simulation {simulation.name} takes its prices from a "
                f"record: {problem}"
            )

    def _tail(self) -> tuple[int, str, str]:
        """How many rows there are, the hash of the last, and its time."""
        try:
            head = read_head(self._directory)
        except FormatError:
            head = None
        files = segments(self._directory)
        if files and not files[-1].is_file():
            raise LedgerBroken(f"nothing was appended: {files[-1]} is not a regular file")
        if head is None and not files and not os.path.lexists(self._directory / HEAD):
            # The first head is written before the first row, so a missing head is always a break.
            self._write_head(make_head(0, genesis(self.name), self.name))
            return 0, genesis(self.name), ""
        last = _last_line(files[-1]) if files else None
        if head is not None and last is not None:
            # Only the end is looked at, so that an append costs the same in a long chain.
            sha256 = hashlib.sha256(last).hexdigest()
            if sha256 == head.sha256:
                return head.count, sha256, read_header(last).created_at
        report = chain_report(walk(self._directory))
        if report.broken is not None:
            raise LedgerBroken(
                f"nothing was appended: the chain of {self.name!r} does not verify. "
                f"{report.broken.kind}: {report.broken.message}"
            )
        time = read_header(last).created_at if last is not None else ""
        return report.rows, report.sha256, time

    def _store(self, lines: list[bytes], head: Head) -> None:
        """Append to the newest file, then replace the head; on any failure take it all back."""
        files = segments(self._directory)
        number = (head.count - len(lines)) // self.ledger.segment_rows + 1
        number = max(number, int(files[-1].stem)) if files else number
        path = self._directory / f"{number:04d}.jsonl"
        data = b"".join(line + b"\n" for line in lines)
        try:
            size = append_bytes(path, data)
        except OSError as error:
            raise unfit(error, path, len(data)) from error
        try:
            self._write_head(head)
        except EnvironmentUnfit:
            os.truncate(path, size)
            raise

    def _write_head(self, head: Head) -> None:
        # A head that is behind after a power failure is noted by verify and healed by an append.
        replace_file(self._directory / HEAD, canonical(head) + b"\n", sync_name=False)


def _last_line(file: Path) -> bytes | None:
    """The last whole line of a file without its end; None where it is empty or torn."""
    with file.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        start = end
        tail = b""
        while start > 0 and b"\n" not in tail[:-1]:
            start = max(0, start - _TAIL_STEP_BYTES)
            stream.seek(start)
            tail = stream.read(end - start)
    if not tail.endswith(b"\n"):
        return None
    return tail[:-1].rpartition(b"\n")[2]
