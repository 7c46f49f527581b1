"""Taking one sample inside the child: everything around the bare calls, and nothing between them.

This module is imported before any candidate code and keeps its own references to the clocks, so a
candidate that replaces `time.perf_counter_ns` or a synchronise function afterwards changes nothing.
"""

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import CLOCK_MONOTONIC_RAW, CLOCK_PROCESS_CPUTIME_ID, clock_gettime_ns
from typing import Any

import torch

from bitgate.kernels.devices import Device
from bitgate.kernels.devices.base import MAX_FLUSH_BYTES
from bitgate.kernels.spec import Constants, Tensors
from bitgate.records.errors import EnvironmentUnfit

POISON_BYTE = 0xFF
EMPTY_SAMPLES = 50

# More than one block of a size: an allocator may keep several free lists.
_POISONED_BLOCKS = 2

_empty_like = torch.empty_like
_empty = torch.empty
_equal = torch.equal
_no_grad = torch.no_grad
_active_threads = threading.active_count
_stop_collecting, _resume_collecting = gc.disable, gc.enable

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample: `ns` by the device's timer and `host_ns` by the host's raw clock around it.

    `cpu_ns` is what all threads of the process worked meanwhile.
    `outputs[call]` are copies on the CPU, taken as soon as the clocks had stopped; `changed` are
    the inputs that a call wrote to, as (call, name); `threads` counts the threads that it left.
    """

    ns: int
    host_ns: int
    cpu_ns: int
    outputs: tuple[tuple[torch.Tensor, ...], ...]
    changed: tuple[tuple[int, str], ...]
    threads: int


class Stopwatch:
    """Times calls on one device, each on inputs of its own.

    Args:
        device: where the inputs are put, and what times the work.
        cold: whether the caches are emptied before each sample.

    Raises:
        EnvironmentUnfit: `cold` cannot be proved, because the cache's size is unknown or larger
            than what a flush writes.
    """

    def __init__(self, device: Device, *, cold: bool) -> None:
        timer = device.timer()
        self.timer, self.resolution_ns = timer.name, timer.resolution_ns
        self._elapsed_ns = timer.elapsed_ns
        self._name = device.name
        self._synchronize = device.synchronize
        self._flush = _proved_flush(device) if cold else _nothing
        self._kept: list[list[Tensors]] = []
        self._output_bytes: tuple[int, ...] = ()

    def empty_ns(self) -> tuple[int, int]:
        """What timing nothing reads (median), and the widest gap between the two clocks."""
        samples = [self._time(_nothing, [{}])[:2] for _ in range(EMPTY_SAMPLES)]
        taken = sorted(ns for ns, _ in samples)
        gaps = sorted(host_ns - ns for ns, host_ns in samples)
        return taken[len(taken) // 2], gaps[-1]

    def take(
        self,
        function: Function,
        inputs: list[Tensors],
        constants: Constants,
        settle: list[Tensors],
    ) -> Sample:
        """Time `function` once on every element of `inputs`, back to back.

        Args:
            function: the implementation.
            inputs: CPU tensors by name, one set per call; they are copied, at changing addresses.
            constants: passed with every call.
            settle: inputs of an untimed call just before, so that the first side of a round does
                not pay for waking the machine up; other contents than those that are timed.

        Raises:
            TypeError: an output is not a plain strided tensor on the device.
        """
        with _no_grad():
            decoys, placed = self._place(settle), self._place(inputs)
            for tensors in decoys:
                function(**tensors, **constants)
            calls = [{**tensors, **constants} for tensors in placed]
            self._poison(len(calls))
            threads = _active_threads()
            ns, host_ns, cpu_ns, returned = self._time(function, calls)
            threads = _active_threads() - threads
            outputs = tuple(self._copies(value) for value in returned)
            changed = tuple(
                (call, name)
                for call, given in enumerate(inputs)
                for name, tensor in given.items()
                if not _same(tensor, placed[call][name].cpu())
            )
        self._output_bytes = tuple(output.nbytes for output in outputs[0])
        return Sample(
            ns=ns,
            host_ns=host_ns,
            cpu_ns=cpu_ns,
            outputs=outputs,
            changed=changed,
            threads=threads,
        )

    def _time(
        self, function: Function, calls: list[dict[str, Any]]
    ) -> tuple[int, int, int, list[object]]:
        returned: list[object] = []

        def calls_in_a_row() -> None:
            returned[:] = [function(**call) for call in calls]

        self._flush()
        _stop_collecting()
        self._synchronize()
        start_cpu_ns = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID)
        start_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        ns = self._elapsed_ns(calls_in_a_row)
        self._synchronize()
        host_ns = clock_gettime_ns(CLOCK_MONOTONIC_RAW) - start_ns
        cpu_ns = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID) - start_cpu_ns
        _resume_collecting()
        return ns, host_ns, cpu_ns, returned

    def _place(self, inputs: list[Tensors]) -> list[Tensors]:
        """Copies on the device. The previous ones are kept alive, so that addresses change."""
        placed = [
            {
                name: _empty_like(tensor, device=self._name).copy_(tensor)
                for name, tensor in given.items()
            }
            for given in inputs
        ]
        self._kept = [*self._kept[-4:], placed]
        return placed

    def _poison(self, calls: int) -> None:
        """Fill free memory of the outputs' sizes, so that an unwritten output looks wrong."""
        blocks = [
            _empty(size, dtype=torch.uint8, device=self._name).fill_(POISON_BYTE)
            for size in self._output_bytes
            for _ in range(_POISONED_BLOCKS * calls)
        ]
        del blocks

    def _copies(self, returned: object) -> tuple[torch.Tensor, ...]:
        values = returned if isinstance(returned, tuple) else (returned,)
        for value in values:
            # Exact type: a lazy subclass would compute later, in the copy below.
            if type(value) is not torch.Tensor or value.layout is not torch.strided:
                raise TypeError(
                    "expected plain strided torch tensors, got "
                    f"{[type(item).__name__ for item in values]}; return a tensor or a tuple"
                )
            if value.device.type != self._name:
                raise TypeError(
                    f"expected an output on {self._name}, got one on {value.device.type}"
                )
        return tuple(
            value.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
            for value in values
        )


def _nothing() -> None:
    """The empty candidate, and the flush of a warm sample."""


def _proved_flush(device: Device) -> Callable[[], None]:
    facts = device.require()
    if facts.cache_bytes is None or facts.cache_bytes > MAX_FLUSH_BYTES:
        raise EnvironmentUnfit(
            f"regime cold: expected a known cache of at most {MAX_FLUSH_BYTES} bytes, got "
            f"{facts.cache_bytes}; a cold call cannot be proved here, use regime warm"
        )
    return device.flusher()


def _same(given: torch.Tensor, now: torch.Tensor) -> bool:
    if (given.dtype, given.shape) != (now.dtype, now.shape):
        return False
    flat = now.contiguous().reshape(-1).view(torch.uint8)
    return bool(_equal(given.contiguous().reshape(-1).view(torch.uint8), flat))
