"""What must hold before a bundle is believed: its files, its frames, its layout, its bytes.

Every complaint names the file. Nothing here ever makes a comparison smaller: what is missing is an
error.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from bitgate.parity.bits import finite
from bitgate.parity.bundle_format import (
    AGAIN,
    COMPLETE,
    DIGESTS,
    LAYOUT,
    MANIFEST,
    TOKENS,
    BundleError,
    Complete,
    Expected,
    FrameLine,
    LayoutLine,
    Manifest,
    Step,
    TensorLine,
    TokensLine,
    View,
    constant_values,
    read_value,
)
from bitgate.parity.bundle_storage import Storages, view_of
from bitgate.parity.digests import digest
from bitgate.records.errors import UsageError

_SHARD = re.compile(r"tensors-\d{4,}\.safetensors")


def check_files(folder: Path) -> str:
    """The SHA-256 of the seal, after every file of the directory has been checked against it.

    Raises:
        UsageError: there is no such directory.
        BundleError: a file is missing, extra or edited.
    """
    seal = folder / COMPLETE
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: expected a bundle directory, found none; `bitgate capture` writes one"
        )
    if not seal.is_file():
        raise BundleError(f"{folder}: no file {COMPLETE}: the bundle was not finished; {AGAIN}")
    complete = read_value(seal, Complete)
    _check_names(folder, [line.name for line in complete.files])
    for line in complete.files:
        _check_file(folder / line.name, line.size_bytes, line.sha256)
    return hashlib.sha256(seal.read_bytes()).hexdigest()


def _check_names(folder: Path, listed: Sequence[str]) -> None:
    """The directory holds the listed files, and these are the files that a bundle has."""
    found = {path.name for path in folder.iterdir()} - {COMPLETE}
    known = (MANIFEST, DIGESTS, LAYOUT, TOKENS)
    for name in (*known, *sorted(listed)):
        if name not in listed or name not in found:
            raise BundleError(f"{folder / name}: the file is missing; {AGAIN}")
        if listed.count(name) > 1 or not (name in known or _SHARD.fullmatch(name)):
            raise BundleError(
                f"{folder / name}: {COMPLETE} lists it twice, or it is no file of a bundle; {AGAIN}"
            )
    for name in sorted(found - set(listed)):
        raise BundleError(f"{folder / name}: not listed in {COMPLETE}; remove the extra file")


def _check_file(path: Path, size_bytes: int, sha256: str) -> None:
    if not path.is_file():
        raise BundleError(f"{path}: expected a file, found a directory; {AGAIN}")
    size = path.stat().st_size
    if size != size_bytes:
        state = "truncated" if size < size_bytes else "longer than it was"
        raise BundleError(f"{path}: {state}: expected {size_bytes} bytes, got {size}; {AGAIN}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise BundleError(f"{path}: edited: expected SHA-256 {sha256}, got {found}; {AGAIN}")


def check_frames(manifest: Manifest, frames: Sequence[FrameLine]) -> None:
    """Every expected boundary appears once in every step of its phase, with all its tensors.

    Frames follow the order in which the manifest lists steps and boundaries, every phase has the
    same boundaries, and a parameter has the same digest in every step.
    """
    _check_manifest(manifest)
    expected = {item.boundary.key: item for item in manifest.expected}
    phases = {line.step: line.phase for line in manifest.steps}
    seen: set[tuple[Step, str]] = set()
    for index, frame in enumerate(frames):
        where = f"{DIGESTS}, line {index + 1}: {frame.boundary.key} at {frame.step}"
        wanted = expected.get(frame.boundary.key)
        if frame.seq != index:
            raise BundleError(f"{where}: expected frame {index}, got {frame.seq}: a line is gone")
        if wanted is None or phases.get(frame.step) != frame.boundary.phase:
            raise BundleError(f"{where}: {MANIFEST} expects no such frame; {AGAIN}")
        if (frame.step, frame.boundary.key) in seen:
            raise BundleError(f"{where}: the frame appears twice; {AGAIN}")
        seen.add((frame.step, frame.boundary.key))
        _check_signature(where, wanted, frame)
    for line in manifest.steps:
        for item in manifest.expected:
            if item.boundary.phase == line.phase and (line.step, item.boundary.key) not in seen:
                raise BundleError(
                    f"{DIGESTS}: no frame of {item.boundary.key} at {line.step}; a missing frame "
                    f"is an error, never a smaller comparison; {AGAIN}"
                )
    _check_order(manifest, frames)
    _check_params(frames)


def _check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that no capture writes: what is declared must fire in every step."""
    for item in manifest.expected:
        try:
            constant_values(item.constants)
        except ValueError as error:
            raise BundleError(f"{MANIFEST}: {item.boundary.key}: {error}; {AGAIN}") from None
    places: dict[str, set[tuple[str, int, int, int]]] = {
        line.phase: set() for line in manifest.steps
    }
    for item in manifest.expected:
        one = item.boundary
        places.setdefault(one.phase, set()).add((one.name, one.layer, one.ordinal, one.rank))
    every = set().union(*places.values())
    for phase, found in places.items():
        if found != every:
            raise BundleError(
                f"{MANIFEST}: {phase} lacks the boundaries {sorted(every - found)} of other "
                f"phases; a capture expects each in every step; {AGAIN}"
            )
    last: dict[int, int] = {}
    for line in manifest.steps:
        if line.step.token <= last.get(line.step.request, line.step.token - 1):
            raise BundleError(f"{MANIFEST}: {line.step} comes too late in its request; {AGAIN}")
        last[line.step.request] = line.step.token


def _check_order(manifest: Manifest, frames: Sequence[FrameLine]) -> None:
    steps = {line.step: index for index, line in enumerate(manifest.steps)}
    places = {item.boundary.key: index for index, item in enumerate(manifest.expected)}
    at = [(steps[frame.step], places[frame.boundary.key]) for frame in frames]
    for before, frame, after in zip(at, frames[1:], at[1:], strict=False):
        if after < before:
            raise BundleError(
                f"{DIGESTS}: {frame.boundary.key} at {frame.step} comes too late: frames follow "
                f"the steps and boundaries of {MANIFEST}; {AGAIN}"
            )


def _check_params(frames: Sequence[FrameLine]) -> None:
    """A boundary's weights are the same in every step and phase, as the capture made sure."""
    digests: dict[tuple[str, int, int, int, str], str] = {}
    for frame in frames:
        one = frame.boundary
        for line in frame.tensors:
            place = (one.name, one.layer, one.ordinal, one.rank, line.meta.name)
            known = digests.setdefault(place, line.meta.digest)
            if line.meta.role == "param" and known != line.meta.digest:
                raise BundleError(
                    f"{DIGESTS}: {one.key} at {frame.step}: the weight {line.meta.name} has "
                    f"another digest than in an earlier step; {AGAIN}"
                )


def _check_signature(where: str, wanted: Expected, frame: FrameLine) -> None:
    found = tuple((line.meta.name, line.meta.role) for line in frame.tensors)
    if found != wanted.tensors:
        raise BundleError(f"{where}: expected the tensors {wanted.tensors}, got {found}; {AGAIN}")


def check_layout(
    manifest: Manifest, frames: Sequence[FrameLine], layouts: Sequence[LayoutLine]
) -> None:
    """Every tensor of every frame has its view, and the kept steps have their bytes."""
    kept = {line.step: line.kept for line in manifest.steps}
    if len(layouts) != len(frames):
        raise BundleError(f"{LAYOUT}: expected {len(frames)} lines, got {len(layouts)}; {AGAIN}")
    for index, (frame, layout) in enumerate(zip(frames, layouts, strict=True)):
        where = f"{LAYOUT}, line {index + 1}: {frame.boundary.key} at {frame.step}"
        metas = tuple(line.meta for line in frame.tensors)
        wanted = [(meta.name, meta.dtype, meta.shape, meta.stride) for meta in metas]
        found = [(view.tensor, view.dtype, view.shape, view.stride) for view in layout.views]
        if layout.seq != index or wanted != found:
            raise BundleError(f"{where}: expected {wanted}, got {found}; {AGAIN}")
        if any((view.storage is not None) != kept[frame.step] for view in layout.views):
            raise BundleError(f"{where}: {MANIFEST} and {LAYOUT} disagree on what is kept; {AGAIN}")


def check_tokens(manifest: Manifest, tokens: Sequence[TokensLine]) -> None:
    """There is a line per request, and every answered token has its step and its probability."""
    found = [line.request for line in tokens]
    if len(found) != manifest.requests or found != list(range(len(found))):
        raise BundleError(
            f"{TOKENS}: expected requests 0 to {manifest.requests - 1}, got {found}; {AGAIN}"
        )
    strays = {line.step.request for line in manifest.steps} - set(found)
    if found and strays:
        raise BundleError(f"{TOKENS}: no line of the requests {sorted(strays)}; {AGAIN}")
    for line in tokens:
        steps = sum(entry.step.request == line.request for entry in manifest.steps)
        if not len(line.token_ids) == len(line.logprobs) == steps:
            raise BundleError(
                f"{TOKENS}: request {line.request} took {steps} steps, but has "
                f"{len(line.token_ids)} tokens and {len(line.logprobs)} log-probabilities; {AGAIN}"
            )


def check_tensors(
    frames: Sequence[FrameLine], layouts: Sequence[LayoutLine], storages: Storages
) -> None:
    """The stored bytes are all referenced, all there, and have the recorded digests."""
    claims: dict[int, list[tuple[View, TensorLine, FrameLine]]] = {}
    for frame, layout in zip(frames, layouts, strict=True):
        for line, view in zip(frame.tensors, layout.views, strict=True):
            if view.storage is not None:
                claims.setdefault(view.storage, []).append((view, line, frame))
    for number, claimed in sorted(claims.items()):
        _check_storage(storages.load(number), claimed)
    unused = sorted(storages.numbers - claims.keys())
    if unused:
        raise BundleError(f"storages {unused} belong to no frame of {LAYOUT}; {AGAIN}")


def _check_storage(
    storage: torch.Tensor, claimed: Sequence[tuple[View, TensorLine, FrameLine]]
) -> None:
    """Every view of one storage has its digest; equal views are digested once."""
    facts: dict[tuple[object, ...], tuple[str, int | None]] = {}
    for view, line, frame in claimed:
        place = (view.start, view.dtype, view.shape, view.stride)
        if place not in facts:
            values = view_of(view, storage)
            facts[place] = (digest(values), finite(values))
        found, count = facts[place]
        if found != line.meta.digest:
            raise BundleError(
                f"{frame.boundary.key} at {frame.step}: tensor {view.tensor} has digest "
                f"{found}, {DIGESTS} says {line.meta.digest}; {AGAIN}"
            )
        if count != line.finite:
            raise BundleError(
                f"{frame.boundary.key} at {frame.step}: tensor {view.tensor} has {count} finite "
                f"elements, {DIGESTS} says {line.finite}; {AGAIN}"
            )
