"""What the calls of every grouped matmul share: the tensors of a call, its checks, its results."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.spec import Kernel, Tensors, TensorSpec
from bitgate.records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMatmul(ABC):
    """One call of a grouped matmul, checked against its definition.

    Attributes:
        a: [tokens, k]; of pair p it is the row p // top_k that counts.
        w: [experts, n, k].
        sorted_pairs: [blocks * block_m] int32, and so are the next two, as moe_align gives them.
        expert_ids: [blocks].
        padded: [1].
        weights: [tokens * top_k] float32.
        bias: [experts, n] float32 or bfloat16, which is widened; None is one of zeros.
        top_k: pairs per row of `a`.
        apply_weights: 1 multiplies the sum by `weights` before it is rounded, 0 does not.
        config: the tiles; block_m is that of sorted_pairs.

    Raises:
        UsageError: a tensor is not as the definition says, or a constant is none of it.
    """

    a: torch.Tensor
    w: torch.Tensor
    sorted_pairs: torch.Tensor
    expert_ids: torch.Tensor
    padded: torch.Tensor
    weights: torch.Tensor
    top_k: int
    apply_weights: int
    config: TileConfig
    bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        op = self.definition.op
        _check_pairs(op, self.top_k, self.apply_weights)
        self._check_constants()
        fixed = {"top_k": self.top_k, "block_m": self.config.block_m, "one": 1}
        bind(op, _biased(self.definition.inputs, self.bias), self.inputs, fixed=fixed)
        _check_rows(op, self.w)
        self._check_tensors()

    @property
    @abstractmethod
    def definition(self) -> Kernel:
        """The operator that is called."""

    @abstractmethod
    def _check_constants(self) -> None:
        """Check the constants that this matmul alone has."""

    @abstractmethod
    def _check_tensors(self) -> None:
        """Check what the definition's axes do not say of its tensors."""

    @property
    def inputs(self) -> Tensors:
        """The tensors that were given, by name."""
        given = {spec.name: getattr(self, spec.name) for spec in self.definition.inputs}
        return {name: tensor for name, tensor in given.items() if tensor is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """Of both results: pairs and columns."""
        return self.weights.shape[0], self.w.shape[1]

    def new(self, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a result, +0 as the rows that no block names stay."""
        return torch.zeros(self.shape, dtype=dtype, device=self.a.device)


def _check_pairs(op: str, top_k: int, apply_weights: int) -> None:
    if type(top_k) is not int or top_k < 1:
        raise UsageError(f"{op}: expected top_k of at least 1, an int, got {top_k!r}")
    if type(apply_weights) is not int or apply_weights not in (0, 1):
        raise UsageError(f"{op}: expected apply_weights of 0 or 1, an int, got {apply_weights!r}")


def _biased(specs: tuple[TensorSpec, ...], bias: torch.Tensor | None) -> tuple[TensorSpec, ...]:
    """The specifications for a bias that may be bfloat16."""
    if bias is None or bias.dtype != torch.bfloat16:
        return specs
    return tuple(replace(one, dtype="bfloat16") if one.name == "bias" else one for one in specs)


def _check_rows(op: str, w: torch.Tensor) -> None:
    if w.shape[-1] > 1 and w.stride(-1) != 1:
        raise UsageError(
            f"{op}: expected the elements of a row of w to be adjacent, got strides {w.stride()}; "
            "lay the weights out once as [experts, n, k]: copies at each call would be timed"
        )
