"""Which side goes first: coins that anybody can toss again."""

import hashlib


def flips(order_seed: int, rounds: int, run: str = "pair") -> str:
    """Which side goes first in each round: 'B' baseline, 'C' candidate.

    A function of the declared seed and the round's number alone, so that anybody can tell a
    measurement whose order was chosen afterwards. `run` separates the A/A run ("null") from the
    paired one.
    """
    return "".join(
        "BC"[hashlib.sha256(f"{order_seed}/{run}/{index}".encode()).digest()[0] & 1]
        for index in range(rounds)
    )
