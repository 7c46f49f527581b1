"""The timing child: loads both sides, then times what the parent asks for, and judges nothing.

It answers with raw times and raw outputs; expected values, references and statistics stay in the
parent. A watchdog that needs no interpreter lock ends a process that hangs and says where it hung.
"""

import faulthandler
import fcntl
import os
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

# The stopwatch takes its clocks here, before any candidate code exists in this process.
from bitgate.bench.stopwatch import Function, Sample, Stopwatch
from bitgate.kernels.devices import device
from bitgate.kernels.loading import load
from bitgate.kernels.spec import Tensors
from bitgate.parity import wire
from bitgate.parity.instance import settings

CALIBRATION_SAMPLES = 5

_settings = settings
_format_exception = traceback.format_exception


class Bench:
    """Both sides of a contest, loaded once, and the stopwatch that times them."""

    def __init__(self, header: wire.Header) -> None:
        torch.set_num_threads(header["threads"])
        self._stopwatch = Stopwatch(device(header["device"]), cold=header["cold"])
        empty_ns, gap_ns = self._stopwatch.empty_ns()
        self._sides: dict[str, Function] = {}
        # Contents of the round before: both sides settle on them, and neither is timed on them.
        self._previous: list[Tensors] = []
        before = _settings()
        for name, side in header["sides"].items():
            root = None if side["root"] is None else Path(side["root"])
            self._sides[name] = load(side["target"], root)
            if side["tiles"]:
                self._sides[name] = _tiled(self._sides[name], header["op"], side["tiles"])
        self.facts = {
            "timer": self._stopwatch.timer,
            "resolution_ns": self._stopwatch.resolution_ns,
            "empty_ns": empty_ns,
            "gap_ns": gap_ns,
            "before": before,
            "after": _settings(),
        }

    def answer(self, header: wire.Header, tensors: Tensors) -> tuple[wire.Header, Tensors]:
        """Serve one request: `warm` both sides, `calibrate` a call, or a `round` of samples."""
        inputs = _by_slot(tensors)
        if header["kind"] == "warm":
            for function in self._sides.values():
                self._stopwatch.take(function, inputs[0], header["constants"], settle=[])
            return {}, {}
        if header["kind"] == "calibrate":
            return self._calibrate(inputs[0], header["constants"]), {}
        samples = [
            self._stopwatch.take(self._sides[side], mine, header["constants"], self._previous)
            for side, mine in zip(header["sides"], inputs, strict=True)
        ]
        self._previous = inputs[0][:1]
        reply = {"samples": [_numbers(sample) for sample in samples], "settings": _settings()}
        return reply, _outputs(samples)

    def _calibrate(self, inputs: list[Tensors], constants: dict[str, Any]) -> wire.Header:
        fastest = {
            name: min(
                self._stopwatch.take(function, inputs, constants, settle=[]).ns
                for _ in range(CALIBRATION_SAMPLES)
            )
            for name, function in self._sides.items()
        }
        return {"fastest_ns": fastest}


def main() -> int:
    """Serve until the parent closes its end; argv holds the descriptor of the connection."""
    connection = Connection(int(sys.argv[1]))
    fcntl.fcntl(connection.fileno(), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    bench: Bench | None = None
    answers: Tensors
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return 0
        header, tensors = wire.decode(message[: wire.PREFIX_BYTES], message[wire.PREFIX_BYTES :])
        faulthandler.dump_traceback_later(header["timeout_s"], exit=True)
        try:
            if bench is None:
                bench = Bench(header)
                reply, answers = {"facts": bench.facts}, {}
            else:
                reply, answers = bench.answer(header, tensors)
        except Exception as error:  # noqa: BLE001 - whatever the candidate raises is its answer
            reply, answers = _raised(error), {}
        faulthandler.cancel_dump_traceback_later()
        reply |= {"nonce": header["nonce"], "number": header["number"]}
        connection.send_bytes(wire.encode(reply, answers))


def _tiled(function: Function, op: str, packed: str) -> Function:
    from bitgate.kernels.moe.tiles import bound

    return bound(function, op, packed)


def _by_slot(tensors: Tensors) -> list[list[Tensors]]:
    """The inputs of each slot's calls; their names are slot/call/tensor."""
    slots: dict[int, dict[int, Tensors]] = {}
    for key, tensor in tensors.items():
        slot, call, name = key.split("/", 2)
        slots.setdefault(int(slot), {}).setdefault(int(call), {})[name] = tensor
    return [[calls[call] for call in sorted(calls)] for _, calls in sorted(slots.items())]


def _numbers(sample: Sample) -> dict[str, Any]:
    return {
        "ns": sample.ns,
        "host_ns": sample.host_ns,
        "cpu_ns": sample.cpu_ns,
        "changed": [list(entry) for entry in sample.changed],
        "threads": sample.threads,
        "outputs": [len(outputs) for outputs in sample.outputs],
    }


def _outputs(samples: list[Sample]) -> Tensors:
    return {
        f"{slot}/{call}/{place}": output
        for slot, sample in enumerate(samples)
        for call, outputs in enumerate(sample.outputs)
        for place, output in enumerate(outputs)
    }


def _raised(error: BaseException) -> wire.Header:
    return {
        "raised": type(error).__name__,
        "message": str(error),
        "traceback": "".join(_format_exception(error)),
    }


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch down costs as long as half of loading it, and nobody needs it any more.
    os._exit(status)
