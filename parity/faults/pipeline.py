"""The staged experts with memory of the caller: what engines run, and where faults are planted.

The stages are those of `kernels.moe.staged`, and so are the bits. The buffers between the stages
are taken from the caller's memory as an engine's workspace is, and rows of pairs without a local
expert are never written in them, as newer engines do it: a stage that reads them reads what an
earlier call left, or the poison of a check.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.staged import Stages, local_ids
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults.base import Memory, Run
from bitgate.records.errors import UsageError


def tiles_by_default(_: int) -> TileConfig:
    """The catalogue's tiles, for any number of tokens."""
    return DEFAULT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A Run of moe_experts. `tiles` gives the tiles for a number of tokens.

    `combined_ids` gives the ids that the reduction masks by, from (topk_ids, local ids).
    """

    stages: Stages
    tiles: Callable[[int], TileConfig] = tiles_by_default
    combined_ids: Callable[[Tensor, Tensor], Tensor] = lambda _, local: local

    def __call__(self, given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        """The experts: out, and the accumulators of both matmuls as further boundaries."""
        x, topk_ids, w_gate_up = given["x"], given["topk_ids"], given["w_gate_up"]
        experts, (tokens, top_k) = len(w_gate_up), topk_ids.shape
        expert_map = given.get("expert_map", torch.arange(experts, dtype=torch.int32))
        local = local_ids(topk_ids, expert_map)
        config = self.tiles(tokens)
        aligned = self.stages.align(
            topk_ids=topk_ids, expert_map=expert_map, block_m=config.block_m
        )
        named = dict(zip(("sorted_pairs", "expert_ids", "padded"), aligned, strict=True))
        named["weights"] = given["topk_weights"].float().reshape(-1)
        live = (local >= 0).reshape(-1)

        def multiply(name: str, a: Tensor, w: Tensor, pairs_per_row: int) -> tuple[Tensor, Tensor]:
            call = GroupedMatmul(
                a=a,
                w=w,
                **named,
                top_k=pairs_per_row,
                apply_weights=int(name == "weighted"),
                config=config,
            )
            made, acc = call.new(torch.bfloat16), call.new(torch.float32)
            self.stages.gemm(call, made, acc)
            out = memory.take(name, call.shape, torch.bfloat16)
            out[live] = made[live]
            return out, acc

        gate_up, first_acc = multiply("gate_up", x, w_gate_up, top_k)
        limit = float(constants["swiglu_limit"])
        activated = self.stages.act(gate_up=gate_up, swiglu_limit=limit)
        buffer = memory.take("activated", tuple(activated.shape), activated.dtype)
        weighted, second_acc = multiply("weighted", buffer.copy_(activated), given["w_down"], 1)
        rows = weighted.view(tokens, top_k, x.shape[1])
        ids = self.combined_ids(topk_ids, local)
        summed = self.stages.combine(y=rows, topk_ids=ids, experts=experts)
        out = memory.take("out", tuple(summed.shape), summed.dtype).copy_(summed)
        return {"out": out, "gate_up_acc": first_acc, "weighted_acc": second_acc}


def pipeline_of(run: Run) -> Pipeline:
    """The pipeline that a fault is planted in. Raises UsageError for another implementation."""
    if not isinstance(run, Pipeline):
        raise UsageError(f"expected a staged pipeline to plant this fault in, got {run!r}")
    return run
