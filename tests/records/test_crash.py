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
WHOLE = 100_000
# By the bytes of one write: the last step at which a child may die. A row with its head is about
# 700 bytes, an append in whole pieces five steps.
POINTS = {1: 3_000, 7: 500, 100: 60, WHOLE: 20}


def start(root: Path, writer: str, *rows: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(APPENDER), str(root), writer, *rows]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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
    report = ledger.verify(strict=True)
    assert report.breaks == ()
    stored = {entry.seq: entry.sha256 for entry in ledger.entries()}
    assert acknowledged.items() <= stored.items()
    return torn


def die_repeatedly(root: Path, piece: int, kills: int, seed: int) -> int:
    """Let a child die at so many seeded points on one chain; how often a line was torn."""
    chance = random.Random(seed)
    acknowledged, torn = {}, 0
    with start(root, "a") as server:
        for _ in range(kills):
            server.stdin.write(f"{piece} {chance.randrange(POINTS[piece])}\n")
            server.stdin.flush()
            for line in iter(server.stdout.readline, f"dead {-signal.SIGKILL}\n"):
                seq, sha256 = line.split()
                acknowledged[int(seq)] = sha256
            torn += check_and_repair(Ledger(root), acknowledged)
        server.stdin.close()
    assert acknowledged
    return torn


@pytest.mark.parametrize("piece", POINTS)
def test_killed_at_random_points_nothing_acknowledged_is_lost(tmp_path, piece):
    torn = die_repeatedly(tmp_path, piece, kills=12, seed=piece)
    # Written in small pieces a row is often torn, so the test would see a loss; in one, never.
    assert (torn > 0) == (piece < WHOLE)


@pytest.mark.slow
def test_killed_at_500_random_points(tmp_path):
    for chain in range(20):
        piece = list(POINTS)[chain % len(POINTS)]
        die_repeatedly(tmp_path / str(chain), piece, kills=25, seed=chain)


def kill_from_outside(root: Path, kills: int) -> None:
    """Kill an appender a moment after its first acknowledgements, wherever it is then."""
    chance = random.Random(kills)
    acknowledged: dict[int, str] = {}
    for _ in range(kills):
        process = start(root, "a", "100000")
        heard = [process.stdout.readline() for _ in range(chance.randint(1, 4))]
        time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        # A line of output that was cut by the kill acknowledges nothing.
        whole = [line for line in [*heard, *rest.splitlines(keepends=True)] if line.endswith("\n")]
        acknowledged |= {int(seq): sha256 for seq, sha256 in map(str.split, whole)}
        check_and_repair(Ledger(root), acknowledged)


def test_killed_from_outside(tmp_path):
    kill_from_outside(tmp_path, 3)


@pytest.mark.slow
def test_killed_from_outside_100_times(tmp_path):
    kill_from_outside(tmp_path, 100)


def test_two_processes_with_one_writer_wait_for_each_other(tmp_path):
    processes = [start(tmp_path, "a", "40") for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    report = Ledger(tmp_path).verify(strict=True)
    assert report.ok
    assert report.rows >= 80
    acknowledged = [line.split()[0] for answer in answers for line in answer.splitlines()]
    assert len(set(acknowledged)) == len(acknowledged)


def test_two_writers_of_one_ledger_keep_out_of_each_others_way(tmp_path):
    processes = [start(tmp_path, name, "20") for name in ("a", "b")]
    for process in processes:
        process.communicate(timeout=120)
    report = Ledger(tmp_path).verify(strict=True)
    assert report.ok
    assert [chain.writer for chain in report.chains] == ["a", "b"]
