"""Bundles: the tensors that a model produced at its boundaries, step by step, with their proof.

`Bundle.open` believes nothing before it has checked everything; `BundleWriter` writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bitgate.parity.bundle_format import (
    DIGESTS,
    LAYOUT,
    MANIFEST,
    NO_LAYER,
    TOKENS,
    BundleError,
    Expected,
    FrameLine,
    LayoutLine,
    Manifest,
    Step,
    TokensLine,
    View,
    constant_values,
    read_lines,
    read_value,
)
from bitgate.parity.bundle_storage import Storages, view_of
from bitgate.parity.bundle_verify import (
    check_files,
    check_frames,
    check_layout,
    check_tensors,
    check_tokens,
)
from bitgate.parity.bundle_write import BundleWriter, Snapshot
from bitgate.records.errors import UsageError
from bitgate.records.types import Boundary, TensorMeta

__all__ = [
    "Bundle",
    "BundleError",
    "BundleWriter",
    "Frame",
    "Manifest",
    "Step",
    "Snapshot",
    "NO_LAYER",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One firing of a boundary in one step.

    When `op` is set, the tensors carry the names of that kernel definition. `closed` says that the
    inputs, parameters and state are all that the outputs depend on, `mutated` which inputs changed
    during the call; `kept` whether `load` can give the values back.
    """

    seq: int
    step: Step
    boundary: Boundary
    op: str | None
    contract: str | None
    constants: dict[str, float | int | str]
    tensors: tuple[TensorMeta, ...]
    closed: bool
    mutated: tuple[str, ...]
    finite: dict[str, int | None]
    views: tuple[View, ...]
    storages: Storages = field(repr=False)

    @property
    def kept(self) -> bool:
        """Whether the values are stored, and not only their digests."""
        return all(view.storage is not None for view in self.views)

    def meta(self, name: str) -> TensorMeta:
        """The identity of one tensor; UsageError lists the known names."""
        for meta in self.tensors:
            if meta.name == name:
                return meta
        known = [meta.name for meta in self.tensors]
        raise UsageError(f"{self.boundary.key}: no tensor {name!r}; it has {known}")

    def load(self, name: str) -> torch.Tensor:
        """A fresh copy on the CPU with the captured dtype, shape and stride.

        Raises:
            UsageError: no such tensor, or only digests were kept of this step.
        """
        return self._load((self.meta(name).name,))[name]

    def inputs(self) -> dict[str, torch.Tensor]:
        """Inputs, parameters and state by name; tensors that shared a storage share it again."""
        return self._load(tuple(meta.name for meta in self.tensors if meta.role != "out"))

    def outputs(self) -> dict[str, torch.Tensor]:
        """The captured results by name."""
        return self._load(tuple(meta.name for meta in self.tensors if meta.role == "out"))

    def _load(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        if not self.kept:
            raise UsageError(
                f"{self.boundary.key} at {self.step}: only digests were kept of this step; capture "
                "again and keep the tensors of more steps"
            )
        shared: dict[tuple[int | None, int], torch.Tensor] = {}
        tensors = {}
        for view in self.views:
            if view.tensor in names and view.storage is not None:
                # Equal bytes are stored once, but only an alias group is one live storage.
                key = (view.storage, view.alias_group)
                if key not in shared:
                    shared[key] = self.storages.load(view.storage)
                tensors[view.tensor] = view_of(view, shared[key])
        return {name: tensors[name] for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A verified bundle. `sha256` is the SHA-256 of its seal and identifies all its content."""

    path: Path
    sha256: str
    manifest: Manifest
    tokens: tuple[TokensLine, ...]
    lines: tuple[FrameLine, ...] = field(repr=False)
    layouts: tuple[LayoutLine, ...] = field(repr=False)
    storages: Storages = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "Bundle":
        """Read a bundle and verify all of it.

        Checked are the seal and the SHA-256 of every file, that no file is missing or extra, that
        every step holds every expected boundary with all its tensors, the layout, the tokens, and
        the digest of every stored tensor.

        Raises:
            UsageError: there is no such directory.
            BundleError: with the file, and the step and boundary where that can be said.
        """
        sha256 = check_files(path)
        manifest = read_value(path / MANIFEST, Manifest)
        frames = tuple(read_lines(path / DIGESTS, FrameLine))
        layouts = tuple(read_lines(path / LAYOUT, LayoutLine))
        tokens = tuple(read_lines(path / TOKENS, TokensLine))
        check_frames(manifest, frames)
        check_layout(manifest, frames, layouts)
        check_tokens(manifest, tokens)
        storages = Storages(path)
        check_tensors(frames, layouts, storages)
        return cls(
            path=path,
            sha256=sha256,
            manifest=manifest,
            tokens=tokens,
            lines=frames,
            layouts=layouts,
            storages=storages,
        )

    def frames(self) -> Iterator[Frame]:
        """The frames in capture order."""
        expected = {item.boundary.key: item for item in self.manifest.expected}
        for line, layout in zip(self.lines, self.layouts, strict=True):
            yield self._frame(line, layout, expected[line.boundary.key])

    def _frame(self, line: FrameLine, layout: LayoutLine, wanted: Expected) -> Frame:
        return Frame(
            seq=line.seq,
            step=line.step,
            boundary=line.boundary,
            op=wanted.op,
            contract=wanted.contract,
            constants=constant_values(wanted.constants),
            tensors=tuple(item.meta for item in line.tensors),
            closed=wanted.closed,
            mutated=line.mutated,
            finite={item.meta.name: item.finite for item in line.tensors},
            views=layout.views,
            storages=self.storages,
        )
