"""A ledger as an attacker, an editor or a careless copy leaves it: named, never read as good."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bitgate.records.base import InvariantError, require_decimal, require_utc
from bitgate.records.chain import HEAD, genesis, make_head, segments
from bitgate.records.codec import FormatError, canonical, decode
from bitgate.records.errors import EnvironmentUnfit, LedgerBroken, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.policy import reject
from bitgate.records.types import Decision, Environment, GateResult, Record, Waiver

ROWS = 7


@pytest.fixture
def chain(ledger, evidence, make) -> Path:
    """Lanes and records in turn, three a file."""
    ledger.segment_rows = 3
    writer = ledger.writer("a")
    for number in range(1, ROWS + 1):
        record = make["record"](evidence, reason=f"row {number}")
        writer.append(make["lane"](id=f"lane {number}") if number % 2 else record)
    return ledger.root / "a"


def rebuild(chain: Path, edit: Callable[[int, bytes], bytes]) -> None:
    """Edit lines, and recompute every hash and the head: only what a line says can give it away."""
    lines = [line for file in segments(chain) for line in file.read_bytes().splitlines()]
    prev = genesis("a")
    for place, line in enumerate(lines):
        edited = edit(place + 1, line)
        head, _, tail = edited.rpartition(b'"prev":"')
        lines[place] = head + b'"prev":"' + prev.encode() + tail[64:]
        prev = hashlib.sha256(lines[place]).hexdigest()
    for file in segments(chain):
        file.unlink()
    (chain / "0001.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (chain / HEAD).write_bytes(canonical(make_head(len(lines), prev, "a")) + b"\n")


def the_break(ledger: Ledger) -> tuple[str, str, int | None]:
    (found,) = ledger.verify().breaks
    return found.kind, Path(found.file).name, found.line


# --- what a line says ----------------------------------------------------------------------------


def test_a_rebuilt_chain_without_edits_verifies(ledger, chain):
    rebuild(chain, lambda place, line: line)
    assert ledger.verify(strict=True).ok


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"outcome":"passed",', b'"outcome":"rejected","outcome":"passed",', "occurs twice"),
        (b'"gate":"G0"', b'"gate":"G1","gate":"G0"', "'gate' occurs twice"),
        (b'"kind":"record"', b'"kind":"lane","kind":"record"', "'kind' occurs twice"),
        (b'"threads":2', b'"threads":1152921504606846976', "beyond 2**53"),
        (b'"threads":2', b'"threads": -9007199254740992', "beyond 2**53"),
        (b"2026-01-31T12", b"2026-13-31T12", "expected a UTC time"),
    ],
)
def test_a_line_that_readers_would_read_differently_is_refused(ledger, chain, old, new, says):
    def edit(place: int, line: bytes) -> bytes:
        return line.replace(old, new, 1) if place == 2 else line

    rebuild(chain, edit)
    (found,) = ledger.verify().breaks
    assert found.line == 2
    assert found.kind in {"schema", "row"}
    assert says in found.message
    with pytest.raises(LedgerBroken, match="line 2"):
        list(ledger.entries())


def test_the_largest_integer_and_long_hashes_are_read(evidence, make):
    record = make["record"](evidence, environment=make["environment"](threads=2**53 - 1))
    assert decode(Record, canonical(record)) == record
    digits = replace(evidence, sha256="1234567890123456" * 4)
    record = make["record"](digits)
    assert decode(Record, canonical(record)) == record
    spaced = canonical(record).replace(b":", b" : ").replace(b"12 : 00 : 00", b"12:00:00")
    with pytest.raises(FormatError, match="occurs twice"):
        decode(Record, spaced.replace(b'"lane" :', b'"lane" : "x", "lane" :'))


# --- what lies in the directory ------------------------------------------------------------------


def to_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda d: to_directory(d / "0002.jsonl"), ("file", "0002.jsonl", None)),
        (lambda d: (d / "0004.jsonl").symlink_to("nowhere"), ("file", "0004.jsonl", None)),
        (lambda d: os.mkfifo(d / "0004.jsonl"), ("file", "0004.jsonl", None)),
        (lambda d: to_directory(d / HEAD), ("head", HEAD, None)),
        (lambda d: (d / "0002.jsonl").rename(d / "0009.jsonl"), ("order", "0003.jsonl", 1)),
        (lambda d: (d / "0002.jsonl").write_bytes(b""), ("gap", "0003.jsonl", 1)),
    ],
    ids=["directory", "dangling link", "pipe", "head directory", "renamed", "emptied"],
)
def test_what_is_no_chain_file_is_named(ledger, chain, spoil, expected):
    spoil(chain)
    assert the_break(ledger) == expected
    if expected[0] != "head":
        with pytest.raises(LedgerBroken, match="bitgate records verify"):
            list(ledger.entries())


@pytest.mark.parametrize("name", ["1x.jsonl", "1\u00b2.jsonl", "x.jsonl"])
def test_other_names_are_no_part_of_a_chain(ledger, chain, name):
    (chain / name).write_bytes(b"notes\n")
    assert ledger.verify().rows == ROWS
    assert ledger.writer("a").append(next(ledger.lanes()).body).seq == ROWS + 1


@pytest.mark.parametrize("place", [1, 4, ROWS])
def test_a_converted_line_end_is_named_where_it_is(ledger, chain, place):
    rebuild(chain, lambda number, line: line)
    file = chain / "0001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[place - 1] = lines[place - 1].replace(b"\n", b"\r\n")
    file.write_bytes(b"".join(lines))
    (found,) = ledger.verify().breaks
    assert (found.kind, found.line) == ("row", place)
    assert "CR LF" in found.message


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b"{", b'{"count":99,', 1),
        lambda data: data.replace(b":", b": ", 1),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"",
    ],
    ids=["blank line", "key twice", "space", "line end", "empty"],
)
def test_a_head_is_what_a_writer_writes(ledger, chain, edit):
    (chain / HEAD).write_bytes(edit((chain / HEAD).read_bytes()))
    assert the_break(ledger) == ("head", HEAD, None)


def test_a_head_of_no_rows_names_none():
    assert make_head(0, genesis("a"), "a").count == 0
    with pytest.raises(InvariantError, match="counts no row and names one"):
        make_head(0, "0" * 64, "a")


# --- reading is checked as well ------------------------------------------------------------------


def test_reading_refuses_an_edited_a_missing_and_a_cut_line(ledger, chain):
    assert len(list(ledger.entries())) == ROWS
    middle, last = chain / "0002.jsonl", chain / "0003.jsonl"
    good = middle.read_bytes(), last.read_bytes()
    middle.write_bytes(good[0].replace(b"row 4", b"row 9"))
    for read in (ledger.lanes, ledger.records, ledger.decisions, ledger.entries):
        with pytest.raises(LedgerBroken, match=r"0002.jsonl, line 2: .*does not continue"):
            list(read())
    middle.write_bytes(good[0])
    last.write_bytes(good[1].replace(b"lane 7", b"lane 9"))
    with pytest.raises(LedgerBroken, match=r"head.json knows another line here"):
        list(ledger.entries())
    last.write_bytes(b"")
    with pytest.raises(LedgerBroken, match="counts 7 rows, found 6"):
        ledger.find("0")


def test_a_line_that_is_being_written_is_not_read_yet(ledger, chain, monkeypatch):
    file = chain / "0003.jsonl"
    whole = file.read_bytes()
    with file.open("ab") as stream:
        stream.write(b'{"body":{"half')
    with pytest.raises(LedgerBroken, match=r"0003.jsonl, line 2"):
        list(ledger.entries())
    finished = Ledger(ledger.root)
    monkeypatch.setattr(finished, "_torn", lambda directory, stored: False)
    assert len(list(finished.entries())) == ROWS
    file.write_bytes(whole)
    assert ledger.verify().ok


def test_a_whole_id_is_looked_up_and_an_empty_one_is_refused(ledger, chain):
    wanted = next(ledger.records())
    assert ledger.find(wanted.id) == wanted
    assert [entry.id for entry in ledger.records({wanted.id})] == [wanted.id]
    with pytest.raises(UsageError, match="no record"):
        ledger.find("0" * 64)
    shutil.rmtree(chain)
    writer = ledger.writer("a")
    writer.append(wanted.body)
    with pytest.raises(UsageError, match="not unique"):
        ledger.find("")


# --- decisions name what is there ----------------------------------------------------------------


def decision(record_id: str, lane: str, **changes: object) -> Decision:
    plain = Decision(
        created_at="2026-01-31T12:00:00Z",
        kind="promoted",
        lane=lane,
        record_id=record_id,
        policy=1,
        author="ann",
        reason="faster",
    )
    return replace(plain, **changes)


def test_a_chain_that_vanished_is_found_by_a_decision_on_its_record(ledger, chain):
    record = next(ledger.records())
    reject(ledger.writer("b"), record.id, author="ann", reason="slow")
    assert ledger.verify().ok
    shutil.rmtree(chain)
    (found,) = ledger.verify().breaks
    assert (found.kind, Path(found.file), found.line) == (
        "decision",
        ledger.root / "b" / "0001.jsonl",
        1,
    )
    assert "a chain is missing" in found.message


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda entry: decision("0" * 64, entry.body.lane), "it is in no chain"),
        (lambda entry: decision(entry.id, "elsewhere"), "it belongs to the lane"),
        (lambda entry: decision(entry.id, entry.body.lane), None),
    ],
    ids=["no record", "other lane", "fits"],
)
def test_a_decision_must_fit_its_record(ledger, chain, build, says):
    ledger.writer("a").append(build(next(ledger.records())))
    breaks = ledger.verify().breaks
    assert [found.kind for found in breaks] == (["decision"] if says else [])
    assert all(says in found.message for found in breaks)


def test_a_failed_verdict_is_never_promoted(ledger, evidence, make):
    verdict = replace(make["verdict"](evidence), kind="inconclusive")
    failed = make["record"](evidence, verdict=verdict, outcome="rejected")
    entry = ledger.writer("a").append(failed)
    ledger.writer("a").append(decision(entry.id, failed.lane, kind="rejected"))
    assert ledger.verify().ok
    ledger.writer("a").append(decision(entry.id, failed.lane))
    (found,) = ledger.verify().breaks
    assert (found.kind, found.line) == ("decision", 3)
    assert "its verdict is inconclusive" in found.message


# --- what the vocabulary takes -------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-999999999", " 0.05", "0_5", "\u0661", "NaN", "Infinity", ""])
def test_a_decimal_is_digits_and_a_short_exponent(text):
    assert require_decimal("-1.5E-7", "x") * 10**7 == require_decimal("-1.5", "x")
    with pytest.raises(InvariantError, match="expected a decimal string"):
        require_decimal(text, "x")


@pytest.mark.parametrize(
    "text", ["2026-02-29T00:00:00Z", "2026-99-99T99:99:99Z", "2026-01-01T24:00:00Z", "2026-01-01Z"]
)
def test_a_time_is_a_time_of_the_calendar(text):
    require_utc("2028-02-29T23:59:59.5Z", "x")
    with pytest.raises(InvariantError, match="expected a UTC time"):
        require_utc(text, "x")


def test_blank_words_answer_for_nothing(evidence, make):
    waiver = Waiver(
        requirement="margin", author="ann", reason="new node", expires="2999-01-01T00:00:00Z"
    )
    for value, name in (
        (waiver, "author"),
        (waiver, "reason"),
        (decision("0" * 64, "lane"), "author"),
        (decision("0" * 64, "lane"), "reason"),
        (make["verdict"](evidence), "coverage"),
    ):
        with pytest.raises(InvariantError):
            replace(value, **{name: "  "})


def test_a_pass_finds_nothing_bad(evidence, make):
    (passed, *_) = make["verdict"](evidence).results
    assert isinstance(replace(passed, finding="exact"), GateResult)
    with pytest.raises(InvariantError, match="a pass that finds nondeterministic"):
        replace(passed, finding="nondeterministic")


def test_an_environment_names_each_thing_once(make):
    environment = make["environment"](switches=(("A", "1"), ("B", "1")))
    assert isinstance(environment, Environment)
    with pytest.raises(InvariantError, match="occurs twice"):
        replace(environment, switches=(("A", "1"), ("A", "2")))


@pytest.mark.parametrize(
    "line",
    [
        "a 3 xyz",
        "a \u00b2 " + "0" * 64,
        "a " + "9" * 5000 + " " + "0" * 64,
        "../a 3 " + "0" * 64,
        "a 0 " + "0" * 64,
    ],
    ids=["hash", "digit", "long", "path", "no row"],
)
def test_a_noted_line_that_is_none_is_a_usage_error(ledger, chain, line):
    (head,) = ledger.heads()
    assert ledger.verify(noted=[f" {head.writer}  {head.count} {head.sha256}\n"]).ok
    with pytest.raises(UsageError, match="records head"):
        ledger.verify(noted=[line])


# --- a place that cannot be written or read ------------------------------------------------------


def test_a_place_that_takes_no_directory_is_a_clear_error(ledger, chain, evidence, make):
    (ledger.root / "b").write_bytes(b"")
    with pytest.raises(EnvironmentUnfit, match=re.escape(str(ledger.root / "b"))):
        ledger.writer("b").append(make["lane"]())
    shutil.rmtree(ledger.root / "objects")
    (ledger.root / "objects").write_bytes(b"")
    with pytest.raises(EnvironmentUnfit, match="nothing was written"):
        ledger.put(b"more", "text/plain")
    lock = chain / ".lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(EnvironmentUnfit, match=r"cannot write .*\.lock"):
        ledger.writer("a").append(make["lane"]())


@pytest.mark.parametrize(
    "spoiled",
    [b"\xff\xfe", b"", b"../x %(place)s", b"objects-only"],
    ids=["bytes", "empty", "path", "no place"],
)
def test_a_spoiled_writer_id_is_drawn_again(ledger, spoiled):
    name = ledger.writer().name
    path = ledger.root / ".writer"
    assert ledger.writer().name == name
    place = path.read_bytes().split(b" ", 1)[1]
    path.write_bytes(spoiled.replace(b"%(place)s", place))
    again = ledger.writer().name
    assert again != name
    assert ledger.writer().name == again
    to_directory(path)
    with pytest.raises(EnvironmentUnfit, match="cannot read this clone's writer id"):
        ledger.writer()


def test_a_clock_that_goes_back_keeps_the_rows_in_order(ledger, make, monkeypatch):
    rows = ledger.writer("a")
    for number, time in enumerate(("2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z")):
        monkeypatch.setattr("bitgate.records.writer.utc_now", lambda time=time: time)
        rows.append(make["lane"](id=str(number)))
    assert [entry.body.id for entry in ledger.entries()] == ["0", "1"]
    assert {entry.created_at for entry in ledger.entries()} == {"2030-01-01T00:00:00Z"}
    assert ledger.verify(strict=True).ok
