"""What a model family declares so that its boundaries can be captured by hooks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bitgate.parity.capture_plan import Declared

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """How a module was called."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def argument(self, position: int, name: str) -> Any:
        """An argument by position, or by the name it has where it is passed so."""
        return self.args[position] if position < len(self.args) else self.kwargs[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTap:
    """A module that is a boundary: where it is, and which of its tensors have which names.

    `inputs` names the arguments of a call, `outputs` the parts of its result and `params` the
    weights; where the boundary has an op, with the names of that kernel definition.
    """

    path: str
    declared: Declared
    inputs: Callable[[Call], Tensors]
    outputs: Callable[[Any], Tensors]
    params: Callable[[Any], Tensors] = lambda _: {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTaps:
    """The boundaries of one model family; `boundaries` derives them from the configuration.

    `version` rises when the boundaries or their tensors change: bundles of two versions are not
    comparable.
    """

    model_type: str
    version: int
    boundaries: Callable[[Any], tuple[ModuleTap, ...]]


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, ...] as [batch * tokens, ...]; a view where the layout allows."""
    return tensor.flatten(0, 1)
