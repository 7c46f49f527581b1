"""Orders in which float32 adds the products along K. One line of SUMS is one order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels import arithmetic

# A call's products are held at a time in blocks of about so many elements.
_BLOCK_ELEMENTS: Final = 1 << 24

Within = Callable[[Tensor], Tensor]


def serial(products: Tensor) -> Tensor:
    """One product after the other, from +0."""
    total = products.new_zeros(products.shape[:-1])
    for k in range(products.shape[-1]):
        total = total + products[..., k]
    return total


def adjacent(products: Tensor) -> Tensor:
    """A tree of adjacent pairs; what lacks to a power of two is +0."""
    extent = products.shape[-1]
    missing = (1 << max(extent - 1, 0).bit_length()) - extent
    return arithmetic.tree(torch.nn.functional.pad(products, (0, missing)))


def halving(products: Tensor) -> Tensor:
    """A tree that adds the upper half to the lower; what lacks to a power of two is +0."""
    extent = products.shape[-1]
    missing = (1 << max(extent - 1, 0).bit_length()) - extent
    lanes = torch.nn.functional.pad(products, (0, missing))
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def even_odd(products: Tensor) -> Tensor:
    """Even and odd places apart, one after the other, then the two added (AMX's TDPBF16PS)."""
    return serial(products[..., 0::2]) + serial(products[..., 1::2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Chunks of K (all of it: None) are summed from +0 by `within`, and added up one by one."""

    name: str
    text: str
    within: Within
    chunk: int | None = None
    descending: bool = False

    def of(self, products: Tensor) -> Tensor:
        """The sum over the last axis of exact products."""
        ordered = products.flip(-1) if self.descending else products
        total = products.new_zeros(products.shape[:-1])
        chunk = self.chunk or max(products.shape[-1], 1)
        for start in range(0, products.shape[-1], chunk):
            total = total + self.within(ordered[..., start : start + chunk])
        return total


def _grid() -> tuple[Sum, ...]:
    found = []
    for chunk in (None, 16, 32, 64, 128):
        place = "all of K" if chunk is None else f"chunks of {chunk}, added one by one"
        suffix = "" if chunk is None else f"-{chunk}"
        for name, within in (("serial", serial), ("pairwise", adjacent)):
            for descending in (False, True):
                # Without chunks, a tree of pairs is the same from behind.
                if descending and within is adjacent and chunk is None:
                    continue
                way = "descending" if descending else "ascending"
                found.append(
                    Sum(
                        name=f"{name}{suffix}{'-descending' if descending else ''}",
                        text=f"{place}; within: {name}, K {way}",
                        within=within,
                        chunk=chunk,
                        descending=descending,
                    )
                )
    return tuple(found)


SUMS: Final = (
    *_grid(),
    Sum(
        name="even-odd-32",
        text="chunks of 32; within: even and odd places apart, as AMX does",
        within=even_odd,
        chunk=32,
    ),
)


def grouped(rows: Tensor, w: Tensor, expert: Tensor, order: Sum) -> Tensor:
    """Each row times the matrix of its expert, summed in an order.

    Args:
        rows: [pairs, k] bfloat16.
        w: [experts, n, k] bfloat16.
        expert: [pairs] int64; -1 gives a row of +0.
        order: of the additions.

    Returns:
        [pairs, n] float32.
    """
    out = torch.zeros(len(rows), w.shape[1])
    live = torch.where(expert >= 0)[0]
    # The product of two bfloat16 is exact in float32, so contraction changes nothing.
    size = max(1, _BLOCK_ELEMENTS // max(1, w.shape[1] * w.shape[2]))
    for start in range(0, len(live), size):
        part = live[start : start + size]
        out[part] = order.of(w[expert[part]].float() * rows[part].float()[:, None])
    return out
