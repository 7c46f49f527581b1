"""Integer-exact fixtures and canonical contracts: what must give equal bits on every device."""

from collections.abc import Iterator
from dataclasses import replace

from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.device_check.context import FAILURES, Context, Difference, bitwise, difference
from bitgate.kernels.device_check.rows import Row
from bitgate.kernels.spec import Implementation, Kernel
from bitgate.records.types import Workload

# Lengths of real models beside those of the suites; few tokens, because the replay is slow.
_HIDDEN = (4096, 7168)
_TOKENS = 16


def integer_fixtures(context: Context) -> Iterator[Row]:
    """Every implementation that runs on this device, on every fixture of its operator."""
    for kernel, found in _here(context):
        side = context.side(found)
        for case in kernel.integer_cases():
            if context.late:
                return
            outcome: Difference | Exception
            try:
                inputs = context.to_device(case.inputs)
                outputs = context.call(kernel, found, inputs, case.constants)
                wanted = {name: outputs[name] for name in case.expected}
                outcome = difference(case.expected, wanted)
            except FAILURES as error:
                outcome = error
            yield bitwise("fixtures", side, "integers", case.name, outcome)


def canonical(context: Context) -> Iterator[Row]:
    """Every canonical implementation against its contract's replay on the CPU."""
    for kernel, found in _here(context):
        reference = kernel.references.get(found.contract)
        if found.tier != "canonical" or (found.name == reference and context.name == "cpu"):
            continue
        truth = next(one for one in kernel.implementations if one.name == reference)
        for workload in _workloads(kernel, context):
            if context.late:
                return
            outcome: Difference | Exception
            try:
                inputs, constants = kernel.make_inputs(workload, 0), dict(kernel.constants)
                expected = context.call(kernel, truth, inputs, constants)
                actual = context.call(kernel, found, context.to_device(inputs), constants)
                outcome = difference(expected, actual)
            except FAILURES as error:
                outcome = error
            yield bitwise("canonical", context.side(found), truth.name, workload, outcome)


def _here(context: Context) -> Iterator[tuple[Kernel, Implementation]]:
    for kernel in KERNELS:
        for found in kernel.implementations:
            if context.name in found.devices:
                yield kernel, found


def _workloads(kernel: Kernel, context: Context) -> tuple[Workload, ...]:
    chosen = kernel.suites["default"]
    if context.quick:
        return chosen
    every = {one.key: one for suite in kernel.suites.values() for one in suite}
    axes = dict(chosen[0].axes)
    if "streams" in axes:
        for hidden in _HIDDEN:
            extents = axes | {"hidden": hidden, "tokens": _TOKENS}
            point = replace(chosen[0], axes=tuple(sorted(extents.items())))
            every[point.key] = point
    return tuple(every.values())
