"""What a kernel is to the rest of the project: a definition with its implementations.

A definition is called by name with keyword tensors and constants and answers a tensor, or a tuple
in the order of its outputs. Gates, sweeps, captures and the command line are written against this
file only; an operator's own file exports one `Kernel`, and `kernels.catalogue` lists it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from bitgate.records.types import Role, Tier, Workload

Tensors = dict[str, torch.Tensor]
Constant = float | int | str
Constants = Mapping[str, Constant]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One argument or result: `axes` name its extents in order; a role `out` is a result."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    role: Role = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """An arithmetic order. Two implementations are bit-comparable only under the same contract.

    `batch_invariant` says that a row's bits do not depend on the other rows of the call, and
    `cross_device` that the bits are the same on every device and host.
    """

    name: str
    summary: str
    batch_invariant: bool
    cross_device: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One way to compute an operator under one contract. `target` is module:function.

    One that is `tiled` takes a TileConfig as `config`.
    """

    name: str
    op: str
    contract: str
    tier: Tier
    devices: tuple[str, ...]
    target: str
    summary: str
    tiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerCase:
    """Inputs for which every correct order gives `expected` exactly; derived by integers only."""

    name: str
    inputs: Tensors
    constants: Constants
    expected: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A definition: its tensors, constants, data, and the implementations that compute it.

    `make_inputs(workload, index)` builds the inputs of one sample from integers, on the CPU, the
    same on every machine; `integer_cases()` yields the integer-exact fixtures. `references` maps a
    contract to the name of the implementation whose bits are its truth. `suites` are named lists
    of workloads; every kernel has a suite called `default`. `definition` is the mathematics in
    words, for `bitgate kernels show`.
    """

    op: str
    summary: str
    tensors: tuple[TensorSpec, ...]
    constants: tuple[tuple[str, Constant], ...]
    make_inputs: Callable[[Workload, int], Tensors]
    integer_cases: Callable[[], tuple[IntegerCase, ...]]
    implementations: tuple[Implementation, ...]
    references: Mapping[str, str]
    suites: Mapping[str, tuple[Workload, ...]]
    definition: str = ""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The arguments, in order."""
        return tuple(spec for spec in self.tensors if spec.role != "out")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The results, in order."""
        return tuple(spec for spec in self.tensors if spec.role == "out")

    def named_outputs(self, returned: object) -> Tensors:
        """The results by name. Raises TypeError when what came is not one tensor per output."""
        values = returned if isinstance(returned, tuple) else (returned,)
        names = [spec.name for spec in self.outputs]
        # Exact type: a lazy subclass could compute later, inside the checker.
        if len(values) != len(names) or any(type(value) is not torch.Tensor for value in values):
            raise TypeError(
                f"{self.op}: expected {len(names)} tensors in the order {names}, "
                f"got {[type(value).__name__ for value in values]}; return plain torch tensors"
            )
        return dict(zip(names, values, strict=True))
