"""The ledger: append-only rows in plain files that git can merge, one chain per writer.

    ROOT/<writer>/0001.jsonl   one row a line (records.chain), 10,000 lines a file
    ROOT/<writer>/head.json    how many rows were acknowledged, and the hash of the last
    ROOT/objects/ab/<sha256>   evidence, by content
    ROOT/.writer               this clone's own writer id; not shared through git

A writer appends under a lock: read the tail, append, fsync, replace the head. A crash at any point
leaves a chain that verifies, or whose torn last bytes `verify` names.
"""

import hashlib
import heapq
import os
import platform
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from bitgate.records.chain import (
    HEAD,
    Entry,
    Head,
    Header,
    Kind,
    Row,
    Stored,
    genesis,
    read_entry,
    read_head,
    read_header,
    row_id,
    segments,
    stored_lines,
)
from bitgate.records.codec import FormatError
from bitgate.records.durable import locked, reading, replace_file
from bitgate.records.errors import EnvironmentUnfit, LedgerBroken, UsageError
from bitgate.records.objects import ObjectError, ObjectStore
from bitgate.records.proof import Evidence
from bitgate.records.references import broken_names
from bitgate.records.rows import Decision, Lane, Record, Simulation
from bitgate.records.verify import (
    ChainReport,
    VerifyReport,
    Walk,
    against_noted,
    chain_report,
    parse_noted,
    walk,
)
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
            LedgerBroken: a line cannot be read, or does not continue the one before it.
        """
        return self._merged()

    def records(self, ids: Collection[str] | None = None) -> Iterator[Entry[Record]]:
        """The rows that are records, or those of them that have one of the `ids`."""
        return cast("Iterator[Entry[Record]]", self._merged("record", ids=ids))

    def lanes(self) -> Iterator[Entry[Lane]]:
        """The rows that declare lanes."""
        return cast("Iterator[Entry[Lane]]", self._merged("lane"))

    def decisions(self) -> Iterator[Entry[Decision]]:
        """The rows that are decisions."""
        return cast("Iterator[Entry[Decision]]", self._merged("decision"))

    def simulations(self) -> Iterator[Entry[Simulation]]:
        """The rows that are simulations."""
        return cast("Iterator[Entry[Simulation]]", self._merged("simulation"))

    def find(self, id_prefix: str) -> Entry[Record]:
        """The one record whose id begins so; UsageError where there is none, or several."""
        return cast("Entry[Record]", self._find(id_prefix, "record"))

    def look_up(self, id_prefix: str) -> Entry[Record] | Entry[Simulation]:
        """The one record or simulation whose id begins so; UsageError as `find`."""
        found = self._find(id_prefix, "record", "simulation")
        return cast("Entry[Record] | Entry[Simulation]", found)

    def _find(self, id_prefix: str, *kinds: Kind) -> Entry[Row]:
        # A whole id is looked up without reading the rows of the others.
        ids = (id_prefix,) if len(id_prefix) == 64 else None
        rows = self._merged(*kinds, ids=ids)
        found = {entry.id: entry for entry in rows if entry.id.startswith(id_prefix)}
        if len(found) == 1 and id_prefix:
            return next(iter(found.values()))
        if not found:
            raise UsageError(
                f"no {' or '.join(kinds)}'s id begins with {id_prefix!r} in {self.root}; "
                "`bitgate records list` shows the ids"
            )
        matches = ", ".join(identity[:16] for identity in sorted(found)[:8])
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
        try:
            return sorted(
                path
                for path in self.root.iterdir()
                if path.is_dir()
                and path.name != "objects"
                and (segments(path) or os.path.lexists(path / HEAD))
            )
        except OSError as error:
            raise EnvironmentUnfit(
                f"cannot read the ledger: {error.filename}: {error.strerror}"
            ) from error

    def heads(self) -> list[Head]:
        """What each writer last acknowledged; a line to note elsewhere."""
        found = [self._head(directory) for directory in self.writer_directories()]
        return [head for head in found if head is not None]

    def verify(self, *, strict: bool = False, noted: Iterable[str] = ()) -> VerifyReport:
        """Verify every chain and every object; `strict` also asks for canonical form.

        `noted` are lines of `records head` from elsewhere: WRITER COUNT SHA256.
        """
        expected = [parse_noted(line) for line in noted]
        walks: list[Walk] = []
        chains: list[ChainReport] = []
        for directory in self.writer_directories():
            with reading(directory):
                walks.append(walk(directory, strict=strict))
                chains.append(chain_report(walks[-1], self._objects.get))
        if all(chain.broken is None for chain in chains):
            broken = broken_names((line for walked in walks for line in walked.lines), self)
            chains = [replace(chain, broken=broken.get(chain.writer)) for chain in chains]
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

    def _merged(self, *kinds: Kind, ids: Collection[str] | None = None) -> Iterator[Entry[Row]]:
        """The rows of all chains in the order of their times; see `_read`."""
        chains = [self._read(directory, kinds, ids) for directory in self.writer_directories()]
        return heapq.merge(*chains, key=lambda entry: (entry.created_at, entry.writer, entry.seq))

    def _read(
        self, directory: Path, kinds: tuple[Kind, ...], ids: Collection[str] | None
    ) -> Iterator[Entry[Row]]:
        """The rows of one chain, or those of some `kinds` that have one of the `ids`.

        Every line is hashed and must continue the one before it, whether its row is wanted or not.
        """
        head = self._readable_head(directory)
        before, rows = genesis(directory.name), 0
        for stored in self._stored(directory):
            rows += 1
            header, entry = self._look(stored, kinds, ids)
            if (header.seq, header.prev, header.writer) != (rows, before, directory.name):
                raise self._unreadable(stored, "it does not continue the line before it")
            before = hashlib.sha256(stored.data).hexdigest()
            if head is not None and head.count == rows and head.sha256 != before:
                raise self._unreadable(stored, "head.json knows another line here")
            if entry is not None:
                yield entry
        if head is not None and rows < head.count:
            raise LedgerBroken(
                f"{directory / HEAD} counts {head.count} rows, found {rows}. "
                f"`bitgate records verify --ledger {self.root}` names the break"
            )

    def _stored(self, directory: Path) -> Iterator[Stored]:
        """The lines of a chain, up to one that another process is writing at this moment."""
        try:
            for stored in stored_lines(directory):
                if not stored.terminated and not self._torn(directory, stored):
                    return
                yield stored
        except OSError as error:
            raise LedgerBroken(
                f"cannot read the ledger: {error.filename}: {error.strerror}. "
                f"`bitgate records verify --ledger {self.root}` names the break"
            ) from error

    def _look(
        self, stored: Stored, kinds: tuple[Kind, ...], ids: Collection[str] | None
    ) -> tuple[Header, Entry[Row] | None]:
        """A line's header, and its row where that is wanted."""
        try:
            header = read_header(stored.data)
            wanted = not kinds or header.kind in kinds
            wanted = wanted and (ids is None or row_id(stored.data) in ids)
            entry = read_entry(stored.data, header) if wanted else None
        except FormatError as error:
            raise self._unreadable(stored, str(error)) from error
        if not stored.terminated:
            raise self._unreadable(stored, "it was not written to its end")
        return header, entry

    @staticmethod
    def _torn(directory: Path, stored: Stored) -> bool:
        """Whether a piece without its end of line is still one when no writer is at work."""
        with reading(directory), stored.file.open("rb") as stream:
            stream.seek(stored.offset)
            line = stream.readline()
        return line != b"" and not line.endswith(b"\n")

    @staticmethod
    def _readable_head(directory: Path) -> Head | None:
        """The head as it was before the rows are read; what is wrong with it `verify` says."""
        try:
            head = read_head(directory)
        except FormatError:
            return None
        return head if head is not None and head.writer == directory.name else None

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
            if not os.path.lexists(path):
                replace_file(path, text.encode(), suffix=f".{os.getpid()}.tmp")

    def _own_name(self) -> str:
        """This clone's writer id. A copied directory gets another, so that chains never fork."""
        path, node = self.root / ".writer", platform.node()
        place = f"{node}:{self.root.resolve()}"
        with locked(self.root):
            try:
                noted = path.read_bytes().decode("utf-8", "replace")
            except FileNotFoundError:
                noted = ""
            except OSError as error:
                raise EnvironmentUnfit(
                    f"cannot read this clone's writer id: {path}: {error.strerror}"
                ) from error
            name, _, known = noted.strip().partition(" ")
            if known == place and _NAME.fullmatch(name):
                return name
            slug = re.sub(r"[^a-z0-9-]+", "-", node.lower()).strip("-")[:40] or "node"
            name = f"{slug}-{secrets.token_hex(4)}"
            replace_file(path, f"{name} {place}\n".encode())
        return name
