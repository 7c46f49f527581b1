"""The parent's end of a timing child: one request, one answer, a deadline, and last words."""

import multiprocessing
import secrets
from types import TracebackType
from typing import Any, NoReturn, Self

from bitgate.kernels.spec import Tensors
from bitgate.parity import wire
from bitgate.parity.fresh_process import FreshProcess
from bitgate.records.errors import BitgateError, EnvironmentUnfit
from bitgate.records.types import Pairs

# The child's own watchdog fires first, so that the place where it hung is among its last words.
_GRACE_S = 3.0
_CLOSE_S = 5.0
_LAST_WORDS_S = 1.0


class ChildFailed(BitgateError):  # noqa: N818 - what happened
    """The child raised, died, was late, or sent something that is no answer. Never a sample."""


class Child:
    """A fresh process for timing; a context manager.

    Requests carry a random word that answers must repeat with the request's number: what a
    candidate prints, or writes into the pipe by accident, is then not taken for an answer.

    Args:
        environment: the complete environment of the process.
        timeout_s: how long one request may take.
    """

    def __init__(self, environment: Pairs, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self._nonce = secrets.token_hex(16)
        self._number = 0
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = FreshProcess("bitgate.bench.child", (theirs.fileno(),), environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, header: dict[str, Any], tensors: Tensors) -> None:
        """Send one request. Raises ChildFailed when the process has ended."""
        self._number += 1
        header = header | {
            "nonce": self._nonce,
            "number": self._number,
            "timeout_s": self._timeout_s,
        }
        try:
            self._connection.send_bytes(wire.encode(header, tensors))
        except OSError:
            self._fail("it ended before the request")

    def receive(self) -> tuple[dict[str, Any], Tensors]:
        """The answer to the last request.

        Raises:
            ChildFailed: the child raised (with its traceback), died, was late, or sent nonsense.
            EnvironmentUnfit: the child says that this node cannot do it.
        """
        if not self._connection.poll(self._timeout_s + _GRACE_S):
            self._fail(f"no answer within {self._timeout_s} s")
        try:
            message = self._connection.recv_bytes()
            prefix, body = message[: wire.PREFIX_BYTES], message[wire.PREFIX_BYTES :]
            header, tensors = wire.decode(prefix, body)
            genuine = header.pop("nonce") == self._nonce and header.pop("number") == self._number
        except EOFError:
            self._fail("it ended instead of answering")
        except Exception as error:  # noqa: BLE001 - any nonsense may have been written to the pipe
            self._fail(f"what it sent is no answer ({type(error).__name__}: {error})")
        if not genuine:
            self._fail("what it sent answers another request, or was forged")
        if "raised" in header:
            kind = EnvironmentUnfit if header["raised"] == "EnvironmentUnfit" else ChildFailed
            raise kind(f"{header['message']}\n{header['traceback']}")
        return header, tensors

    def close(self) -> None:
        """End the process, gently first, and everything it started; may be called again."""
        self._connection.close()
        self._process.close(_CLOSE_S)

    def _fail(self, what: str) -> NoReturn:
        self._process.end(_LAST_WORDS_S)
        raise ChildFailed(
            f"the timing process gave no answer: {what}; status {self._process.status}. "
            f"No time is taken from it. Its last words:\n{self._process.last_words()}"
        )
