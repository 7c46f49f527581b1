"""A fresh child process that holds one loaded implementation and nothing that it could cheat with.

The parent keeps references and statistics. Requests carry inputs, constants and how to place them;
answers carry raw outputs, the inputs that the call changed and the settings it left behind.
"""

import fcntl
import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import torch

from bitgate.kernels.spec import Constants, Kernel, Tensors
from bitgate.parity import wire
from bitgate.parity.fresh_process import FreshProcess
from bitgate.parity.instance import Placement
from bitgate.parity.worker_child import UNFIT
from bitgate.records.errors import BitgateError, EnvironmentUnfit
from bitgate.records.types import Pairs

START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 120.0

# The child's watchdog fires first, so that the place where it hung is on its standard error.
_GRACE_S = 2.0
_CLOSE_S = 5.0
_CHUNK_BYTES = 1 << 20


class WorkerError(BitgateError):
    """The implementation gave no answer; the message holds its traceback or last words."""


class WorkerDied(WorkerError):  # noqa: N818 - what happened, as in the protocol
    """The process ended instead of answering."""


class WorkerTimeout(WorkerError):  # noqa: N818 - as above
    """The process did not answer in time and was ended. Never a pass."""


class LoadFailed(WorkerError):  # noqa: N818 - as above
    """The implementation could not be imported."""


class CallFailed(WorkerError):  # noqa: N818 - as above
    """The implementation raised, or returned something else than its outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a worker runs and under which conditions.

    `target` is module:function below `root` (or importable, without one); `environment` is the
    child's complete environment; `timeout_s` limits each call, `start_timeout_s` the import.
    `sources` are the files below `root` that may be imported, relative to it (None: any); `tiles`
    is a tuned file as `kernels.moe.tiles.packed` writes it, or empty.
    """

    kernel: Kernel
    target: str
    root: Path | None
    device: str = "cpu"
    threads: int = 1
    environment: Pairs | None = None
    sources: tuple[str, ...] | None = None
    tiles: str = ""
    timeout_s: float = CALL_TIMEOUT_S
    start_timeout_s: float = START_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the child reports once the implementation is loaded.

    `file` is the module file that was imported; `before` and `after` are the process-wide torch
    settings around the import.
    """

    file: str
    torch: str
    python: str
    device: str
    before: dict[str, str]
    after: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One call's outputs by name, inputs that it changed (as they are now), settings after it.

    `overwritten` names outputs of earlier calls that no longer hold what they held.
    """

    outputs: Tensors
    mutated: Tensors
    settings: dict[str, str]
    overwritten: tuple[str, ...] = ()


class Worker:
    """A context manager around the child; `facts` waits until the implementation is loaded.

    The process starts at once and is awaited at the first use, so that several start together.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._facts: Facts | None = None
        self._number = 0
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        try:
            self._process = FreshProcess(
                "bitgate.parity.worker_child", (request_read, reply_write), launch.environment
            )
        finally:
            os.close(request_read)
            os.close(reply_write)
        os.set_blocking(self._requests, False)
        for fd in (self._requests, self._replies):
            with suppress(OSError):  # a smaller pipe is slower, not wrong
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
        self._deadline = time.monotonic() + launch.start_timeout_s + _GRACE_S
        header = {
            "target": launch.target,
            "root": None if launch.root is None else str(launch.root.resolve()),
            "device": launch.device,
            "threads": launch.threads,
            "timeout_s": launch.start_timeout_s,
            "number": self._number,
            "sources": launch.sources,
            "op": launch.kernel.op,
            "tiles": launch.tiles,
        }
        try:
            self._write(wire.encode(header, {}))
        except BitgateError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def facts(self) -> Facts:
        """What was loaded, and where. Raises LoadFailed, EnvironmentUnfit, WorkerDied, -Timeout."""
        if self._facts is None:
            header, _ = self._read()
            if header["kind"] == "raised":
                kind = EnvironmentUnfit if header["type"] == "EnvironmentUnfit" else LoadFailed
                raise kind(f"{header['message']}\n{header['traceback']}")
            self._facts = Facts(**header["facts"])
        return self._facts

    def call(self, inputs: Tensors, constants: Constants) -> Tensors:
        """The outputs by name of one call on contiguous CPU tensors; raises as `receive`."""
        self.send(inputs, constants)
        return self.receive().outputs

    def send(
        self,
        inputs: Tensors,
        constants: Constants,
        *,
        placement: Placement = "same",
        poison: int = 0xFF,
    ) -> None:
        """Begin a call; `receive` ends it. Placement and poison are those of `Instance.call`."""
        _ = self.facts
        self._number += 1
        header = {
            "constants": dict(constants),
            "placement": placement,
            "poison": poison,
            "timeout_s": self._launch.timeout_s,
            "number": self._number,
        }
        plain = _apart({name: tensor.detach().contiguous() for name, tensor in inputs.items()})
        self._deadline = time.monotonic() + self._launch.timeout_s + _GRACE_S
        self._write(wire.encode(header, plain))

    def receive(self) -> Reply:
        """The answer to the call that was sent.

        Raises:
            CallFailed: the implementation raised, or did not return its outputs.
            WorkerDied: the process ended.
            WorkerTimeout: no answer in time; the process was ended.
        """
        header, tensors = self._read()
        if header["kind"] == "raised":
            raised = f"{header['type']}: {header['message']}"
            raise CallFailed(f"{self._launch.target} raised {raised}\n{header['traceback']}")
        outputs = [value for _, value in _part(tensors, "out:", sort=int)]
        try:
            named = self._launch.kernel.named_outputs(tuple(outputs))
        except TypeError as error:
            raise CallFailed(f"{self._launch.target}: {error}") from error
        mutated = dict(_part(tensors, "in:", sort=str))
        return Reply(
            outputs=named,
            mutated=mutated,
            settings=header["settings"],
            overwritten=tuple(header["overwritten"]),
        )

    def close(self) -> None:
        """End the process, gently first, and everything it started; may be called again."""
        for fd in (self._requests, self._replies):
            with suppress(OSError):
                os.close(fd)
        self._requests = self._replies = -1
        self._process.close(_CLOSE_S)

    def _write(self, message: bytes) -> None:
        left = memoryview(message)
        while left:
            self._await(self._requests, select.POLLOUT)
            try:
                left = left[os.write(self._requests, left[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._fail()

    def _read(self) -> tuple[wire.Header, Tensors]:
        try:
            prefix = self._take(wire.PREFIX_BYTES)
            header, tensors = wire.decode(prefix, self._take(wire.body_bytes(prefix)))
        except ValueError as error:
            self._stray(str(error))
        if header.get("number") != self._number:
            self._stray(f"it has the number {header.get('number')}, expected {self._number}")
        return header, tensors

    def _stray(self, why: str) -> NoReturn:
        """Nothing can be told from this process any more: somebody else writes into its pipe."""
        self._process.end(0)
        raise WorkerDied(
            f"{self._launch.target}: expected one answer to each call, got something else: {why}. "
            "Does it fork, or write to descriptors that are not its own?"
        )

    def _take(self, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            self._await(self._replies, select.POLLIN)
            chunk = os.read(self._replies, min(_CHUNK_BYTES, count - len(taken)))
            if not chunk:
                self._fail()
            taken += chunk
        return bytes(taken)

    def _await(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        remaining_ms = max(0, int(1000 * (self._deadline - time.monotonic())))
        if not poll.poll(remaining_ms):
            self._fail()

    def _fail(self) -> NoReturn:
        """Raise what happened to the process, which has closed its pipe or used up its time."""
        late = time.monotonic() >= self._deadline - _GRACE_S
        self._process.end(0 if late else _CLOSE_S)
        status, target = self._process.status, self._launch.target
        tail = self._process.last_words()
        if status == UNFIT:
            raise EnvironmentUnfit(f"the worker cannot run on this node: {tail}; install torch")
        if late:
            raise WorkerTimeout(
                f"{target}: expected an answer in time, got none, and ended it; raise the timeout "
                f"only if the work is known to take longer. Its last words:\n{tail}"
            )
        raise WorkerDied(
            f"{target}: expected an answer, but the process ended with status {status}; "
            f"run it by itself to see why. Its last words:\n{tail}"
        )


def _apart(tensors: Tensors) -> Tensors:
    """The same contents without shared memory, which the wire refuses."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors.values()]
    shared = {pointer for pointer in storages if storages.count(pointer) > 1}
    return {
        name: tensor.clone() if tensor.untyped_storage().data_ptr() in shared else tensor
        for name, tensor in tensors.items()
    }


def _part(
    tensors: Tensors, prefix: str, sort: type[int] | type[str]
) -> list[tuple[str, torch.Tensor]]:
    names = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    return [(name, tensors[prefix + name]) for name in sorted(names, key=sort)]
