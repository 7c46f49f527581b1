"""Killed at any moment: nothing that was acknowledged is lost, and what is torn is named."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitgate.records.ledger import Ledger

APPENDER = Path(__file__).with_name("appender.py")
KILLS_PER_CHAIN = 10


def start(root: Path, writer: str, rows: int, piece: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(APPENDER), str(root), writer, str(rows), str(piece)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def killed_after(process: subprocess.Popen[bytes], lines: int, pause_s: float) -> list[str]:
    """Kill the child a moment after so many acknowledgements, and return all that it gave."""
    heard = [process.stdout.readline() for _ in range(lines)]
    time.sleep(pause_s)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    # A line of output that was cut by the kill acknowledges nothing.
    return [
        line.decode() for line in [*heard, *rest.splitlines(keepends=True)] if line[-1:] == b"\n"
    ]


def check_and_repair(ledger: Ledger, acknowledged: dict[int, str]) -> bool:
    """Whether verification asked for torn bytes to be dropped; nothing else may be wrong."""
    report = ledger.verify(strict=True)
    torn = False
    if report.breaks:
        (found,) = report.breaks
        assert found.kind == "tail", found
        assert found.drop_offset is not None, found
        assert found.drop_bytes == Path(found.file).stat().st_size - found.drop_offset
        os.truncate(found.file, found.drop_offset)
        torn = True
    assert ledger.verify(strict=True).ok
    stored = {entry.seq: entry.sha256 for entry in ledger.entries()}
    assert acknowledged.items() <= stored.items()
    return torn


def kill_repeatedly(root: Path, kills: int, piece: int, seed: int) -> int:
    """Kill an appender so many times on one chain; how often the kill tore a line."""
    chance = random.Random(seed)
    ledger, acknowledged, torn = Ledger(root), {}, 0
    for _ in range(kills):
        process = start(root, "a", 100_000, piece)
        lines = killed_after(process, chance.randint(1, 4), chance.random() * 0.02)
        acknowledged |= {int(seq): sha256 for seq, sha256 in map(str.split, lines)}
        torn += check_and_repair(ledger, acknowledged)
    return torn


def test_killed_at_random_points_nothing_acknowledged_is_lost(tmp_path):
    torn = [
        kill_repeatedly(tmp_path / str(piece), KILLS_PER_CHAIN, piece, seed=piece)
        for piece in (0, 1, 2, 40)
    ]
    # Written byte by byte, a row is torn by nearly every kill: the test would see a loss.
    assert torn[1] > 0


@pytest.mark.slow
def test_killed_at_500_random_points(tmp_path):
    for chain in range(50):
        kill_repeatedly(tmp_path / str(chain), 10, (0, 1, 2, 40, 200)[chain % 5], seed=chain)


def test_two_processes_with_one_writer_wait_for_each_other(tmp_path):
    processes = [start(tmp_path, "a", 60) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    report = Ledger(tmp_path).verify(strict=True)
    assert report.ok
    assert report.rows >= 120
    acknowledged = [line.split()[0] for answer in answers for line in answer.splitlines()]
    assert len(set(acknowledged)) == len(acknowledged)


def test_two_writers_of_one_ledger_keep_out_of_each_others_way(tmp_path):
    processes = [start(tmp_path, name, 20) for name in ("a", "b")]
    for process in processes:
        process.communicate(timeout=120)
    report = Ledger(tmp_path).verify(strict=True)
    assert report.ok
    assert [chain.writer for chain in report.chains] == ["a", "b"]
