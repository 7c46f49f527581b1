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
from bitgate.kernels.interpreter import interpreting
from bitgate.kernels.moe import gemm_fp8_reference, gemm_reference
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.experts_fp8_oracle import experts_fp8_float64
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_fp8 import ScaledMatmul
from bitgate.kernels.moe.staged import Scaling
from bitgate.kernels.spec import Constants, Implementation, Kernel, Tensors
from bitgate.records.types import Workload

Bounds = dict[str, tuple[Tensor, Tensor]]


def _experts(inputs: Tensors, constants: Constants, contract: str) -> Bounds:
    arguments: dict[str, Any] = {**inputs, **constants}
    return {"out": experts_float64(**arguments, contract=contract_named(contract))}


def _experts_fp8(inputs: Tensors, constants: Constants, contract: str) -> Bounds:  # noqa: ARG001
    rest: dict[str, Any] = dict(constants)
    limit = rest.pop("swiglu_limit")
    arguments: dict[str, Any] = {**inputs, "swiglu_limit": limit, "scaling": Scaling(**rest)}
    return {"out": experts_fp8_float64(**arguments, unit=_unit())}


def _gemm(inputs: Tensors, constants: Constants, contract: str) -> Bounds:  # noqa: ARG001
    return gemm_reference.grouped_float64(GroupedMatmul(**_call(inputs, constants)))


def _gemm_fp8(inputs: Tensors, constants: Constants, contract: str) -> Bounds:  # noqa: ARG001
    call = ScaledMatmul(**_call(inputs, constants))
    return gemm_fp8_reference.grouped_float64(call, unit=_unit())


def _call(inputs: Tensors, constants: Constants) -> dict[str, Any]:
    """The arguments of a grouped matmul's call, its tiles as one."""
    rest: dict[str, Any] = dict(constants)
    tile = {name: rest.pop(name) for name in ("block_m", "block_n", "block_k")}
    return {**inputs, **rest, "config": TileConfig(**tile)}


def _unit() -> float:
    """What an addition of float8 products may lose: Hopper keeps the fewest bits that are known."""
    return 2.0**-24 if interpreting() else gemm_fp8_reference.HOPPER_FP8


# Of inputs, constants and a contract's name: the value of each output and its proved bound.
ORACLES: Final[Mapping[str, Callable[[Tensors, Constants, str], Bounds]]] = {
    "moe_experts": _experts,
    "moe_experts_fp8": _experts_fp8,
    "moe_gemm": _gemm,
    "moe_gemm_fp8": _gemm_fp8,
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
