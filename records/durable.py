"""Writing that survives a crash: all or nothing, and on the disk before it returns."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from bitgate.records.errors import EnvironmentUnfit

_LOCK_TIMEOUT_S = 60


def append_bytes(path: Path, data: bytes) -> int:
    """Append to a file, creating it if need be, and return its size before.

    Raises:
        OSError: it did not work; the file has its old size again.
    """
    created = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        try:
            write_all(handle, data)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
    if created:
        sync_directory(path.parent)
    return size


def replace_file(path: Path, data: bytes, *, suffix: str = ".tmp", sync_name: bool = True) -> None:
    """Give a file new content in one step; a crash leaves the old content or the new.

    Without `sync_name` the old content may come back after a power failure.

    Raises:
        EnvironmentUnfit: it did not work; the file is as it was.
    """
    temporary = path.with_name(path.name + suffix)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        if sync_name:
            sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unfit(error, path, len(data)) from error


def make_directory(path: Path) -> None:
    """Make a directory and those above it.

    Raises:
        EnvironmentUnfit: it did not work.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unfit(error, path, 0) from error


def write_all(handle: int, data: bytes) -> None:
    """Write every byte; a single call may write fewer."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_directory(path: Path) -> None:
    """Make a new or renamed file's name durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unfit(error: OSError, path: Path, size: int) -> EnvironmentUnfit:
    """The user's message for a failed write of `size` bytes."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return EnvironmentUnfit(
            f"no room on disk: {path} needs {size} more bytes ({error.strerror}); nothing was "
            "written. Free space and repeat the command"
        )
    return EnvironmentUnfit(f"cannot write {path}: {error.strerror}; nothing was written")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; wait while another process holds it."""
    lock = FileLock(directory / ".lock", timeout=_LOCK_TIMEOUT_S, poll_interval=0.005)
    try:
        lock.acquire()
    except Timeout:
        raise EnvironmentUnfit(
            f"another process has held {directory / '.lock'} for {_LOCK_TIMEOUT_S} s; "
            "wait for it to end, or end it"
        ) from None
    except OSError as error:
        raise unfit(error, directory / ".lock", 0) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Keep writers out while reading, where the directory lets us."""
    lock = directory / ".lock"
    if os.access(directory, os.W_OK) and (not lock.exists() or os.access(lock, os.W_OK)):
        with locked(directory):
            yield
    else:
        yield
