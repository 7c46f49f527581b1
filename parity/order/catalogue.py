"""The operators whose orders are known, one line each; add yours here."""

from typing import Final

from bitgate.parity.order.base import Orders
from bitgate.parity.order.experts import ACT, COMBINE, COMBINE_WEIGHTED, EXPERTS, GEMM
from bitgate.parity.order.mhc import POST, POST_PRE, PRE
from bitgate.records.errors import UsageError

ORDERS: Final[tuple[Orders, ...]] = (
    EXPERTS,
    GEMM,
    ACT,
    COMBINE,
    COMBINE_WEIGHTED,
    PRE,
    POST,
    POST_PRE,
)


def orders_of(op: str) -> Orders:
    """The catalogue of one operator. Raises UsageError that lists the known operators."""
    for found in ORDERS:
        if found.op == op:
            return found
    known = ", ".join(found.op for found in ORDERS)
    raise UsageError(f"no orders are known for {op!r}; known: {known}. Name one with --op")
