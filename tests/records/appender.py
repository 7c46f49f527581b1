"""Child processes for the crash tests: they append rows and print what was acknowledged.

appender.py ROOT WRITER ROWS    append so many rows
appender.py ROOT WRITER         for each line "PIECE STEPS" on stdin: fork a child that appends,
                                PIECE bytes a write, and kills itself (-9) at its STEPS-th step
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bitgate.records.codec import canonical, decode
from bitgate.records.ledger import Ledger
from bitgate.records.types import Lane, Workload

REAL_WRITE = os.write
FOREVER = 1_000_000


def append(root: Path, writer: str, rows: int) -> None:
    """Append lanes in batches of one or three; acknowledge each batch by its last row."""
    target = Ledger(root, segment_rows=50).writer(writer)
    sizes = random.Random(rows)
    done = 0
    while done < rows:
        batch = [lane(f"lane {done + step}") for step in range(sizes.choice((1, 1, 3)))]
        entries = target.append_many(batch)
        done += len(entries)
        REAL_WRITE(1, f"{entries[-1].seq} {entries[-1].sha256}\n".encode())


class Dying:
    """Counts what touches the disk, and kills the process before the step that is its last."""

    def __init__(self, piece: int, steps: int) -> None:
        self.piece = piece
        self.left = steps

    def install(self) -> None:
        """From now on a write takes `piece` bytes, and each call is a step."""
        os.write = self.write
        os.fsync = self.counted(os.fsync)
        os.replace = self.counted(os.replace)

    def write(self, handle: int, data: Any) -> int:
        """Write one piece."""
        self.step()
        return REAL_WRITE(handle, data[: self.piece])

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The same call as one step."""

        def call(*arguments: Any) -> Any:
            self.step()
            return real(*arguments)

        return call

    def step(self) -> None:
        """Die here, or go on."""
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def serve(root: Path, writer: str) -> None:
    """Fork and bury one child after the other."""
    decode(Lane, canonical(lane("warm")))  # what is built once is built before the fork
    for line in sys.stdin:
        piece, steps = map(int, line.split())
        child = os.fork()
        if child == 0:
            Dying(piece, steps).install()
            append(root, writer, FOREVER)
        _, status = os.waitpid(child, 0)
        REAL_WRITE(1, f"dead {os.waitstatus_to_exitcode(status)}\n".encode())


def lane(name: str) -> Lane:
    """A small row."""
    return Lane(
        id=name,
        op="moe_experts",
        workload=Workload(op="moe_experts", axes=(), dtype="bfloat16"),
        device="cpu",
        metric="latency",
        unit="ns",
        statistic="median",
        higher_is_better=False,
    )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        append(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        serve(Path(sys.argv[1]), sys.argv[2])
