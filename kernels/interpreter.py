"""Triton, as the kernels import it, with its interpreter's arithmetic made right.

Triton's interpreter multiplies the bit patterns of bfloat16 as integers in `tl.dot`, takes a NaN of
float8_e4m3fn for 480 there, truncates where float32 becomes bfloat16, and until 3.9 rounds twice in
`tl.fma`. `repair()` replaces those functions, so that a kernel's bits are those of a device:
products of the numbers, one rounding of a fused multiply-add, and rounding to nearest even with the
payload of a NaN kept and quieted. It does nothing unless TRITON_INTERPRET is set. Still wrong, and
better avoided: bfloat16 arithmetic without a cast to float32 first, and bfloat16 atomics.

Import `triton` and `tl` from here: where Triton is not installed, the error says so.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels import arithmetic
from bitgate.records.errors import EnvironmentUnfit

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:
    raise EnvironmentUnfit(
        f"expected Triton, got: {error}. Install the extra 'cpu' (pip install 'bitgate[cpu]'), or "
        "on a GPU or XPU node the Triton that belongs to its torch"
    ) from error

__all__ = ["TESTED", "interpreting", "repair", "require_tested", "tl", "triton"]

TESTED = ("3.7.1", "3.8.0", "3.9.0")

Array = npt.NDArray[Any]


def interpreting() -> bool:
    """Whether Triton interprets kernels on the CPU in this process."""
    return bool(triton.knobs.runtime.interpret)


def require_tested(version: str) -> None:
    """Raise EnvironmentUnfit unless the repair was tested with this version of Triton."""
    if version not in TESTED:
        raise EnvironmentUnfit(
            f"expected Triton {' or '.join(TESTED)} for interpreted kernels, got {version}: the "
            "repair of its bfloat16 replaces private functions and was tested with no other. "
            "Install a tested version, or unset TRITON_INTERPRET and run on a device"
        )


def to_float32(bits: Array) -> Array:
    """Bfloat16 bit patterns (uint16) as the float32 numbers that they are."""
    values: Array = (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def to_bfloat16(values: Array, *, towards_zero: bool = False) -> Array:
    """Float32 numbers as bfloat16 bit patterns (uint16): nearest even; a NaN is made quiet."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    upper = bits >> np.uint32(16)
    nearest = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    rounded = upper if towards_zero else nearest
    # Rounding a NaN could carry into its sign, or leave an infinity.
    kept = np.where(np.isnan(values), upper | np.uint32(0x40), rounded)
    result: Array = kept.astype(np.uint16)
    return result


@cache
def repair() -> bool:
    """Repair bfloat16 in Triton's interpreter, once; False where kernels are not interpreted.

    Raises:
        EnvironmentUnfit: this version of Triton was not tested with the repair.
    """
    if not interpreting():
        return False
    require_tested(triton.__version__)
    from triton.runtime import interpreter

    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ  # noqa: SLF001 - Triton has no public hook
    original = interpreter._convert_float  # noqa: SLF001
    interpreter._convert_float = _repaired_convert(original, towards_zero)  # noqa: SLF001
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _repaired_dot(builder.create_dot, interpreter.TensorHandle)
    builder.create_fma = _repaired_fma(builder.create_fma, interpreter.TensorHandle)
    return True


def _repaired_convert(original: Callable[..., Array], towards_zero: Any) -> Callable[..., Array]:
    def convert(values: Array, source: Any, target: Any, rounding: Any) -> Array:
        if source == tl.bfloat16 and target == tl.float32:
            upcast: Array = to_float32(values).view(np.uint32)
            return upcast
        if source == tl.float32 and target == tl.bfloat16:
            return to_bfloat16(values, towards_zero=rounding == towards_zero)
        return original(values, source, target, rounding)

    return convert


def _repaired_dot(original: Callable[..., Any], handle: Callable[..., Any]) -> Callable[..., Any]:
    def upcast(operand: Any) -> Any:
        if operand.dtype.scalar == tl.bfloat16:
            return handle(to_float32(operand.data), tl.float32)
        if operand.dtype.scalar == tl.float8e4nv:
            codes = torch.from_numpy(np.ascontiguousarray(operand.data).view(np.uint8))
            return handle(codes.view(torch.float8_e4m3fn).float().numpy(), tl.float32)
        return operand

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original(self, upcast(a), upcast(b), *rest)

    return dot


def _repaired_fma(original: Callable[..., Any], handle: Callable[..., Any]) -> Callable[..., Any]:
    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != tl.float32:
            return original(self, x, y, z)
        values = (torch.from_numpy(np.ascontiguousarray(one.data)) for one in (x, y, z))
        return handle(arithmetic.fma(*values).numpy(), tl.float32)

    return fma
