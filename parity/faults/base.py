"""The nouns of the fault catalogue: a fault, what it is planted in, and the checks for it.

A fault says how one published (or planted) defect changes a correct implementation, and which named
checks must see it. Nothing is taken on trust: a plant reports each time that its defect really acts
(`Fired`), and its `witness` is an observation that must differ between the correct and the faulty
implementation. So a mutant that never fires or that equals the original is an error, and so is one
that a listed check misses or that an unlisted one catches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from bitgate.kernels.spec import Constants, Tensors
from bitgate.records.base import require

NAN_FILL, FINITE_FILL, ZERO_FILL = 0xFF, 0x7F, 0


class Memory:
    """Outputs and workspaces by name, owned by the caller: filled with one byte, and then kept.

    `take` gives the same bytes again, with what the last call left in them, for as long as they are
    enough; that is how an engine reuses its workspace. The byte 0xFF is a NaN in every float type
    and -1 in every integer, 0x7F a large finite number in bfloat16 and float32.
    """

    def __init__(self, fill: int = ZERO_FILL) -> None:
        self._fill = fill
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor over the buffer of this name; a larger request gets a new buffer."""
        size = prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = torch.full((size,), self._fill, dtype=torch.uint8)
            self._buffers[name] = buffer
        return buffer[:size].view(dtype).view(shape)


class Fired:
    """How often a defect acted: a plant calls it with whether this execution met its trigger."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, acts: bool) -> bool:  # noqa: FBT001 - it reads as `if fired(width > 256)`
        """Count a defect that acts, and hand its condition back."""
        self.count += bool(acts)
        return bool(acts)


Run = Callable[[Tensors, Constants, Memory], Tensors]
"""An implementation: tensors and constants by name, and the memory that its outputs lie in.

Answers the outputs by name.
"""

New = Callable[[], Run]
"""A new instance of an implementation, as a fresh process would have it: without a past."""

Look = Callable[[New], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named question; `look` says what is wrong with an implementation, or None.

    `name` is unique within a target, and means the same in every target that has it.
    """

    name: str
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What faults are planted in: an operator, a kernel's addresses, a rule of configuration.

    `correct` are its correct implementations by name, which every check must pass; faults are
    planted in those of `hosts`.
    """

    name: str
    correct: Mapping[str, Run]
    hosts: tuple[str, ...]
    checks: tuple[Check, ...]

    def __post_init__(self) -> None:
        names = [check.name for check in self.checks]
        require(bool(names), f"target {self.name}: without a check nothing would be found")
        require(len(set(names)) == len(names), f"target {self.name}: check names repeat: {names}")
        require(
            bool(self.hosts) and set(self.hosts) <= set(self.correct),
            f"target {self.name}: expected hosts among {sorted(self.correct)}, got {self.hosts}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One defect.

    Attributes:
        id: such as B8; unique.
        title: what was wrong, in a few words.
        trigger: the least that makes it show.
        sources: where it was published, as text.
        target: the name of what it is planted in.
        plant: makes the faulty implementation from a correct one.
        witness: an observation that differs between the two; called with either.
        caught_by: exactly the checks of the target that must catch it.
        note: how the defect is modelled, where the published mechanism cannot run here as it is.
    """

    id: str
    title: str
    trigger: str
    sources: tuple[str, ...]
    target: str
    plant: Callable[[Run, Fired], Run]
    witness: Callable[[Run], Any]
    caught_by: tuple[str, ...]
    note: str = ""

    def __post_init__(self) -> None:
        require(bool(self.caught_by), f"fault {self.id}: expected checks that catch it, got none")
        require(bool(self.sources), f"fault {self.id}: expected a source, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A published defect that cannot be planted here: listed, and never counted as caught.

    `reason` says why it cannot, `needs` what would find it and where.
    """

    id: str
    title: str
    trigger: str
    sources: tuple[str, ...]
    reason: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """The faults of one file, with their targets."""

    name: str
    targets: tuple[Target, ...]
    faults: tuple[Fault, ...]
    open: tuple[Open, ...] = ()
