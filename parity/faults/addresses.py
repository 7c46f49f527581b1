"""Where a Triton kernel reads and writes, at extents that no machine here could hold.

`watch` runs a call in Triton's interpreter without touching its tensors: they may be meta tensors
of any extent. Each gets a span of addresses to itself, so that every lane that is not masked is
seen to lie inside its tensor or not, and every addition or product of 32-bit integers is done in 64
bits as well, so that one that wraps is seen, masked or not. Only corners of a large grid are
run: its first and last programs are those with the extreme addresses.

Of a meta tensor a load answers zero, or what `contents` says by the kernel's name of the pointer.
As float data are zero, no integer arithmetic on bits of floats wraps, and a wrap is one of an
index. Tensors that lie on the CPU are really read and written, where that is inside of them.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.interpreter import repair, require_tested, tl, triton
from bitgate.records.errors import EnvironmentUnfit, UsageError

Places = npt.NDArray[np.int64]
Contents = Mapping[str, Callable[[Places], Places]]

# Each tensor lies in the middle of a span of 2^48 bytes: no offset that is wrong by 2^32 elements
# of 8 bytes leaves it.
_SPAN_LOG2 = 48
_MIDDLE = 1 << (_SPAN_LOG2 - 1)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EVERY_PROGRAM = 64
_WRAPPING = {np.add: "sum", np.subtract: "difference", np.multiply: "product"}


@dataclass(frozen=True, slots=True)
class _Pointer:
    """What the interpreter needs of a tensor: where it is, and of what."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


@dataclass
class Seen:
    """What a watched call did: kernels and programs that ran, accesses, and what was wrong."""

    kernels: list[str] = field(default_factory=list)
    programs: int = 0
    accesses: int = 0
    findings: list[str] = field(default_factory=list)


@dataclass
class _Watcher:
    seen: Seen
    contents: Contents
    tensors: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    file: str = ""

    def place(self, name: str, tensor: torch.Tensor) -> _Pointer:
        number = len(self.tensors) + 1
        self.tensors[number] = (name, tensor)
        return _Pointer((number << _SPAN_LOG2) + _MIDDLE, tensor.dtype)

    def tell(self, text: str) -> None:
        """Note a finding, once, with the line of the kernel that it arose in."""
        frame: Any = sys._getframe()  # noqa: SLF001 - the one way to the line that called
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        where = f"{Path(self.file).name}:{frame.f_lineno}" if frame else self.seen.kernels[-1]
        if not any(finding.startswith(f"{where}: ") for finding in self.seen.findings):
            self.seen.findings.append(f"{where}: {text}")

    def load(self, pointers: Any, mask: Any, dtype: Any) -> Any:
        """What the lanes read; zero outside of the tensor."""
        name, element = self.access("load", pointers, mask)
        if name in self.contents:
            return self.contents[name](element).astype(dtype)
        flat = self.flat(name)
        if flat is None:
            return np.zeros(element.shape, dtype)
        inside = np.clip(element, 0, max(0, len(flat) - 1))
        return flat[inside].view(dtype) if len(flat) else np.zeros(element.shape, dtype)

    def store(self, pointers: Any, mask: Any, values: Any) -> None:
        """Write the lanes that count and lie inside of a tensor that exists."""
        name, element = self.access("store", pointers, mask)
        flat = self.flat(name)
        if flat is not None:
            live = np.broadcast_to(mask, element.shape) & (element >= 0) & (element < len(flat))
            flat[element[live]] = np.broadcast_to(values, element.shape)[live].view(flat.dtype)

    def flat(self, name: str) -> Any:
        """The elements of a tensor on the CPU as integers of their width; None for others."""
        for known, tensor in self.tensors.values():
            if known == name and tensor.device.type == "cpu":
                whole = torch.as_strided(tensor, (tensor.numel(),), (1,))
                return whole.view(_WORDS[tensor.element_size()]).numpy()
        return None

    def access(self, kind: str, addresses: Any, mask: Any) -> tuple[str, Places]:
        """Check the addresses of the lanes that count; the tensor's name and all elements."""
        at, live = np.broadcast_arrays(np.asarray(addresses, np.uint64), np.asarray(mask, bool))
        spans = (at >> np.uint64(_SPAN_LOG2)).astype(np.int64)
        number = int(spans.flat[0])
        if number not in self.tensors or (spans[live] != number).any():
            self.tell(f"{kind} outside of every tensor")
            return "", np.zeros(at.shape, np.int64)
        name, tensor = self.tensors[number]
        offset = (at & np.uint64((1 << _SPAN_LOG2) - 1)).astype(np.int64) - _MIDDLE
        element = offset // tensor.element_size()
        self.seen.accesses += int(live.sum())
        outside = live & ((element < 0) | (element >= tensor.numel()))
        if outside.any():
            which = int(element[outside].flat[0])
            self.tell(f"{kind} of {name} at element {which}, which has {tensor.numel()}")
        return name, element


def watch(call: Callable[[], object], contents: Contents | None = None) -> Seen:
    """Run a call of Triton kernels on tensors that need not exist, and see where it goes.

    Args:
        call: launches kernels on meta tensors.
        contents: what loads answer, by the kernel's name of the pointer: a function of the
            elements that are read.

    Raises:
        EnvironmentUnfit: Triton does not interpret here, or is a version without tests.
        UsageError: the call launched no kernel, or read and wrote nothing: nothing was seen.
    """
    if not repair():
        raise EnvironmentUnfit(
            "expected a process in which Triton interprets: set TRITON_INTERPRET=1 before Python "
            "starts"
        )
    require_tested(triton.__version__)
    watcher = _Watcher(Seen(), contents or {})
    with _interpreter(watcher):
        call()
    if not watcher.seen.accesses:
        raise UsageError("expected a call that launches a kernel and accesses memory, saw none")
    return watcher.seen


@contextmanager
def _replaced(owner: Any, **members: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in members}
    try:
        for name, value in members.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def _interpreter(watcher: _Watcher) -> Iterator[None]:
    """Triton's interpreter with its memory and its integer arithmetic replaced."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    with (
        _replaced(builder, **_memory(interpreter, watcher)),
        _replaced(builder, binary_op=_arithmetic(builder.binary_op, watcher)),
        _replaced(interpreter.GridExecutor, __call__=_executor(interpreter, watcher)),
        _replaced(interpreter.InterpretedFunction, __call__=_device_function(interpreter)),
    ):
        yield


def _memory(interpreter: Any, watcher: _Watcher) -> dict[str, Callable[..., Any]]:
    handle = interpreter.TensorHandle

    def load(_: Any, pointers: Any, mask: Any, other: Any, *__: Any) -> Any:
        kind = pointers.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)  # noqa: SLF001 - Triton has no public hook
        values = watcher.load(pointers.data, mask.data, dtype)
        absent = np.zeros((), dtype) if other is None else other.data
        return handle(np.where(mask.data, values, absent).astype(dtype), kind)

    def store(_: Any, pointers: Any, value: Any, mask: Any, *__: Any) -> None:
        watcher.store(pointers.data, mask.data, value.data)

    def atomic(_: Any, __: Any, pointers: Any, value: Any, mask: Any, *___: Any) -> Any:
        watcher.access("atomic", pointers.data, mask.data)
        return handle(np.zeros_like(value.data), value.dtype.scalar)

    return {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": atomic,
    }


def _arithmetic(plain: Callable[..., Any], watcher: _Watcher) -> Callable[..., Any]:
    def binary(self: Any, left: Any, right: Any, operation: Any) -> Any:
        result = plain(self, left, right, operation)
        if operation in _WRAPPING and left.dtype.scalar == tl.int32:
            wide = operation(left.data.astype(np.int64), right.data.astype(np.int64))
            if (wide != result.data).any():
                which = int(wide[wide != result.data].flat[0])
                watcher.tell(f"a {_WRAPPING[operation]} of 32-bit integers is {which} and wraps")
        return result

    return binary


def _device_function(interpreter: Any) -> Callable[..., Any]:
    patched: set[str] = set()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        # Once for each module: Triton does it for each call, which takes most of the time.
        module = self.fn.__globals__["__name__"]
        if module not in patched:
            interpreter._patch_lang(self.fn)  # noqa: SLF001 - what Triton's own does
            patched.add(module)
        return self.rewrite()(*arguments, **options)

    return call


def _executor(interpreter: Any, watcher: _Watcher) -> Callable[..., None]:
    """A GridExecutor that copies no tensor and runs the corners of the grid."""

    def execute(self: Any, *arguments: Any, **options: Any) -> None:
        known = {name: value for name, value in options.items() if name in self.arg_names}
        bound = inspect.getcallargs(self.fn, *arguments, **known)
        watcher.file = self.fn.__code__.co_filename
        watcher.tensors.clear()
        watcher.seen.kernels.append(f"{self.fn.__globals__['__name__']}:{self.fn.__name__}")
        placed = {
            name: watcher.place(name, value) if isinstance(value, torch.Tensor) else value
            for name, value in bound.items()
        }
        scope = interpreter._patch_lang(self.fn)  # noqa: SLF001 - what GridExecutor calls
        try:
            given = {
                name: value if name in self.constexprs else interpreter._implicit_cvt(value)  # noqa: SLF001
                for name, value in placed.items()
            }
            grid = (*self.grid, 1, 1)[:3]
            interpreter.interpreter_builder.set_grid_dim(*grid)
            for program in _corners(grid):
                interpreter.interpreter_builder.set_grid_idx(*program)
                watcher.seen.programs += 1
                with np.errstate(all="ignore"):
                    self.fn(**given)
        finally:
            scope.restore()

    return execute


def _corners(grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The first and the last program of every axis, combined; all of a small grid."""
    if prod(grid) <= _EVERY_PROGRAM:
        yield from product(*(range(extent) for extent in grid))
        return
    yield from product(*(sorted({0, extent - 1}) for extent in grid))


_WIDE = ".to(tl.int64)"


def widens(kernel: Any) -> tuple[Any, ...]:
    """The kernel and the device functions that it calls, those of them that widen an index."""
    named = (kernel.fn.__globals__.get(name) for name in kernel.fn.__code__.co_names)
    known = (kernel, *(one for one in named if isinstance(one, type(kernel))))
    return tuple(one for one in known if _WIDE in inspect.getsource(one.fn))


@contextmanager
def narrowed(kernel: Any) -> Iterator[None]:
    """A kernel of this package without its 64-bit indices, while the context lasts.

    Raises:
        UsageError: the kernel widens nothing, so there is nothing to take away.
    """
    from triton.runtime import interpreter

    class Narrow(interpreter.FunctionRewriter):  # type: ignore[misc]
        def _prepare_source(self, lines: list[str]) -> str:
            return str(super()._prepare_source(lines)).replace(_WIDE, "")

    functions = widens(kernel)
    if not functions:
        raise UsageError(f"{kernel.__name__}: expected {_WIDE} in its source, found none")
    rewritten = interpreter.InterpretedFunction.rewritten_fn
    kept = {one.fn: one.rewrite() for one in functions}
    rewritten |= {one.fn: Narrow(one.fn, **one.kwargs).rewrite_ast() for one in functions}
    try:
        yield
    finally:
        rewritten |= kept
