"""moe_experts under `moe-bf16/1`, stage by stage: align, matmul, activation, matmul, combine.

Between the stages lie these boundaries, which a caller may tap; rows of dropped pairs are +0 in all
of them:

    sorted_pairs, expert_ids, padded       the alignment
    gate_up_acc, gate_up                   the first matmul: accumulator, and rounded
    activated                              the gated activation
    weighted_acc, weighted                 the second matmul: accumulator, weighted and rounded
    out                                    the sum over slots
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.spec import Tensors

Tap = Callable[[str, Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The four stages that a pipeline is made of, called as the operators of their names.

    `gemm` writes a checked call into out and, where it is given, the accumulator.
    """

    align: Callable[..., tuple[Tensor, Tensor, Tensor]]
    gemm: Callable[[GroupedMatmul, Tensor, Tensor | None], None]
    act: Callable[..., Tensor]
    combine: Callable[..., Tensor]


def run(
    stages: Stages, tensors: Tensors, swiglu_limit: float, config: TileConfig, tap: Tap | None
) -> Tensor:
    """The pipeline over checked inputs of moe_experts. Accumulators are stored for a tap alone.

    With an expert_map among the tensors, topk_ids number all experts of the layer, and the weights
    are those of the local ones; without, all are local.
    """
    x, topk_ids, w_gate_up = tensors["x"], tensors["topk_ids"], tensors["w_gate_up"]
    experts, (tokens, top_k) = len(w_gate_up), topk_ids.shape
    show = tap or _unseen
    expert_map = tensors.get("expert_map")
    if expert_map is None:
        expert_map = torch.arange(experts, dtype=torch.int32, device=topk_ids.device)
    aligned = stages.align(topk_ids=topk_ids, expert_map=expert_map, block_m=config.block_m)
    sorted_pairs, expert_ids, padded = aligned
    show("sorted_pairs", sorted_pairs)
    show("expert_ids", expert_ids)
    show("padded", padded)
    weights = tensors["topk_weights"].float().reshape(-1)

    def multiply(name: str, a: Tensor, w: Tensor, pairs_per_row: int, *, weigh: bool) -> Tensor:
        call = GroupedMatmul(
            a=a,
            w=w,
            sorted_pairs=sorted_pairs,
            expert_ids=expert_ids,
            padded=padded,
            weights=weights,
            top_k=pairs_per_row,
            apply_weights=int(weigh),
            config=config,
        )
        out = call.new(torch.bfloat16)
        acc = None if tap is None else call.new(torch.float32)
        stages.gemm(call, out, acc)
        if acc is not None:
            show(f"{name}_acc", acc)
        show(name, out)
        return out

    gate_up = multiply("gate_up", x, w_gate_up, top_k, weigh=False)
    activated = stages.act(gate_up=gate_up, swiglu_limit=swiglu_limit)
    show("activated", activated)
    weighted = multiply("weighted", activated, tensors["w_down"], 1, weigh=True)
    rows = weighted.view(tokens, top_k, x.shape[1])
    local_ids = topk_ids if "expert_map" not in tensors else _local(topk_ids, expert_map)
    out = stages.combine(y=rows, topk_ids=local_ids, experts=experts)
    show("out", out)
    return out


def _local(topk_ids: Tensor, expert_map: Tensor) -> Tensor:
    """The ids among the local experts; -1 for experts elsewhere and for padding."""
    known = (topk_ids >= 0) & (topk_ids < len(expert_map))
    return torch.where(known, expert_map[torch.where(known, topk_ids, 0)].long(), -1)


def _unseen(name: str, tensor: Tensor) -> None:
    """Nobody looks at the boundaries."""
