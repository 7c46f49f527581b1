"""A process for somebody else's code: heard to its last words, and ended with all it started."""

import os
import signal
import time
from pathlib import Path

import pytest

from bitgate.parity.fresh_process import FreshProcess

PLANTED = """
import os, subprocess, sys, time

def main():
    # Never waited for: it outlives this process, as a candidate's helper would.
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("said", os.getsid(0) == os.getpid())
    os.write(int(sys.argv[1]), str(left.pid).encode())
    sys.stdout.flush()
    {ending}

main()
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that leaves another behind; the process, and the other's number."""
    made = []

    def start(ending: str) -> tuple[FreshProcess, int]:
        (tmp_path / "planted.py").write_text(PLANTED.replace("{ending}", ending))
        read, write = os.pipe()
        environment = (*os.environ.items(), ("PYTHONPATH", str(tmp_path)))
        process = FreshProcess("planted", (write,), environment)
        made.append(process)
        os.close(write)
        left = int(os.read(read, 20))
        os.close(read)
        return process, left

    yield start
    for process in made:
        process.close(0)


def gone(pid: int) -> bool:
    """Whether a process ended; one that waits to be reaped by another did."""
    for _ in range(1_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_one_that_ends_by_itself_takes_with_it_what_it_started(start):
    process, left = start("sys.exit(7)")
    assert process.status is None
    process.end(60)
    assert process.status == 7
    assert gone(left)
    assert process.last_words() == "said True"
    process.end(60)
    assert process.status == 7


def test_one_that_does_not_end_is_ended(start):
    process, left = start("time.sleep(600)")
    process.end(0)
    assert process.status == -signal.SIGKILL
    assert gone(left)
    assert gone(process.pid)


def test_last_words_are_the_end_of_what_was_printed(start):
    process, _ = start("print('x' * 100_000); print('the end')")
    process.end(60)
    words = process.last_words()
    assert words.endswith("xxx\nthe end")
    assert len(words) < 5_000


def test_silence_is_said(start):
    process, _ = start("os.ftruncate(1, 0)")
    process.end(60)
    assert process.last_words() == "(none)"
