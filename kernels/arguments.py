"""What the arguments of an operator must look like: checked against its definition, or refused."""

from collections.abc import Mapping
from math import prod
from typing import Final

import torch

from bitgate.kernels.spec import TensorSpec
from bitgate.records.errors import UsageError

# No extent needs more, and Python refuses to read the longest numbers.
_DIGITS: Final = 18


def bind(
    op: str,
    specs: tuple[TensorSpec, ...],
    tensors: Mapping[str, torch.Tensor],
    *,
    fixed: Mapping[str, int] | None = None,
    reason: str = "",
) -> dict[str, int]:
    """Check named tensors against their specifications; return the extent of every axis.

    An axis written `a*b` is the product of the two, names or numbers, at most one of them new.
    Tensors that are not given are not checked, so that outputs can be checked alone. `fixed` axes
    have their extents beforehand, and `reason` says why.

    Raises:
        UsageError: a dtype, rank, extent or device disagrees; the message names the tensor.
    """
    axes = dict(fixed or {})
    given = [(spec, tensors[spec.name]) for spec in specs if spec.name in tensors]
    for spec, tensor in given:
        _check_kind(op, spec, tensor)
        for axis, extent in zip(spec.axes, tensor.shape, strict=True):
            expected = _expected(axis, extent, axes)
            if extent != expected:
                hint = f"; {reason}" if fixed is not None and axis in fixed else ""
                raise UsageError(
                    f"{op}: {spec.name}: expected axis {axis} of {expected}, got {extent}{hint}"
                )
    devices = {str(tensor.device) for _, tensor in given}
    if len(devices) > 1:
        raise UsageError(f"{op}: expected all tensors on one device, got {sorted(devices)}")
    return axes


def output(
    op: str,
    name: str,
    given: torch.Tensor | None,
    shape: tuple[int, ...],
    like: torch.Tensor,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The caller's tensor for one output, or a new one on the device of `like`, of its dtype.

    `dtype` is the new tensor's where it is not that of `like`.

    Raises:
        UsageError: the caller's tensor is not contiguous.
    """
    if given is None:
        return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)
    if not given.is_contiguous():
        raise UsageError(
            f"{op}: expected {name} to be contiguous, got strides {given.stride()} for shape "
            f"{list(given.shape)}; pass a contiguous tensor and copy from it"
        )
    return given


def shown(value: object) -> str:
    """A value for a message; Python refuses to print the longest integers."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def whole_number(text: str) -> int | None:
    """The number that a text of at most 18 decimal digits says, None of any other."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _check_kind(op: str, spec: TensorSpec, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"{op}: expected {spec.name} as a torch tensor, got {type(tensor).__name__}"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != spec.dtype:
        raise UsageError(f"{op}: expected {spec.name} in {spec.dtype}, got {dtype}; convert it")
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise UsageError(f"{op}: expected {spec.name} with values in memory, got a {kind} tensor")
    if tensor.ndim != len(spec.axes):
        raise UsageError(
            f"{op}: expected {spec.name} as [{', '.join(spec.axes)}], got {list(tensor.shape)}"
        )


def _expected(axis: str, extent: int, axes: dict[str, int]) -> int:
    """What an axis must be; one unknown name in it is learned from the extent that came."""
    if axis in axes:
        return axes[axis]
    factors = axis.split("*")
    numbers = [int(one) if one.isdigit() else axes[one] for one in factors if _known(one, axes)]
    unknown = [one for one in factors if not _known(one, axes)]
    product = prod(numbers)
    if unknown:
        axes[unknown[0]] = extent // product if product else 0
        product *= axes[unknown[0]]
    return product


def _known(factor: str, axes: Mapping[str, int]) -> bool:
    return factor.isdigit() or factor in axes
