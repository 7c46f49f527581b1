"""One loaded implementation inside one process: how it is called, and what a call may disturb.

This half runs beside the candidate's code, so it never sees an expected value. Inputs are copied
into its own buffers; "same" keeps the addresses and objects of the previous call under new
contents, "moved" puts the contents at other addresses. Together they expose results that are
cached by address, identity or shape.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.settings import settings

__all__ = ["Answer", "Instance", "Placement", "settings"]

Placement = Literal["same", "moved"]

# More than one block of a size, so that an allocator which keeps several free lists is covered.
_POISONED_BLOCKS = 3

# Outputs that are kept and looked at again; a ring of fewer buffers shows itself.
_HELD_CALLS = 4

# The candidate may replace what torch names; the checks below keep what they were written with.
_equal = torch.equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call did.

    Outputs by position, inputs that it changed, settings after it, and outputs of earlier calls
    that no longer hold what they held, such as "output 0 of the call before".
    """

    outputs: tuple[torch.Tensor, ...]
    mutated: Tensors
    settings: dict[str, str]
    overwritten: tuple[str, ...]


class _Outputs(NamedTuple):
    """What a call returned, and a copy of what that held."""

    live: tuple[torch.Tensor, ...]
    held: tuple[torch.Tensor, ...]


class Instance:
    """A function with the buffers that its inputs live in.

    Args:
        function: called with keyword tensors and constants; answers a tensor or a tuple.
        device: where the inputs are put and the outputs must lie, such as "cpu".
    """

    def __init__(self, function: Callable[..., Any], device: str) -> None:
        self._function = function
        self._device = torch.device(device)
        self._buffers: Tensors = {}
        self._output_bytes: tuple[int, ...] = ()
        self._earlier: deque[_Outputs] = deque(maxlen=_HELD_CALLS)

    def call(
        self, inputs: Tensors, constants: Constants, placement: Placement, poison: int
    ) -> Answer:
        """Call the implementation once.

        Args:
            inputs: contiguous CPU tensors by name; they are copied and never handed out.
            constants: numbers and texts by name.
            placement: whether the buffers of the previous call are used again.
            poison: byte pattern, 0 to 255, with which free memory of the outputs' sizes is filled
                before the call, so that an output that is not written does not look right.

        Raises:
            TypeError: a result is not a plain, strided torch tensor on the device.
        """
        buffers = self._place(inputs, placement)
        self._poison(poison)
        with torch.no_grad():
            returned = self._function(**buffers, **constants)
        outputs = self._checked(returned if isinstance(returned, tuple) else (returned,))
        overwritten = self._overwritten()
        self._output_bytes = tuple(output.nbytes for output in outputs)
        mutated = {
            name: _host(buffers[name])
            for name, given in inputs.items()
            if not _same_bytes(given, buffers[name])
        }
        held = tuple(_host(output) for output in outputs)
        self._earlier.appendleft(_Outputs(outputs, held))
        return Answer(outputs=held, mutated=mutated, settings=settings(), overwritten=overwritten)

    def _overwritten(self) -> tuple[str, ...]:
        """A consumer may still read earlier outputs: they belong to it, not to the next call."""
        return tuple(
            f"output {position} of {ago} calls ago"
            for ago, earlier in enumerate(self._earlier, start=1)
            for position, (live, held) in enumerate(zip(*earlier, strict=True))
            if not _same_bytes(held, _host(live))
        )

    def _place(self, inputs: Tensors, placement: Placement) -> Tensors:
        old, placed = self._buffers, {}
        for name, given in inputs.items():
            buffer = old.get(name)
            fits = buffer is not None and (buffer.dtype, buffer.shape) == (given.dtype, given.shape)
            if placement == "moved" or buffer is None or not fits:
                buffer = torch.empty_like(given, device=self._device)
            placed[name] = buffer.copy_(given)
        # `old` is alive until here, so that no "moved" buffer can reuse an old address.
        self._buffers = placed
        return placed

    def _poison(self, pattern: int) -> None:
        blocks = [
            torch.empty(size, dtype=torch.uint8, device=self._device).fill_(pattern)
            for size in self._output_bytes
            for _ in range(_POISONED_BLOCKS)
        ]
        del blocks

    def _checked(self, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        for value in values:
            # Exact type: a lazy subclass could compute later, inside the checker.
            if type(value) is not torch.Tensor or value.layout is not torch.strided:
                raise TypeError(
                    "expected plain strided torch tensors, got "
                    f"{[type(item).__name__ for item in values]}; return a tensor or a tuple"
                )
            if value.device.type != self._device.type:
                raise TypeError(
                    f"expected an output on {self._device.type}, got one on {value.device.type}; "
                    "an implementation answers on the device of its inputs"
                )
        return values


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU that shares no memory with anything."""
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
    # Also a single element has any stride, and counts as contiguous.
    return plain.clone(memory_format=torch.contiguous_format)


def _same_bytes(given: torch.Tensor, buffer: torch.Tensor) -> bool:
    if (given.dtype, given.shape) != (buffer.dtype, buffer.shape):
        return False
    left, right = given.reshape(-1).view(torch.uint8), buffer.detach().cpu().reshape(-1)
    return _equal(left, right.view(torch.uint8))
