"""The ledger: append-only rows in plain files that git can merge, one chain per writer.

    ROOT/<writer>/0001.jsonl   one row a line (records.chain), 10,000 lines a file
    ROOT/<writer>/head.json    how many rows were acknowledged, and the hash of the last
    ROOT/objects/ab/<sha256>   evidence, by content
    ROOT/.writer               this clone's own writer id; not shared through git

A writer appends under a lock: read the tail, append, fsync, replace the head. A crash at any point
leaves a chain that verifies, or whose torn last bytes `verify` names.
"""

import heapq
import os
import platform
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from bitgate.records.chain import (
    HEAD,
    Entry,
    Head,
    Row,
    Stored,
    read_entry,
    read_head,
    segments,
    stored_lines,
)
from bitgate.records.codec import FormatError
from bitgate.records.durable import locked, reading, replace_file
from bitgate.records.errors import LedgerBroken, UsageError
from bitgate.records.objects import ObjectError, ObjectStore
from bitgate.records.proof import Evidence
from bitgate.records.rows import Decision, Lane, Record
from bitgate.records.verify import VerifyReport, against_noted, parse_noted, verify_chain
from bitgate.records.writer import Writer

__all__ = ["Ledger", "Writer", "Entry", "Row", "VerifyReport"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Ledger:
    """Rows and evidence below `root`. Reading needs the directory, writing creates it."""

    def __init__(self, root: Path, *, segment_rows: int = 10_000) -> None:
        self.root = root
        self.segment_rows = segment_rows
        self._objects = ObjectStore(root / "objects")

    # --- reading

    def entries(self) -> Iterator[Entry[Row]]:
        """All rows in the order of their times.

        Raises:
            UsageError: there is no such directory.
            LedgerBroken: a line cannot be read.
        """
        chains = [self._read(directory) for directory in self.writer_directories()]
        return heapq.merge(*chains, key=lambda entry: (entry.created_at, entry.writer, entry.seq))

    def records(self) -> Iterator[Entry[Record]]:
        """The rows that are records."""
        return (cast("Entry[Record]", entry) for entry in self.entries() if entry.kind == "record")

    def lanes(self) -> Iterator[Entry[Lane]]:
        """The rows that declare lanes."""
        return (cast("Entry[Lane]", entry) for entry in self.entries() if entry.kind == "lane")

    def decisions(self) -> Iterator[Entry[Decision]]:
        """The rows that are decisions."""
        return (
            cast("Entry[Decision]", entry) for entry in self.entries() if entry.kind == "decision"
        )

    def find(self, id_prefix: str) -> Entry[Record]:
        """The one record whose id begins so; UsageError where there is none, or several."""
        found = {entry.id: entry for entry in self.records() if entry.id.startswith(id_prefix)}
        if len(found) == 1:
            return next(iter(found.values()))
        if not found:
            raise UsageError(
                f"no record's id begins with {id_prefix!r} in {self.root}; "
                "`bitgate records list` shows the ids"
            )
        matches = ", ".join(identity[:16] for identity in sorted(found))
        raise UsageError(f"{id_prefix!r} is not unique: {matches}; give more digits")

    def put(self, data: bytes, media: str) -> Evidence:
        """Store evidence durably and return its identity; see ObjectStore.put."""
        self._create()
        try:
            return self._objects.put(data, media)
        except ObjectError as error:
            raise LedgerBroken(str(error)) from error

    def get(self, sha256: str) -> bytes:
        """The bytes of a piece of evidence; LedgerBroken where it is missing or was changed."""
        try:
            return self._objects.get(sha256)
        except (ObjectError, OSError) as error:
            raise LedgerBroken(str(error)) from error

    def writer_directories(self) -> list[Path]:
        """The directories that hold a chain; UsageError where the ledger does not exist."""
        if not self.root.is_dir():
            raise UsageError(
                f"no ledger at {self.root}: expected a directory; name another with --ledger DIR"
            )
        return sorted(
            path
            for path in self.root.iterdir()
            if path.is_dir()
            and path.name != "objects"
            and (segments(path) or (path / HEAD).exists())
        )

    def heads(self) -> list[Head]:
        """What each writer last acknowledged; a line to note elsewhere."""
        found = [self._head(directory) for directory in self.writer_directories()]
        return [head for head in found if head is not None]

    def verify(self, *, strict: bool = False, noted: Iterable[str] = ()) -> VerifyReport:
        """Verify every chain and every object; `strict` also asks for canonical form.

        `noted` are lines of `records head` from elsewhere: WRITER COUNT SHA256.
        """
        expected = [parse_noted(line) for line in noted]
        chains = []
        for directory in self.writer_directories():
            with reading(directory):
                chains.append(verify_chain(directory, strict=strict, get=self._objects.get))
        return VerifyReport(chains=against_noted(self.root, chains, expected))

    # --- writing

    def writer(self, name: str | None = None) -> Writer:
        """A writer of one chain; without a name, this clone's own.

        Raises:
            UsageError: the name is not usable as a directory.
        """
        self._create()
        name = self._own_name() if name is None else name
        if not _NAME.fullmatch(name) or name == "objects":
            raise UsageError(
                f"writer id {name!r}: expected lower-case letters, digits, '.', '_' and '-', "
                "and not 'objects'"
            )
        return Writer(self, name)

    def _read(self, directory: Path) -> Iterator[Entry[Row]]:
        for stored in stored_lines(directory):
            try:
                entry = read_entry(stored.data)
            except FormatError as error:
                raise self._unreadable(stored, str(error)) from error
            if not stored.terminated:
                raise self._unreadable(stored, "it was not written to its end")
            yield entry

    def _unreadable(self, stored: Stored, why: str) -> LedgerBroken:
        return LedgerBroken(
            f"{stored.file}, line {stored.line}: {why}. "
            f"`bitgate records verify --ledger {self.root}` names the break"
        )

    def _head(self, directory: Path) -> Head | None:
        try:
            return read_head(directory)
        except FormatError as error:
            raise LedgerBroken(f"{directory / HEAD}: {error}") from error

    def _create(self) -> None:
        """Make the directory, and tell git what to leave alone."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create the ledger {self.root}: {error.strerror}") from error
        for name, text in (
            (".gitignore", ".writer\n.lock\n*.tmp\n"),
            # Lines are hashed as stored: no change of line ends, and no merge within a chain.
            (".gitattributes", "*.jsonl -text -merge\nhead.json -text -merge\nobjects/** -text\n"),
        ):
            path = self.root / name
            if not path.exists():
                replace_file(path, text.encode(), suffix=f".{os.getpid()}.tmp")

    def _own_name(self) -> str:
        """This clone's writer id. A copied directory gets another, so that chains never fork."""
        path, node = self.root / ".writer", platform.node()
        place = f"{node}:{self.root.resolve()}"
        with locked(self.root):
            if path.exists():
                name, _, known = path.read_text().strip().partition(" ")
                if known == place:
                    return name
            slug = re.sub(r"[^a-z0-9-]+", "-", node.lower()).strip("-")[:40] or "node"
            name = f"{slug}-{secrets.token_hex(4)}"
            replace_file(path, f"{name} {place}\n".encode())
        return name
