"""A fresh process for somebody else's code: apart from ours, and ended with all that it started."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import BinaryIO

from bitgate.records.types import Pairs

_POLL_S = 0.005
_TAIL_BYTES = 4096


class FreshProcess:
    """A Python process in a session of its own; what it prints is kept for its last words.

    Args:
        module: what it runs, as with `python -m`.
        descriptors: open files that it inherits, and whose numbers are its arguments.
        environment: its complete environment; None: a copy of ours.
    """

    def __init__(
        self, module: str, descriptors: tuple[int, ...], environment: Pairs | None
    ) -> None:
        # A file, not a pipe: a chatty candidate cannot block on it.
        self._noise: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", module, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=self._noise,
            stderr=self._noise,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its number, which is also that of its group."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended: its exit status, or the signal as a negative number; None before `end`."""
        return self._process.returncode

    def end(self, patience_s: float) -> None:
        """Let it end by itself for so long, then end its whole group; may be called again.

        It may have started processes, which outlive it. The group is ended before the process is
        reaped: until then nobody else can have its number.
        """
        if self._process.returncode is not None:
            return
        deadline = time.monotonic() + patience_s
        gone = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while not os.waitid(os.P_PID, self.pid, gone) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """The end of what it printed."""
        size = self._noise.seek(0, os.SEEK_END)
        self._noise.seek(max(0, size - _TAIL_BYTES))
        return self._noise.read().decode(errors="replace").strip() or "(none)"

    def close(self, patience_s: float) -> None:
        """End it, and forget what it printed; may be called again."""
        self.end(patience_s)
        self._noise.close()
