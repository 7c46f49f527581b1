"""Appending, reading, evidence, and who may write what where."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from bitgate.records import durable
from bitgate.records.base import InvariantError
from bitgate.records.chain import HEAD
from bitgate.records.errors import EnvironmentUnfit, LedgerBroken, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.types import Workload


def test_rows_come_back_in_order_with_their_identity(ledger, evidence, make):
    writer = ledger.writer("a")
    lane = writer.append(make["lane"]())
    record = writer.append(make["record"](evidence))
    assert [entry.kind for entry in ledger.entries()] == ["lane", "record"]
    assert list(ledger.records()) == [record]
    assert list(ledger.lanes()) == [lane]
    assert list(ledger.decisions()) == []
    assert (record.seq, record.prev) == (2, lane.sha256)
    assert ledger.find(record.id[:8]) == record
    assert ledger.verify().ok


def test_writers_keep_separate_chains_and_merge_by_time(ledger, make):
    for name in "abab":
        ledger.writer(name).append(make["lane"](id=f"lane of {name}"))
    assert [entry.writer for entry in ledger.entries()] == list("abab")
    assert {chain.writer: chain.rows for chain in ledger.verify().chains} == {"a": 2, "b": 2}


def test_find_says_what_is_wrong(ledger, evidence, make):
    writer = ledger.writer("a")
    writer.append(make["record"](evidence))
    writer.append(make["record"](evidence, reason="another"))
    with pytest.raises(UsageError, match="no record's id begins with 'zz'"):
        ledger.find("zz")
    with pytest.raises(UsageError, match="not unique"):
        ledger.find("")


def test_files_rotate_and_the_chain_goes_on(tmp_path, make):
    ledger = Ledger(tmp_path, segment_rows=3)
    writer = ledger.writer("a")
    for number in range(8):
        writer.append(make["lane"](id=f"lane {number}"))
    assert [path.name for path in sorted((tmp_path / "a").glob("*.jsonl"))] == [
        "0001.jsonl",
        "0002.jsonl",
        "0003.jsonl",
    ]
    report = ledger.verify(strict=True)
    assert report.ok
    assert report.rows == 8


def test_a_missing_ledger_is_a_usage_error(tmp_path):
    ledger = Ledger(tmp_path / "nowhere")
    for read in (lambda: list(ledger.entries()), ledger.verify, ledger.heads):
        with pytest.raises(UsageError, match="no ledger at"):
            read()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "objects", ".hidden"])
def test_unusable_writer_ids_are_refused(ledger, name):
    with pytest.raises(UsageError, match="writer id"):
        ledger.writer(name)


def test_a_clone_keeps_its_writer_id_and_a_copy_gets_another(tmp_path):
    first = Ledger(tmp_path / "one").writer()
    assert Ledger(tmp_path / "one").writer().name == first.name
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert Ledger(tmp_path / "two").writer().name != first.name


def test_what_could_not_be_read_again_is_not_written(ledger, make):
    writer = ledger.writer("a")
    axes = make["workload"]().axes
    wrong = Workload(op="moe_experts", axes=axes, dtype="bfloat16", case=True)
    with pytest.raises(InvariantError, match="cannot be read again"):
        writer.append(make["lane"](workload=wrong))
    writer.append(make["lane"]())
    assert ledger.verify().rows == 1


def test_a_batch_is_all_or_nothing(ledger, make):
    writer = ledger.writer("a")
    with pytest.raises(InvariantError):
        writer.append_many([make["lane"](), make["lane"](target=1.5)])
    assert list(ledger.entries()) == []
    assert [entry.seq for entry in writer.append_many([make["lane"](), make["lane"]()])] == [1, 2]
    assert writer.append_many([]) == []


def test_evidence_is_kept_by_content(ledger, evidence):
    assert ledger.put(ledger.get(evidence.sha256), evidence.media) == evidence
    with pytest.raises(LedgerBroken, match="missing"):
        ledger.get("0" * 64)
    with pytest.raises(InvariantError, match="empty file"):
        ledger.put(b"", "text/plain")


def test_changed_evidence_is_refused_on_reading_and_on_storing(ledger, evidence):
    data = ledger.get(evidence.sha256)
    path = ledger.root / "objects" / evidence.sha256[:2] / evidence.sha256
    path.write_bytes(data + b" ")
    with pytest.raises(LedgerBroken, match="was changed"):
        ledger.get(evidence.sha256)
    with pytest.raises(LedgerBroken, match="was changed"):
        ledger.put(data, "application/json")


def test_a_head_behind_the_chain_is_noted_and_healed(ledger, make):
    writer = ledger.writer("a")
    writer.append(make["lane"](id="1"))
    old = (ledger.root / "a" / HEAD).read_bytes()
    writer.append(make["lane"](id="2"))
    writer.append(make["lane"](id="3"))
    (ledger.root / "a" / HEAD).write_bytes(old)
    report = ledger.verify()
    assert report.ok
    assert "2 row(s) behind" in report.chains[0].notes[0]
    assert writer.append(make["lane"](id="4")).seq == 4
    assert ledger.verify().chains[0].notes == ()
    assert ledger.heads()[0].count == 4


@pytest.mark.parametrize("spoil", ["torn", "cut", "edited", "no head"])
def test_nothing_is_appended_to_a_broken_chain(ledger, make, spoil):
    writer = ledger.writer("a")
    writer.append_many([make["lane"](id=str(number)) for number in range(3)])
    file = ledger.root / "a" / "0001.jsonl"
    data = file.read_bytes()
    if spoil == "torn":
        file.write_bytes(data + b'{"body"')
    elif spoil == "cut":
        file.write_bytes(b"".join(data.splitlines(keepends=True)[:2]))
    elif spoil == "edited":
        file.write_bytes(data.replace(b'"id":"2"', b'"id":"7"'))
    else:
        (ledger.root / "a" / HEAD).unlink()
    before = file.read_bytes()
    with pytest.raises(LedgerBroken, match="nothing was appended") as caught:
        writer.append(make["lane"]())
    assert file.read_bytes() == before
    if spoil == "torn":
        assert f"truncate -s {len(data)} {file}" in str(caught.value)
        os.truncate(file, len(data))
        assert writer.append(make["lane"]()).seq == 4


# --- a disk that fills up ------------------------------------------------------------------------


class FullDisk:
    """Takes `room` bytes through os.write, in pieces, then answers as a full disk does."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.real_write = os.write

    def write(self, handle: int, data: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(data))
        self.room -= taken
        return self.real_write(handle, data[:taken])


def size_of_append(make, tmp_path: Path) -> tuple[int, int]:
    """The bytes of one row, and of a row with its head."""
    writer = Ledger(tmp_path / "sizes").writer("a")
    writer.append(make["lane"](id="1"))
    directory = tmp_path / "sizes" / "a"
    before = (directory / "0001.jsonl").stat().st_size
    writer.append(make["lane"](id="2"))
    row = (directory / "0001.jsonl").stat().st_size - before
    return row, row + (directory / HEAD).stat().st_size


def test_a_full_disk_leaves_the_ledger_as_it_was(ledger, make, tmp_path, monkeypatch):
    row, both = size_of_append(make, tmp_path)
    writer = ledger.writer("a")
    writer.append(make["lane"](id="1"))
    file, head = ledger.root / "a" / "0001.jsonl", ledger.root / "a" / HEAD
    before = file.read_bytes(), head.read_bytes()
    for room in (0, 1, row // 2, row - 1, row, row + 1, both - 1):
        with monkeypatch.context() as patched:
            patched.setattr(durable.os, "write", FullDisk(room).write)
            with pytest.raises(EnvironmentUnfit, match=r"no room on disk.*nothing was written"):
                writer.append(make["lane"](id="2"))
        assert (file.read_bytes(), head.read_bytes()) == before, room
        assert [path.name for path in file.parent.glob("*.tmp")] == []
        assert ledger.verify(strict=True).ok
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "write", FullDisk(both).write)
        writer.append(make["lane"](id="2"))
    assert ledger.verify().rows == 2


def test_a_full_disk_stores_no_half_of_an_object(ledger, monkeypatch):
    ledger.put(b"first", "text/plain")
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "write", FullDisk(3).write)
        with pytest.raises(EnvironmentUnfit, match="no room on disk"):
            ledger.put(b"second", "text/plain")
    names = [path.name for path in (ledger.root / "objects").rglob("*") if path.is_file()]
    assert len(names) == 1


def test_a_failing_fsync_takes_the_row_back(ledger, make, monkeypatch):
    writer = ledger.writer("a")
    writer.append(make["lane"](id="1"))

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "fsync", broken)
        with pytest.raises(EnvironmentUnfit, match="cannot write"):
            writer.append(make["lane"](id="2"))
    assert ledger.verify().rows == 1


def test_a_lock_that_is_never_released_ends_in_a_clear_error(ledger, make, monkeypatch):
    writer = ledger.writer("a")
    writer.append(make["lane"]())
    monkeypatch.setattr(durable, "_LOCK_TIMEOUT_S", 0)
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with durable.locked(ledger.root / "a"):
            holding.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(30)
    try:
        with pytest.raises(EnvironmentUnfit, match="another process has held"):
            writer.append(make["lane"]())
    finally:
        done.set()
        thread.join()
