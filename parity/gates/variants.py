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


def varied(kernel: Kernel, inputs: Tensors) -> tuple[str, ...]:
    """The inputs, parameters and state that `perturbed` can change, in order."""
    given = [spec for spec in kernel.inputs if spec.name in inputs]
    return tuple(spec.name for spec in given if _can_vary(inputs[spec.name]))


def _can_vary(value: torch.Tensor) -> bool:
    rows = value.shape[0] if value.dim() else 0
    return bool(value.numel()) and (value.is_floating_point() or rows > 1)


def perturbed(kernel: Kernel, inputs: Tensors, seed: int, name: str) -> Tensors:
    """A copy in which one input is another one, and all others are the same.

    One element of a floating-point input has the other sign (a zero becomes one); of a parameter
    all have. Integers, which may be indices, stay valid: their rows are turned by one.
    """
    roles = {spec.name: spec.role for spec in kernel.inputs}
    given = inputs[name]
    if not given.is_floating_point():
        return {**inputs, name: given.roll(1, 0)}
    wide = _calculable(given)
    other = torch.where(wide == 0, torch.ones_like(wide), -wide).to(given.dtype)
    if roles[name] != "param":
        generator = torch.Generator().manual_seed(seed)
        at = int(torch.randint(given.numel(), (), generator=generator))
        changed = given.contiguous().clone()
        changed.reshape(-1)[at] = other.reshape(-1)[at]
        other = changed
    return {**inputs, name: other}


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
    if value.is_floating_point():
        return (_calculable(value) * 2).to(value.dtype)
    return value + 1


def _calculable(value: torch.Tensor) -> torch.Tensor:
    """Numbers that torch can calculate with: float32 instead of float8, which it cannot."""
    return value.float() if value.itemsize == 1 else value


def _constant(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[:1].expand(value.numel()).reshape(value.shape)
