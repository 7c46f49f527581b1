"""The vocabulary of operators: what each is called, what its axes mean, and what it must move.

Timings of one operator mean the same everywhere because its envelope, what happens inside the
clock, is fixed here. Bytes and operations are exact integers of the axes, with their source. One
file for each family; a new operator is one `Operator` in its family's tuple.
"""

from typing import Final

from bitgate.records.errors import UsageError
from bitgate.records.ops.base import ELEMENT_BYTES, Axes, Operator
from bitgate.records.ops.dense import DENSE_OPERATORS
from bitgate.records.ops.mhc import MHC_OPERATORS
from bitgate.records.ops.moe import MOE_OPERATORS
from bitgate.records.ops.moe_fp8 import MOE_FP8_OPERATORS
from bitgate.records.ops.moe_quant import MOE_QUANT_OPERATORS
from bitgate.records.proof import Workload

__all__ = ["OPERATORS", "Axes", "Operator", "bytes_of", "flops_of", "operator"]

OPERATORS: Final[tuple[Operator, ...]] = (
    *MHC_OPERATORS,
    *MOE_OPERATORS,
    *MOE_QUANT_OPERATORS,
    *MOE_FP8_OPERATORS,
    *DENSE_OPERATORS,
)


def operator(name: str) -> Operator:
    """The operator of that name; UsageError lists the known ones."""
    for known in OPERATORS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in OPERATORS)
    raise UsageError(f"unknown operator {name!r}; known are {names}")


def bytes_of(workload: Workload) -> int:
    """How many bytes one call moves between memory and the device's cores."""
    known = operator(workload.op)
    known.check(workload)
    return known.bytes_moved(dict(workload.axes), ELEMENT_BYTES[workload.dtype])


def flops_of(workload: Workload) -> int:
    """How many floating-point operations one call needs."""
    known = operator(workload.op)
    known.check(workload)
    return known.flops(dict(workload.axes))
