"""Taking tensors as they are at one moment, with how they lie in memory, before they change."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bitgate.parity.bits import finite, words
from bitgate.parity.bundle_write import Snapshot
from bitgate.parity.digests import digest
from bitgate.records.types import Role, TensorMeta

_ALIGN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One tensor, copied the moment it was seen. `live` keeps its storage from being reused."""

    name: str
    role: Role
    live: torch.Tensor
    span: torch.Tensor
    start: int

    @property
    def pointer(self) -> int:
        """What tensors with a common storage have in common; without bytes they share nothing."""
        return self.live.untyped_storage().data_ptr() or -id(self)

    @property
    def copy(self) -> torch.Tensor:
        """The copied values, with the dtype, shape and stride of the live tensor."""
        size = self.live.element_size()
        whole = self.span.numel() // size * size
        typed = self.span[:whole].view(self.live.dtype)
        return torch.as_strided(typed, self.live.shape, self.live.stride(), self.start)

    @property
    def changed(self) -> bool:
        """Whether the live tensor no longer holds the copied bits."""
        return not torch.equal(words(self.live), words(self.copy))


def take(role: Role, tensors: Mapping[str, torch.Tensor], *, clone: bool = True) -> list[Taken]:
    """Copy tensors together: those that share a storage share its copy, each byte copied once.

    Only the bytes from the first to the last element that the views touch are copied. With
    `clone=False` the live bytes themselves are referred to; for weights, which do not change.
    """
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    spans: dict[int, tuple[int, int]] = {}
    for tensor in plain.values():
        first, end = _extent(tensor)
        low, high = spans.get(_pointer(tensor), (first, end))
        spans[_pointer(tensor)] = (min(low, first), max(high, end))
    copies: dict[int, tuple[torch.Tensor, int]] = {}
    taken = []
    for name, tensor in plain.items():
        pointer = _pointer(tensor)
        if pointer not in copies:
            low, high = spans[pointer]
            low = low // _ALIGN * _ALIGN
            live = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            live.set_(tensor.untyped_storage(), low, (high - low,), (1,))
            copies[pointer] = (live.clone() if clone else live, low)
        span, low = copies[pointer]
        start = int(tensor.storage_offset()) - low // tensor.element_size() if tensor.numel() else 0
        taken.append(Taken(name=name, role=role, live=tensor, span=span, start=start))
    return taken


def _pointer(tensor: torch.Tensor) -> int:
    """What the tensors of one storage have in common; tensors without bytes share nothing."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and end byte, in its storage, of the elements that a tensor touches."""
    size, offset = tensor.element_size(), int(tensor.storage_offset())
    if not tensor.numel():
        return offset * size, offset * size
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = offset + sum((extent - 1) * int(stride) for extent, stride in pairs)
    return offset * size, (last + 1) * size


def snapshot(item: Taken, group: int) -> Snapshot:
    """Digest a copy; the live tensor's values are not read. `group` is its alias group."""
    live, span = item.live, item.span.cpu()
    copy = dataclasses.replace(item, span=span).copy
    meta = TensorMeta(
        name=item.name,
        role=item.role,
        dtype=str(live.dtype).removeprefix("torch."),
        shape=tuple(live.shape),
        stride=live.stride(),
        digest=digest(copy),
    )
    return Snapshot(
        meta=meta,
        finite=finite(copy),
        offset=int(live.storage_offset()),
        alias_group=group,
        start=item.start,
        span=span,
    )


def without_bytes(whole: Snapshot) -> Snapshot:
    """The same identity without the values."""
    return dataclasses.replace(whole, span=None, start=0)
