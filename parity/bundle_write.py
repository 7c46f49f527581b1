"""Writing a bundle: into a temporary sibling, sealed, then renamed; never a half one in place."""

import contextlib
import errno
import hashlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch
from safetensors.torch import save

from bitgate.parity.bundle_format import (
    COMPLETE,
    DIGESTS,
    LAYOUT,
    MANIFEST,
    TOKENS,
    Complete,
    FileLine,
    FrameLine,
    LayoutLine,
    Manifest,
    Step,
    TensorLine,
    TokensLine,
    View,
    storage_key,
)
from bitgate.records.base import Value
from bitgate.records.codec import canonical
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.types import Boundary, TensorMeta

SHARD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A tensor as it was at one moment.

    `span` holds the bytes of its storage from the first to the last element that it touches
    (uint8, on the CPU), `start` its first element in them; None when only digests are kept.
    """

    meta: TensorMeta
    finite: int | None
    offset: int
    alias_group: int
    start: int = 0
    span: torch.Tensor | None = None


class BundleWriter:
    """A context manager that takes frames and, when it leaves without an error, seals the bundle.

    Args:
        path: the directory to create; its parent must exist, and it must be absent or empty.
        shard_bytes: how many bytes of tensors a shard may hold; a larger storage has its own.

    Raises:
        UsageError: the directory exists and is not empty, or its parent does not exist.
        EnvironmentUnfit: the parent is read-only, or there is no room on the disk; what was written
            is removed.
    """

    def __init__(self, path: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        check_free(path)
        self.path = path
        self._shard_bytes = shard_bytes
        self._folder = path.parent / f".{path.name}.partial-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir()
        except OSError as error:
            raise EnvironmentUnfit(
                f"{path.parent}: cannot write there: {error.strerror}; name another with --out"
            ) from None
        self._files = contextlib.ExitStack()
        self._digests, self._layout, self._tokens = (
            self._files.enter_context((self._folder / name).open("wb"))
            for name in (DIGESTS, LAYOUT, TOKENS)
        )
        self._stored: dict[bytes, int] = {}
        self._params: dict[int, tuple[torch.Tensor, int]] = {}
        self._pending: dict[str, torch.Tensor] = {}
        self._pending_bytes = 0
        self._shards = 0
        self.frames = 0
        self.manifest: Manifest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._files.close()
                self._seal()
        finally:
            with contextlib.suppress(OSError):  # a full disk says so once more on closing
                self._files.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(
        self,
        step: Step,
        boundary: Boundary,
        tensors: tuple[Snapshot, ...],
        mutated: tuple[str, ...] = (),
    ) -> None:
        """Append a frame; tensors with a span are stored, the others leave their digests."""
        lines = tuple(TensorLine(meta=item.meta, finite=item.finite) for item in tensors)
        frame = FrameLine(
            seq=self.frames, step=step, boundary=boundary, mutated=mutated, tensors=lines
        )
        views = tuple(self._view(item) for item in tensors)
        self._append(self._digests, frame)
        self._append(self._layout, LayoutLine(seq=self.frames, views=views))
        self.frames += 1

    def add_tokens(self, line: TokensLine) -> None:
        """Append a request with its answer."""
        self._append(self._tokens, line)

    def _view(self, item: Snapshot) -> View:
        return View(
            tensor=item.meta.name,
            dtype=item.meta.dtype,
            shape=item.meta.shape,
            stride=item.meta.stride,
            offset=item.offset,
            alias_group=item.alias_group,
            storage=None if item.span is None else self._store(item.span, item.meta.role),
            start=item.start,
        )

    def _store(self, span: torch.Tensor, role: str) -> int:
        """The number of the storage with these bytes; equal bytes are stored once."""
        if id(span) in self._params:
            return self._params[id(span)][1]
        content = hashlib.sha256(span.numpy().data).digest()
        number = self._stored.get(content)
        if number is None:
            number = self._stored[content] = len(self._stored)
            self._keep(number, span)
        if role == "param":
            # Weights are the same object in every step: hold it, so that its id stays its own.
            self._params[id(span)] = (span, number)
        return number

    def _keep(self, number: int, span: torch.Tensor) -> None:
        if self._pending and self._pending_bytes + span.numel() > self._shard_bytes:
            self._flush()
        self._pending[storage_key(number)] = span
        self._pending_bytes += span.numel()

    def _flush(self) -> None:
        if self._pending:
            path = self._folder / f"tensors-{self._shards:04d}.safetensors"
            self._write(path, save(self._pending))
            self._shards += 1
            self._pending, self._pending_bytes = {}, 0

    def _append(self, file: BinaryIO, value: Value) -> None:
        line = canonical(value) + b"\n"
        with self._room(Path(file.name), len(line)):
            file.write(line)
            file.flush()  # so that a full disk is met here, where what was needed is known

    def _write(self, path: Path, data: bytes) -> None:
        with self._room(path, len(data)):
            path.write_bytes(data)

    @contextlib.contextmanager
    def _room(self, path: Path, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            written = sum(file.stat().st_size for file in self._folder.iterdir())
            free = shutil.disk_usage(self._folder.parent).free
            raise EnvironmentUnfit(
                f"{self.path}: no room on the disk for {path.name}: it needed {needed} bytes more "
                f"beside {written} bytes of the bundle so far, {free} are free. The partial bundle "
                "is removed. Free some room, name another disk with --out, or keep the tensors of "
                "fewer steps"
            ) from None

    def _seal(self) -> None:
        """Write the last shard, the manifest and the seal, then move the directory into place."""
        if self.manifest is None or self.frames == 0:
            raise UsageError(f"{self.path}: no frame was captured, so no bundle is written")
        self._flush()
        self._write(self._folder / MANIFEST, canonical(self.manifest) + b"\n")
        files = tuple(file_line(path) for path in sorted(self._folder.iterdir()))
        self._write(self._folder / COMPLETE, canonical(Complete(files=files)) + b"\n")
        self._folder.replace(self.path)


def check_free(path: Path) -> None:
    """Raise UsageError unless a bundle could be created at `path`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"{path}: expected a directory that is absent or empty, found one in use; "
            "name another with --out or remove it"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: expected a directory to write {path.name} into")


def file_line(path: Path) -> FileLine:
    """Name, SHA-256 and size of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileLine(name=path.name, sha256=sha256, size_bytes=path.stat().st_size)
