"""The stored bytes of a bundle, and the tensors that are views of them."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bitgate.parity.bundle_format import AGAIN, LAYOUT, BundleError, View, storage_key

_WIDEST_BYTES = 8


class Storages:
    """The stored bytes of a bundle, by number, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: dict[int, Any] = {}
        for path in sorted(folder.glob("tensors-*.safetensors")):
            try:
                shard: Any = safe_open(path, framework="pt")
                numbers = [_number(shard, key) for key in shard.keys()]  # noqa: SIM118 - not a dict
            except (SafetensorError, ValueError) as error:
                raise BundleError(f"{path}: not a shard of a bundle: {error}; {AGAIN}") from None
            for number in numbers:
                if self._shards.setdefault(number, shard) is not shard:
                    raise BundleError(f"{path}: storage {number} is in two shards; {AGAIN}")

    @property
    def numbers(self) -> set[int]:
        """Which storages there are."""
        return set(self._shards)

    def load(self, number: int) -> torch.Tensor:
        """A fresh, writable uint8 copy of one storage."""
        if number not in self._shards:
            raise BundleError(f"{self._folder}: no shard holds storage {number}; {AGAIN}")
        held: torch.Tensor = self._shards[number].get_tensor(storage_key(number))
        return held.clone()


def _number(shard: Any, key: str) -> int:
    """Which storage a key of a shard names; ValueError unless it is one, of plain bytes."""
    number = int(key[1:])
    if storage_key(number) != key:
        raise ValueError(f"expected keys such as {storage_key(number)}, got {key}")
    held = shard.get_slice(key)
    if held.get_dtype() != "U8" or len(held.get_shape()) != 1:
        raise ValueError(f"{key}: expected flat bytes, got {held.get_dtype()}{held.get_shape()}")
    return number


def view_of(view: View, storage: torch.Tensor) -> torch.Tensor:
    """The tensor that `view` describes, over the uint8 `storage`; BundleError if it cannot be."""
    dtype = getattr(torch, view.dtype, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize > _WIDEST_BYTES:
        raise BundleError(f"{LAYOUT}: tensor {view.tensor} has the unknown dtype {view.dtype}")
    whole = storage.numel() // dtype.itemsize * dtype.itemsize
    try:
        return torch.as_strided(storage[:whole].view(dtype), view.shape, view.stride, view.start)
    except RuntimeError as error:
        raise BundleError(
            f"{LAYOUT}: tensor {view.tensor} is not in its storage: {error}"
        ) from None
