"""Other inputs made from a workload's: one element changed, one row more or less, other rows."""

from dataclasses import replace

import torch

from bitgate.kernels.spec import Kernel, Tensors, TensorSpec
from bitgate.records.types import Workload


def row_axis(kernel: Kernel, workload: Workload) -> str | None:
    """The axis that leads every output and is an axis of the workload; None if there is none."""
    leading = {spec.axes[0] if spec.axes else None for spec in kernel.outputs}
    names = {name for name, _ in workload.axes}
    axis = leading.pop() if len(leading) == 1 else None
    return axis if axis in names else None


def resized(workload: Workload, axis: str, extent: int) -> Workload:
    """The same workload with another extent of one axis."""
    axes = tuple((name, extent if name == axis else old) for name, old in workload.axes)
    return replace(workload, axes=axes)


def take_rows(
    specs: tuple[TensorSpec, ...], tensors: Tensors, axis: str, rows: tuple[int, ...]
) -> Tensors:
    """The named rows along `axis` of the tensors that have it; the others unchanged."""
    index = torch.tensor(rows)
    axes = {spec.name: spec.axes for spec in specs}
    return {
        name: value.index_select(axes[name].index(axis), index) if axis in axes[name] else value
        for name, value in tensors.items()
    }


def perturbed(kernel: Kernel, inputs: Tensors, seed: int) -> Tensors | None:
    """A copy in which one element of one input has the other sign (a zero becomes one).

    The input is the first floating-point one that is not a parameter; None without such an input.
    """
    for spec in kernel.inputs:
        given = inputs.get(spec.name)
        if spec.role == "in" and given is not None and given.is_floating_point() and given.numel():
            generator = torch.Generator().manual_seed(seed)
            at = int(torch.randint(given.numel(), (), generator=generator))
            changed = given.contiguous().clone()
            flat = changed.reshape(-1)
            flat[at] = -flat[at] if flat[at] != 0 else 1
            return {**inputs, spec.name: changed}
    return None


def mutants(outputs: Tensors) -> dict[str, Tensors]:
    """Wrong answers that a comparison must see: zeros, one value, other order, other scale.

    Outputs of a single element have no other order and are one value already.
    """
    wrong = {
        "zeros": {name: torch.zeros_like(value) for name, value in outputs.items()},
        "scaled": {name: _scaled(value) for name, value in outputs.items()},
    }
    if any(value.numel() > 1 for value in outputs.values()):
        wrong["constant"] = {name: _constant(value) for name, value in outputs.items()}
        wrong["permuted"] = {
            name: value.reshape(-1).roll(1).reshape(value.shape) for name, value in outputs.items()
        }
    return wrong


def _scaled(value: torch.Tensor) -> torch.Tensor:
    if value.dtype is torch.bool:
        return ~value
    return (value * 2).to(value.dtype) if value.is_floating_point() else value + 1


def _constant(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:1].expand(value.numel()).reshape(value.shape)
