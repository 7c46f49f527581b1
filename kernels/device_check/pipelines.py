"""Native contracts: implementations of one contract against each other, and all against float64.

A native contract has the bits of one device at one configuration. The first implementation that
runs on the device (the staged pipeline, where there is one) is what the others must equal; each is
also held against the proved bound of the float64 oracle, because two equal answers may both be
wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch import Tensor

from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.catalogue import contract as contract_named
from bitgate.kernels.device_check.context import (
    FAILURES,
    Context,
    Difference,
    bitwise,
    bounded,
    difference,
)
from bitgate.kernels.device_check.rows import Row
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.spec import Constants, Implementation, Kernel, Tensors
from bitgate.records.types import Workload

Bounds = dict[str, tuple[Tensor, Tensor]]


def _experts(inputs: Tensors, constants: Constants, contract: str) -> Bounds:
    arguments: dict[str, Any] = {**inputs, **constants}
    return {"out": experts_float64(**arguments, contract=contract_named(contract))}


# Of inputs, constants and a contract's name: the value of each output and its proved bound.
ORACLES: Final[Mapping[str, Callable[[Tensors, Constants, str], Bounds]]] = {
    "moe_experts": _experts,
}


def native(context: Context) -> Iterator[Row]:
    """Every native implementation, on the workloads of its operator's default suite."""
    for kernel in KERNELS:
        for contract in kernel.references:
            group = [
                found
                for found in kernel.implementations
                if found.contract == contract
                and found.tier == "native"
                and context.name in found.devices
            ]
            for workload in kernel.suites["default"] if group else ():
                if context.late:
                    return
                yield from _point(context, kernel, group, workload)


def _point(
    context: Context, kernel: Kernel, group: list[Implementation], workload: Workload
) -> Iterator[Row]:
    inputs, constants = kernel.make_inputs(workload, 0), dict(kernel.constants)
    there = context.to_device(inputs)
    first: Tensors | None = None
    for found in group:
        side = context.side(found)
        try:
            outputs = context.call(kernel, found, there, constants)
        except FAILURES as error:
            yield bitwise("native", side, group[0].name, workload, error)
            continue
        if found is group[0]:
            first = outputs
        elif first is not None:
            outcome: Difference | Exception
            try:
                outcome = difference(first, outputs)
            except ValueError as error:
                outcome = error
            yield bitwise("native", side, group[0].name, workload, outcome)
        if kernel.op in ORACLES:
            exact = ORACLES[kernel.op](inputs, constants, found.contract)
            yield bounded("native", side, workload, exact, outputs)
