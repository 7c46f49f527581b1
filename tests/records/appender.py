"""A child process for the crash tests: appends rows and prints what was acknowledged."""

import os
import random
import sys
from pathlib import Path

from bitgate.records.ledger import Ledger
from bitgate.records.types import Lane, Workload


def main(root: str, writer: str, rows: int, piece: int) -> None:
    """Append `rows` lanes; with `piece` > 0, files are written that many bytes at a time."""
    real = os.write

    def write(handle: int, data: bytes) -> int:
        # Small pieces make a kill fall into the middle of a line or of a head.
        return real(handle, bytes(data[:piece]) if handle > 2 else data)

    if piece:
        os.write = write
    target = Ledger(Path(root), segment_rows=50).writer(writer)
    sizes = random.Random(rows)
    done = 0
    while done < rows:
        batch = [lane(f"lane {done + step}") for step in range(sizes.choice((1, 1, 3)))]
        entries = target.append_many(batch)
        done += len(entries)
        real(1, f"{entries[-1].seq} {entries[-1].sha256}\n".encode())


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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
