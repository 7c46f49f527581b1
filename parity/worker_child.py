"""The worker's own process: answers load and call messages on two inherited pipes.

Standard output stays free for whatever the candidate prints. A watchdog that needs no interpreter
lock writes where the process hangs to standard error and ends it, even if the parent is gone.
"""

import faulthandler
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitgate.parity.instance import Instance
    from bitgate.parity.wire import Header


def main() -> int:
    """Serve until the parent closes its end: argv holds the read and the write descriptor."""
    requests_fd, replies_fd = int(sys.argv[1]), int(sys.argv[2])
    for fd in (requests_fd, replies_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
    with os.fdopen(requests_fd, "rb") as requests, os.fdopen(replies_fd, "wb") as replies:
        try:
            import bitgate.parity.instance
            import bitgate.parity.wire  # noqa: F401 - fails here, where it can be told apart
        except ImportError as error:
            # The wire needs torch; without it the last words go to standard error.
            sys.stderr.write(f"{error}\n")
            return UNFIT
        _serve(requests, replies)
    return 0


# The exit status of a process that lacks torch or another library of ours.
UNFIT = 78


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    from bitgate.parity import wire

    instance: Instance | None = None
    while True:
        prefix = requests.read(wire.PREFIX_BYTES)
        if len(prefix) < wire.PREFIX_BYTES:
            return
        header, tensors = wire.decode(prefix, requests.read(wire.body_bytes(prefix)))
        # Echoed, so that an answer from elsewhere is not taken for this one.
        number = {"number": header["number"]}
        faulthandler.dump_traceback_later(header["timeout_s"], exit=True)
        try:
            if instance is None:
                watch = _Watch(header["root"], header["sources"])
                instance, facts = _load(header, watch)
                reply = wire.encode({"kind": "loaded", "facts": facts} | number, {})
            else:
                reply = _call(instance, header, tensors, watch)
        except Exception as error:  # noqa: BLE001 - whatever the candidate raises is its answer
            reply = wire.encode(_raised(error) | number, {})
        faulthandler.cancel_dump_traceback_later()
        replies.write(reply)
        replies.flush()


class _Watch:
    """Which files below `root` were imported although they are none of the `sources`."""

    def __init__(self, root: str | None, sources: list[str] | None) -> None:
        self._root = None if root is None or sources is None else root + os.sep
        self._sources = frozenset(sources or ())

    def settings(self) -> dict[str, str]:
        """One more setting, which must stay as it was before the import."""
        strays = ", ".join(sorted(self._strays())) or "none"
        return {"imports beside the recorded sources": strays}

    def _strays(self) -> "Iterator[str]":
        if self._root is None:
            return
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(self._root):
                relative = file.removeprefix(self._root)
                if relative not in self._sources:
                    yield relative


def _load(header: "Header", watch: _Watch) -> "tuple[Instance, dict[str, Any]]":
    import torch

    from bitgate.kernels.loading import load
    from bitgate.parity.instance import Instance
    from bitgate.parity.settings import settings

    torch.set_num_threads(header["threads"])
    before = settings() | watch.settings()
    _require_device(header["device"])
    root = None if header["root"] is None else Path(header["root"])
    function = load(header["target"], root)
    module = sys.modules[header["target"].partition(":")[0]]
    facts = {
        "file": str(Path(module.__file__ or "").resolve()),
        "torch": torch.__version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "device": torch.empty(1, device=header["device"]).device.type,
        "before": before,
        "after": settings() | watch.settings(),
    }
    if header["tiles"]:
        # Few candidates have tiles, and every process of every gate would wait for this.
        from bitgate.kernels.moe.tiles import bound

        function = bound(function, header["op"], header["tiles"])
    return Instance(function, header["device"]), facts


def _require_device(name: str) -> None:
    """Raise EnvironmentUnfit unless memory can be had on the device; names alone prove nothing."""
    import torch

    from bitgate.records.errors import EnvironmentUnfit

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise EnvironmentUnfit(
            f"device {name!r} was asked for and cannot be used: {error}; see `bitgate doctor`"
        ) from error


def _call(instance: "Instance", header: "Header", tensors: dict[str, Any], watch: _Watch) -> bytes:
    from bitgate.parity import wire

    answer = instance.call(tensors, header["constants"], header["placement"], header["poison"])
    # The prefixes keep an output apart from an input that was changed.
    out = {f"out:{index}": value for index, value in enumerate(answer.outputs)}
    changed = {f"in:{name}": value for name, value in answer.mutated.items()}
    plain = {
        "kind": "answer",
        "number": header["number"],
        "settings": answer.settings | watch.settings(),
        "overwritten": answer.overwritten,
    }
    return wire.encode(plain, out | changed)


def _raised(error: BaseException) -> "Header":
    return {
        "kind": "raised",
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch down costs as long as half of loading it, and nobody needs it any more.
    os._exit(status)
