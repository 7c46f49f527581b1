"""The experts stage by stage: align, (quantise,) matmul, activation, (quantise,) matmul, combine.

`moe-bf16/1` and, with a Scaling, `moe-fp8/1`. Between the stages lie these boundaries, which a
caller may tap; rows of dropped pairs are +0 in all of them, and have the scale of a row of zeros:

    sorted_pairs, expert_ids, padded       the alignment
    x_codes, x_scales                      the quantised rows; of moe-fp8/1 alone
    gate_up_acc, gate_up                   the first matmul: accumulator, and rounded
    activated                              the gated activation, unless it is fused with
    activated_codes, activated_scales      its quantisation; of moe-fp8/1 alone
    weighted_acc, weighted                 the second matmul: accumulator, weighted and rounded
    out                                    the sum over slots
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_fp8 import ScaledMatmul
from bitgate.kernels.spec import Constants, Tensors
from bitgate.records.errors import UsageError

Tap = Callable[[str, Tensor], None]
Alignment = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages that a pipeline is made of, called as the operators of their names.

    `gemm` and `gemm_fp8` write a checked call into out and, where it is given, the accumulator.
    With `act_quant` the activation is fused with its quantisation.
    """

    align: Callable[..., Alignment]
    gemm: Callable[[GroupedMatmul, Tensor, Tensor | None], None]
    act: Callable[..., Tensor]
    combine: Callable[..., Tensor]
    quant: Callable[..., tuple[Tensor, Tensor]] | None = None
    gemm_fp8: Callable[[ScaledMatmul, Tensor, Tensor | None], None] | None = None
    act_quant: Callable[..., tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How rows are quantised and what has a scale: moe_quant's constants and a weight's block."""

    scheme: str = "group"
    scale_rule: str = "amax"
    rounding: str = "divide"
    block_n: int = 128
    block_k: int = 128

    @property
    def quantiser(self) -> Constants:
        """The constants of moe_quant."""
        names = {"scheme": self.scheme, "scale_rule": self.scale_rule, "rounding": self.rounding}
        return names | {"group": self.block_k}

    @property
    def matmul(self) -> dict[str, Any]:
        """The constants of moe_gemm_fp8."""
        scheme = "block" if self.scheme == "group" else "whole"
        return {"scheme": scheme, "group_n": self.block_n, "group_k": self.block_k}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline does in its stages.

    Attributes:
        act: moe_act's constants, such as its swiglu_limit and its kind.
        align: moe_align's, beside block_m.
        combine: moe_combine's, beside experts.
        weigh_input: the routing weights multiply the first accumulator and not the second.
        scaling: of float8 weights; None where they are bfloat16.
        config: the tiles of both matmuls.
        tap: called with the name and the tensor of each boundary. Accumulators are stored for it
            alone.
    """

    act: Constants
    align: Constants = field(default_factory=dict)
    combine: Constants = field(default_factory=dict)
    weigh_input: bool = False
    scaling: Scaling | None = None
    config: TileConfig = DEFAULT_CONFIG
    tap: Tap | None = None

    def show(self, **boundaries: Tensor) -> None:
        """Let the tap see them."""
        if self.tap is not None:
            for name, tensor in boundaries.items():
                self.tap(name, tensor)


def run(stages: Stages, tensors: Tensors, settings: Settings) -> Tensor:
    """The pipeline over checked inputs of moe_experts, or with a scaling of moe_experts_fp8.

    With an `expert_map` among the tensors, topk_ids number all experts of the layer, and the
    weights are those of the local ones; without, all are local. `gate_up_bias` and `down_bias` are
    [local experts, columns], where the layer has them.

    Raises:
        UsageError: a scaling for stages that have no quantiser or float8 matmul.
    """
    x, topk_ids = tensors["x"], tensors["topk_ids"]
    experts, (tokens, top_k) = len(tensors["w_down"]), topk_ids.shape
    expert_map = tensors.get("expert_map")
    local = topk_ids
    if expert_map is None:
        expert_map = torch.arange(experts, dtype=torch.int32, device=topk_ids.device)
    else:
        local = local_ids(topk_ids, expert_map)
    block_m = settings.config.block_m
    aligned = stages.align(
        topk_ids=topk_ids, expert_map=expert_map, block_m=block_m, **settings.align
    )
    matmuls = _Matmuls(stages=stages, tensors=tensors, settings=settings, aligned=aligned)
    settings.show(sorted_pairs=aligned[0], expert_ids=aligned[1], padded=aligned[2])
    rows = matmuls.quantised("x", x)
    gate_up = matmuls.multiply("gate_up", "gate_up", rows, top_k, weigh=settings.weigh_input)
    hidden = matmuls.activated(gate_up)
    weighted = matmuls.multiply("weighted", "down", hidden, 1, weigh=not settings.weigh_input)
    slots = weighted.view(tokens, top_k, x.shape[1])
    out = stages.combine(y=slots, topk_ids=local, experts=experts, **settings.combine)
    settings.show(out=out)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matmuls:
    """Both matmuls of one call, and what is quantised before each. Operands come with scales."""

    stages: Stages
    tensors: Tensors
    settings: Settings
    aligned: Alignment

    def quantised(self, name: str, rows: Tensor) -> Tensors:
        """The rows as a matmul takes them."""
        if self.settings.scaling is None:
            return {"a": rows}
        if self.stages.quant is None:
            raise UsageError(
                "staged: expected stages with a quantiser for float8 weights, got none"
            )
        return self._scaled(name, self.stages.quant(x=rows, **self.settings.scaling.quantiser))

    def activated(self, gate_up: Tensor) -> Tensors:
        """The activation as the second matmul takes it."""
        act, scaling = self.settings.act, self.settings.scaling
        if scaling is not None and self.stages.act_quant is not None:
            result = self.stages.act_quant(gate_up=gate_up, **act, **scaling.quantiser)
            return self._scaled("activated", result)
        activated = self.stages.act(gate_up=gate_up, **act)
        self.settings.show(activated=activated)
        return self.quantised("activated", activated)

    def multiply(
        self, name: str, weight: str, rows: Tensors, pairs_per_row: int, *, weigh: bool
    ) -> Tensor:
        """One matmul, its boundaries called `name`."""
        sorted_pairs, expert_ids, padded = self.aligned
        shared: dict[str, Any] = {
            **rows,
            "w": self.tensors[f"w_{weight}"],
            "sorted_pairs": sorted_pairs,
            "expert_ids": expert_ids,
            "padded": padded,
            "weights": self.tensors["topk_weights"].float().reshape(-1),
            "bias": self.tensors.get(f"{weight}_bias"),
            "top_k": pairs_per_row,
            "apply_weights": int(weigh),
            "config": self.settings.config,
        }
        scaling = self.settings.scaling
        if scaling is None:
            call = GroupedMatmul(**shared)
            return self._stored(name, call, partial(self.stages.gemm, call))
        if self.stages.gemm_fp8 is None:
            raise UsageError("staged: expected stages with a float8 matmul, got none")
        scales = self.tensors[f"{weight}_scales"]
        scaled = ScaledMatmul(**shared, w_scales=scales, **scaling.matmul)
        return self._stored(name, scaled, partial(self.stages.gemm_fp8, scaled))

    def _stored(
        self,
        name: str,
        call: GroupedMatmul | ScaledMatmul,
        compute: Callable[[Tensor, Tensor | None], None],
    ) -> Tensor:
        out = call.new(torch.bfloat16)
        acc = None if self.settings.tap is None else call.new(torch.float32)
        compute(out, acc)
        if acc is not None:
            self.settings.show(**{f"{name}_acc": acc})
        self.settings.show(**{name: out})
        return out

    def _scaled(self, name: str, result: tuple[Tensor, Tensor]) -> Tensors:
        codes, scales = result
        self.settings.show(**{f"{name}_codes": codes, f"{name}_scales": scales})
        return {"a": codes, "a_scales": scales}


def local_ids(topk_ids: Tensor, expert_map: Tensor) -> Tensor:
    """The ids among the local experts; -1 for experts elsewhere and for padding."""
    known = (topk_ids >= 0) & (topk_ids < len(expert_map))
    return torch.where(known, expert_map[torch.where(known, topk_ids, 0)].long(), -1)
