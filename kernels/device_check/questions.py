"""What nobody states: how the device computes, and whether a captured graph replays the bits."""

from collections.abc import Iterator

from bitgate.kernels import probes
from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.device_check.context import FAILURES, Context, Difference, bitwise, difference
from bitgate.kernels.device_check.rows import Answer, Row
from bitgate.kernels.loading import load
from bitgate.kernels.spec import Implementation, Kernel


def arithmetic(context: Context) -> Iterator[Row]:
    """Contraction, subnormals, ties, division, square root and exp, by torch and by Triton."""
    for question, answer in probes.run(context.name):
        yield Answer(section="arithmetic", question=question, answer=answer)


def graphs(context: Context) -> Iterator[Row]:
    """Captured once, replayed on other inputs: the bits of an eager call, for every implementation.

    Where the device has no graphs, the one answer says so.
    """
    support = context.device.graph_support()
    yield Answer(section="graphs", question="level", answer=f"{support.level}: {support.reason}")
    if support.level != "replay":
        return
    for definition in KERNELS:
        for found in definition.implementations:
            if context.late:
                return
            # What is compiled by torch or loops over values on the host has no graph.
            if context.name in found.devices and found.target.partition(":")[0].endswith("_triton"):
                yield _replayed(context, definition, found)


def _replayed(context: Context, kernel: Kernel, found: Implementation) -> Row:
    workload, constants = kernel.suites["default"][-1], dict(kernel.constants)
    outcome: Difference | Exception
    try:
        held, other = (context.to_device(kernel.make_inputs(workload, n)) for n in (0, 1))
        expected = context.call(kernel, found, other, constants)
        function, outputs = load(found.target), []
        replay = context.device.graph(lambda: outputs.append(function(**held, **constants)))
        for name, tensor in held.items():
            tensor.copy_(other[name])
        replay()
        context.device.synchronize()
        outcome = difference(expected, kernel.named_outputs(outputs[0]))
    except FAILURES as error:
        outcome = error
    return bitwise("graphs", context.side(found), "its eager call", workload, outcome)
