"""One line of a ledger, and the file layout of one writer's chain.

A line is canonical JSON with these keys, which RFC 8785 puts in this order:

    {"body":{...},"created_at":"...","kind":"record","prev":"<sha256>","schema":1,"seq":7,"writer":"w"}

`prev` is the SHA-256 of the line before, without its end of line, so a line's own hash covers the
whole history. Because `body` comes first, its stored bytes can be cut out and hashed as they are:
an entry's id never depends on who reads it.
"""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from bitgate.records.base import InvariantError, Value, require, require_sha256, require_utc
from bitgate.records.codec import SCHEMA, FormatError, canonical, decode
from bitgate.records.rows import Decision, Lane, Record, Simulation

Row = Lane | Record | Decision | Simulation
Kind = Literal["lane", "record", "decision", "simulation"]
R = TypeVar("R", bound=Row)
R_co = TypeVar("R_co", bound=Row, covariant=True)

HEAD = "head.json"
_KINDS: dict[Kind, type[Row]] = {
    "lane": Lane,
    "record": Record,
    "decision": Decision,
    "simulation": Simulation,
}
_SEGMENT = re.compile(r"[0-9]{1,9}\.jsonl")
_OPEN = b'{"body":'
_CLOSE = b',"created_at":"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Value):
    """A line without its body."""

    created_at: str
    kind: Kind
    prev: str
    schema: int
    seq: int
    writer: str

    def __post_init__(self) -> None:
        require_utc(self.created_at, "line: created_at")
        require_sha256(self.prev, "line: prev")
        require(self.seq > 0, f"line: seq counts from 1, got {self.seq}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[R_co]):
    """A row as it lies in the ledger.

    `sha256` is the hash of the stored line, `id` the hash of its body: the identity of a record.
    """

    schema: int
    seq: int
    prev: str
    writer: str
    created_at: str
    kind: Kind
    body: R_co
    sha256: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Value):
    """What a writer last acknowledged. `check` covers the rest, so an edited head is found."""

    count: int
    sha256: str
    writer: str
    check: str

    def __post_init__(self) -> None:
        require(self.count >= 0, f"head: count is {self.count}; expected >= 0")
        require_sha256(self.sha256, "head: sha256")
        require(
            self.count > 0 or self.sha256 == genesis(self.writer),
            "head: it counts no row and names one; the file was edited",
        )
        require(
            self.check == _head_check(self.count, self.sha256, self.writer),
            "head: its own check does not fit; the file was edited",
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of one line without its end of line, and where they lie; `line` counts from 1."""

    file: Path
    line: int
    offset: int
    data: bytes
    terminated: bool


def genesis(writer: str) -> str:
    """What the first line of a writer names as its predecessor."""
    return hashlib.sha256(f"bitgate ledger of {writer}".encode()).hexdigest()


def kind_of(row: Row) -> Kind:
    """The word for a row in its line."""
    return next(name for name, kind in _KINDS.items() if isinstance(row, kind))


def write_entry(row: R, header: Header) -> tuple[bytes, Entry[R]]:
    """The stored bytes of a row, without the end of line, and the entry that they hold.

    Raises:
        InvariantError: what would be written could not be read again as the same row.
    """
    body = canonical(row)
    try:
        same = decode(type(row), body, repeats=isinstance(row, Record)) == row
    except FormatError as error:
        raise InvariantError(f"refused to write what cannot be read again: {error}") from None
    require(same, f"refused to write a {header.kind} that reads back as another")
    line = _OPEN + body + b"," + canonical(header)[1:]
    return line, _entry(row, header, line, body)


def read_header(line: bytes) -> Header:
    """The header of a stored line; raises FormatError."""
    _, end = _body_span(line)
    return decode(Header, b"{" + line[end + 1 :])


def row_id(line: bytes) -> str:
    """The id of the row in a stored line, without reading the row; raises FormatError."""
    start, end = _body_span(line)
    return hashlib.sha256(line[start:end]).hexdigest()


def read_entry(line: bytes, header: Header | None = None) -> Entry[Row]:
    """The whole entry of a stored line, whose header may be known; raises FormatError."""
    start, end = _body_span(line)
    if header is None:
        header = read_header(line)
    body = line[start:end]
    repeats = header.kind == "record"
    row = decode(_KINDS[header.kind], body, schema=header.schema, repeats=repeats)
    return _entry(row, header, line, body)


def is_canonical(line: bytes, entry: Entry[Row]) -> bool:
    """Whether the line is byte for byte what this version writes for the entry it was read as."""
    if entry.schema != SCHEMA:
        return True  # an older format's own canonical form; its bytes are covered by the chain
    header = Header(
        created_at=entry.created_at,
        kind=entry.kind,
        prev=entry.prev,
        schema=entry.schema,
        seq=entry.seq,
        writer=entry.writer,
    )
    return _OPEN + canonical(entry.body) + b"," + canonical(header)[1:] == line


def _entry(row: R, header: Header, line: bytes, body: bytes) -> Entry[R]:
    return Entry(
        schema=header.schema,
        seq=header.seq,
        prev=header.prev,
        writer=header.writer,
        created_at=header.created_at,
        kind=header.kind,
        body=row,
        sha256=hashlib.sha256(line).hexdigest(),
        id=hashlib.sha256(body).hexdigest(),
    )


def _body_span(line: bytes) -> tuple[int, int]:
    if line.endswith(b"\r"):
        raise FormatError(
            "line: it ends in CR LF; something converted the ends of lines, and they are hashed"
        )
    end = line.rfind(_CLOSE)
    if not line.startswith(_OPEN) or end < 0:
        raise FormatError("line: expected a ledger line, which begins with " + _OPEN.decode())
    return len(_OPEN), end


# --- files ---------------------------------------------------------------------------------------


def segments(directory: Path) -> list[Path]:
    """The chain's files in order."""
    files = (path for path in directory.iterdir() if _SEGMENT.fullmatch(path.name))
    return sorted(files, key=lambda path: (int(path.stem), path.name))


def stored_lines(directory: Path) -> Iterator[Stored]:
    """All lines of a chain in order; a piece without its end of line has `terminated` False.

    Raises:
        OSError: a file cannot be read, or is none; it names the file.
    """
    for file in segments(directory):
        if not file.is_file():  # a directory, a pipe, a link that leads nowhere
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        offset = 0
        with file.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                terminated = raw.endswith(b"\n")
                yield Stored(file, number, offset, raw[: len(raw) - terminated], terminated)
                offset += len(raw)


def make_head(count: int, sha256: str, writer: str) -> Head:
    """A head with its check."""
    return Head(count=count, sha256=sha256, writer=writer, check=_head_check(count, sha256, writer))


def read_head(directory: Path) -> Head | None:
    """The head of a chain; None where there is none.

    Raises:
        FormatError: it is damaged, or is no file that can be read.
    """
    path = directory / HEAD
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise FormatError("it is not a regular file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"it cannot be read: {error.strerror}") from error
    head = decode(Head, data)
    if data != canonical(head) + b"\n":
        raise FormatError("it is not what a writer writes; the file was edited")
    return head


def _head_check(count: int, sha256: str, writer: str) -> str:
    return hashlib.sha256(f"head of {writer}: {count} {sha256}".encode()).hexdigest()
