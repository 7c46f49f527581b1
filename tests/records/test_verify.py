"""Each kind of damage is found, told apart from the others, and placed."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.records.chain import HEAD, Header, genesis, make_head, read_entry, write_entry
from bitgate.records.codec import SCHEMA, canonical
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.verify import Break, chain_report, walk

ROWS = 7


@pytest.fixture
def chain(ledger, make) -> Path:
    """A chain of seven lanes, three a file."""
    ledger.segment_rows = 3
    writer = ledger.writer("a")
    for number in range(1, ROWS + 1):
        writer.append(make["lane"](id=f"lane {number}"))
    return ledger.root / "a"


def read_lines(chain: Path) -> list[bytes]:
    return [
        line for file in sorted(chain.glob("*.jsonl")) for line in file.read_bytes().splitlines()
    ]


def write_entrys(chain: Path, lines: list[bytes]) -> None:
    """Put the lines into one file; where a line lies is not part of the chain."""
    for file in chain.glob("*.jsonl"):
        file.unlink()
    (chain / "0001.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def first_break(ledger: Ledger, *, strict: bool = False) -> Break:
    report = ledger.verify(strict=strict)
    assert not report.ok
    (found,) = report.breaks
    return found


def rewritten(line: bytes, **changes: object) -> bytes:
    """The line of an entry with another header or body."""
    entry = read_entry(line)
    names = ("created_at", "kind", "prev", "schema", "seq", "writer")
    facts = {name: getattr(entry, name) for name in names} | changes
    body = facts.pop("body", entry.body)
    return write_entry(body, Header(**facts))[0]


def test_an_untouched_chain_verifies(ledger, chain):
    report = ledger.verify(strict=True)
    assert report.ok
    assert report.rows == ROWS
    write_entrys(chain, read_lines(chain))
    assert ledger.verify(strict=True).ok


@pytest.mark.parametrize("place", range(1, ROWS + 1))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"id":"lane', b'"id":"Lane'),
        (b'"kind":"lane"', b'"kind":"lanes"'),
        (b'"prev":"', b'"prev":"0'),
        (b'"schema":2', b'"schema":3'),
        (b'"seq":', b'"seq":1'),
        (b'"writer":"a"', b'"writer":"b"'),
        (b'{"body"', b'{ "body"'),
        (b"}", b"}\n"),
        (b'"created_at":"2', b'"created_at":"3'),
    ],
)
def test_an_edited_line_is_named(ledger, chain, place, old, new):
    lines = read_lines(chain)
    assert old in lines[place - 1]
    lines[place - 1] = lines[place - 1].replace(old, new, 1)
    write_entrys(chain, lines)
    found = first_break(ledger)
    assert (found.kind, found.line) == ("row", place)


def test_any_edited_byte_of_any_line_is_named(ledger, chain):
    original = read_lines(chain)
    stream = b"".join(line + b"\n" for line in original)
    starts = [sum(len(line) + 1 for line in original[:place]) for place in range(ROWS)]
    write_entrys(chain, original)
    file = chain / "0001.jsonl"

    @given(position=st.integers(0, len(stream) - 1), flip=st.integers(1, 255))
    def check(position: int, flip: int) -> None:
        place = max(place for place, start in enumerate(starts, 1) if start <= position)
        edited = bytearray(stream)
        edited[position] ^= flip
        file.write_bytes(edited)
        found = chain_report(walk(chain)).broken
        assert found is not None
        assert (found.kind, found.line) == ("row", place), found

    check()


@pytest.mark.slow
def test_every_single_byte_of_every_line(ledger, chain):
    original = read_lines(chain)
    write_entrys(chain, original)
    file = chain / "0001.jsonl"
    stream = file.read_bytes()
    place = 1
    for position, byte in enumerate(stream):
        for flip in (1, 0x20, 0x80):
            edited = bytearray(stream)
            edited[position] = byte ^ flip
            file.write_bytes(edited)
            found = chain_report(walk(chain)).broken
            assert found is not None, (position, flip)
            assert (found.kind, found.line) == ("row", place), (position, flip, found)
        place += byte == ord("\n")


@pytest.mark.parametrize("place", range(1, ROWS))
def test_a_removed_line_is_a_gap(ledger, chain, place):
    lines = read_lines(chain)
    del lines[place - 1]
    write_entrys(chain, lines)
    found = first_break(ledger)
    assert (found.kind, found.line, found.seq) == ("gap", place, place + 1)
    assert f"row {place} is missing" in found.message


def test_a_removed_file_is_a_gap(ledger, chain):
    (chain / "0002.jsonl").unlink()
    found = first_break(ledger)
    assert found.kind == "gap"
    assert "row 4 to 6 is missing before row 7" in found.message


@pytest.mark.parametrize("kept", range(ROWS))
def test_removed_lines_at_the_end_are_a_tail(ledger, chain, kept):
    write_entrys(chain, read_lines(chain)[:kept])
    found = first_break(ledger)
    assert found.kind == "tail"
    assert f"head.json says {ROWS} rows, found {kept}" in found.message
    assert found.drop_bytes is None


def test_a_last_line_cut_in_the_middle_is_a_tail(ledger, chain):
    lines = read_lines(chain)
    write_entrys(chain, lines)
    file = chain / "0001.jsonl"
    size = file.stat().st_size
    for cut in (1, 2, 50, len(lines[-1])):
        os.truncate(file, size - cut)
        found = first_break(ledger)
        assert (found.kind, found.line) == ("tail", ROWS)
        assert f"head.json says {ROWS} rows, found {ROWS - 1} and a part" in found.message
        write_entrys(chain, lines)


@pytest.mark.parametrize("size", [1, 40, 300])
def test_a_row_that_was_never_acknowledged_names_the_bytes_to_drop(ledger, chain, size):
    file = chain / "0003.jsonl"
    good = file.stat().st_size
    piece = rewritten(read_lines(chain)[-1], seq=ROWS + 1)[:size]
    with file.open("ab") as stream:
        stream.write(piece)
    found = first_break(ledger)
    assert (found.kind, found.file, found.seq) == ("tail", str(file), ROWS + 1)
    assert (found.drop_offset, found.drop_bytes) == (good, size)
    os.truncate(file, found.drop_offset)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), (3, 4), (6, 7), (1, 7), (2, 5), (3, 7), (1, 3), (5, 7)]
)
def test_lines_that_changed_places_are_named(ledger, chain, one, other):
    lines = read_lines(chain)
    lines[one - 1], lines[other - 1] = lines[other - 1], lines[one - 1]
    write_entrys(chain, lines)
    found = first_break(ledger)
    assert (found.kind, found.line, found.seq) == ("order", one, other)
    assert f"rows {one} and {other} changed places" in found.message


@pytest.mark.parametrize(("which", "before"), [(1, 2), (3, 3), (3, 6), (5, 2), (7, 8), (7, 1)])
def test_a_duplicated_line_is_named(ledger, chain, which, before):
    lines = read_lines(chain)
    lines.insert(before - 1, lines[which - 1])
    write_entrys(chain, lines)
    found = first_break(ledger)
    assert (found.kind, found.seq) == ("duplicate", which)


@pytest.mark.parametrize("place", range(1, ROWS + 1))
@pytest.mark.parametrize("build", ["foreign", "altered copy", "garbage"])
def test_an_inserted_line_is_named(ledger, chain, place, build):
    lines = read_lines(chain)
    extra: dict[str, Callable[[], bytes]] = {
        "foreign": lambda: rewritten(lines[0], seq=place, prev="0" * 64),
        "altered copy": lambda: rewritten(lines[2], created_at="2026-01-01T00:00:00Z"),
        "garbage": lambda: b"{}",
    }
    lines.insert(place - 1, extra[build]())
    write_entrys(chain, lines)
    found = first_break(ledger)
    if build == "altered copy":  # it claims to be row 3, as row 3 itself does
        assert (found.kind, found.line) == ("fork", 4 if place == 3 else place)
    else:
        assert (found.kind, found.line) == ("inserted", place)


def test_a_line_added_at_the_end_must_continue_the_last(ledger, chain):
    lines = read_lines(chain)
    write_entrys(chain, [*lines, rewritten(lines[-1], seq=ROWS + 1, prev="0" * 64)])
    found = first_break(ledger)
    assert (found.kind, found.line) == ("predecessor", ROWS + 1)


@pytest.mark.parametrize("repaired", [2, 3, 6])
def test_an_edit_with_its_successor_repaired_still_fails(ledger, chain, repaired, make):
    lines = read_lines(chain)
    lines[repaired - 2] = rewritten(lines[repaired - 2], body=make["lane"](id="better"))
    edited = read_entry(lines[repaired - 2]).sha256
    lines[repaired - 1] = rewritten(lines[repaired - 1], prev=edited)
    write_entrys(chain, lines)
    found = first_break(ledger)
    assert (found.kind, found.line) == ("row", repaired)


def rebuilt(lines: list[bytes], chain: Path, make) -> None:
    """The whole chain with a better first row, every hash and the head recomputed."""
    prev = genesis("a")
    for place, line in enumerate(lines):
        body = make["lane"](id="better") if place == 0 else read_entry(line).body
        lines[place] = rewritten(line, prev=prev, body=body)
        prev = read_entry(lines[place]).sha256
    write_entrys(chain, lines)
    (chain / HEAD).write_bytes(canonical(make_head(ROWS, prev, "a")) + b"\n")


def test_a_rebuilt_chain_is_found_only_against_a_noted_head(ledger, chain, make):
    (head,) = ledger.heads()
    noted = f"{head.writer} {head.count} {head.sha256}"
    assert ledger.verify(noted=[noted]).ok
    rebuilt(read_lines(chain), chain, make)
    assert ledger.verify(strict=True).ok
    (found,) = ledger.verify(noted=[noted]).breaks
    assert found.kind == "head"
    assert "the chain was rewritten or cut" in found.message


def test_a_chain_that_vanished_is_found_against_a_noted_head(ledger, chain):
    noted = [f"gone 3 {'0' * 64}"]
    (found,) = ledger.verify(noted=noted).breaks
    assert (found.kind, found.seq) == ("head", 3)
    with pytest.raises(UsageError, match="WRITER COUNT SHA256"):
        ledger.verify(noted=["nonsense"])


def spoiled_head(data: bytes, how: str) -> bytes:
    return {
        "count": data.replace(b'"count":7', b'"count":6'),
        "writer": data.replace(b'"writer":"a"', b'"writer":"b"'),
        "cut": data[:-9],
        "conflict": b"<<<<<<< ours\n" + data,
        "foreign": canonical(make_head(ROWS, "0" * 64, "b")) + b"\n",
    }[how]


@pytest.mark.parametrize("how", ["missing", "count", "writer", "cut", "conflict", "foreign"])
def test_a_damaged_or_missing_head_is_named(ledger, chain, how):
    head = chain / HEAD
    if how == "missing":
        head.unlink()
    else:
        head.write_bytes(spoiled_head(head.read_bytes(), how))
    found = first_break(ledger)
    assert (found.kind, found.file) == ("head", str(head))


def test_any_edited_byte_of_the_head_is_found(ledger, chain):
    data = (chain / HEAD).read_bytes().rstrip()
    for position in range(len(data)):
        edited = bytearray(data)
        edited[position] ^= 1
        (chain / HEAD).write_bytes(edited)
        found = chain_report(walk(chain)).broken
        assert found is not None
        assert found.kind == "head"


def test_two_clones_with_one_writer_id_are_a_fork(tmp_path, make):
    ours, theirs = Ledger(tmp_path / "ours"), Ledger(tmp_path / "theirs")
    ours.writer("a").append(make["lane"](id="common"))
    (tmp_path / "theirs" / "a").mkdir(parents=True)
    for name in ("0001.jsonl", HEAD):
        (theirs.root / "a" / name).write_bytes((ours.root / "a" / name).read_bytes())
    ours.writer("a").append(make["lane"](id="ours"))
    theirs.writer("a").append_many([make["lane"](id="theirs"), make["lane"](id="more")])
    mine, yours = read_lines(ours.root / "a"), read_lines(theirs.root / "a")

    write_entrys(ours.root / "a", [*mine, *yours[1:]])  # both kept, ours first
    found = first_break(ours)
    assert (found.kind, found.seq) == ("fork", 2)
    assert "used by two clones" in found.message

    write_entrys(ours.root / "a", yours)  # their rows under our head
    found = first_break(ours)
    assert (found.kind, found.seq) == ("fork", 2)


def test_a_chain_under_another_name_does_not_verify(ledger, chain):
    chain.rename(ledger.root / "b")
    assert first_break(ledger).kind == "predecessor"


def test_a_line_of_a_newer_format_is_a_schema_break(ledger, chain):
    lines = read_lines(chain)
    lines[-1] = rewritten(lines[-1], schema=SCHEMA + 1)
    write_entrys(chain, lines)
    (chain / HEAD).write_bytes(canonical(make_head(ROWS, read_hash(lines[-1]), "a")) + b"\n")
    found = first_break(ledger)
    assert (found.kind, found.line) == ("schema", ROWS)
    assert f"in format {SCHEMA + 1}; this version reads 1 to {SCHEMA}" in found.message


def read_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def test_only_strict_asks_for_canonical_form(ledger, chain):
    lines = read_lines(chain)
    lines[-1] = lines[-1].replace(b'"device":"cpu"', b'"device": "cpu"')
    write_entrys(chain, lines)
    (chain / HEAD).write_bytes(canonical(make_head(ROWS, read_hash(lines[-1]), "a")) + b"\n")
    assert ledger.verify().ok
    found = first_break(ledger, strict=True)
    assert (found.kind, found.line) == ("schema", ROWS)
    assert "canonical" in found.message


@pytest.mark.parametrize("spoil", ["edit", "remove"])
def test_evidence_that_a_record_names_must_be_there(ledger, evidence, make, spoil):
    ledger.writer("a").append_many([make["lane"](), make["record"](evidence)])
    assert ledger.verify().ok
    path = ledger.root / "objects" / evidence.sha256[:2] / evidence.sha256
    if spoil == "edit":
        path.write_bytes(path.read_bytes().replace(b"G9", b"G8"))
    else:
        path.unlink()
    found = first_break(ledger)
    assert (found.kind, found.seq) == ("object", 2)
    assert evidence.sha256 in found.message


def test_evidence_with_another_size_is_refused(ledger, evidence, make):
    wrong = replace(evidence, size_bytes=evidence.size_bytes + 1)
    ledger.writer("a").append(make["record"](wrong))
    assert first_break(ledger).kind == "object"


def test_one_broken_chain_does_not_hide_another(ledger, chain, make):
    ledger.writer("b").append(make["lane"](id="b"))
    for name in "ab":
        (ledger.root / name / HEAD).unlink()
    assert [found.kind for found in ledger.verify().breaks] == ["head", "head"]


def test_an_empty_ledger_is_not_ok(ledger):
    ledger.root.mkdir()
    assert not ledger.verify().ok
    ledger.writer("a")
    report = ledger.verify()
    assert (report.rows, report.ok, report.breaks) == (0, False, ())
