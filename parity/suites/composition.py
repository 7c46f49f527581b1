"""Our staged experts, driven with vLLM's own functions and buffers: what the suite judges.

The order of the stages, what each of them is given, and which memory lies between them are ours;
alignment, products, activation, quantiser and sum are calls of the engine. So a difference from
`fused_experts` is one of composition, and equal bits say nothing about kernels of ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels.moe.align_sets import Alignment
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.staged import Settings, Stages, run
from bitgate.parity.suites.vllm_engine import FP8, Engine, Product, Quantised

_NO_LIMIT: Final = float("inf")
Block = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What both sides are given.

    Attributes:
        x: [tokens, hidden] bfloat16.
        topk_ids: [tokens, top_k] int64, numbers among all experts of the layer.
        topk_weights: [tokens, top_k] float32.
        w_gate_up: [local experts, 2 * intermediate, hidden], bfloat16 or float8_e4m3fn.
        w_down: [local experts, hidden, intermediate], likewise.
        experts: how many the layer has on all ranks.
        expert_map: [experts] int32, the number among the local ones or -1; None: all are local.
        quantised: of float8 weights.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    w_gate_up: Tensor
    w_down: Tensor
    experts: int
    expert_map: Tensor | None
    quantised: Quantised | None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By the names of moe_experts."""
        names = ("x", "topk_ids", "topk_weights", "w_gate_up", "w_down")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What the composition decides beside the order of its stages.

    Attributes:
        dtype: that of the look-up of tiles: fp8_w8a8, or None for bfloat16.
        compute_type: what accumulators are rounded to.
        block_shapes: of the weights of the first and the second product.
        expert_map: see Inputs.
        cleared: whether the second product is written into zeros, for the sum reads the rows of
            other ranks, too, and nobody writes them where their pairs are dropped.
    """

    dtype: str | None
    compute_type: str
    block_shapes: tuple[Block | None, Block | None]
    expert_map: Tensor | None
    cleared: bool


def wiring_of(engine: Engine, inputs: Inputs) -> Wiring:
    """What is right for these inputs."""
    quantised = inputs.quantised
    block = None if quantised is None else quantised.block_shape
    return Wiring(
        dtype=None if quantised is None else FP8,
        compute_type="bfloat16",
        block_shapes=(block, block),
        expert_map=inputs.expert_map,
        cleared=inputs.expert_map is not None and engine.rules.drops_nonlocal,
    )


class Workspace:
    """The buffers between the stages, allocated once and full of NaN at first.

    As in vLLM, both products share one: it is done with the first before it needs the second.
    """

    def __init__(self, inputs: Inputs) -> None:
        tokens, hidden = inputs.x.shape
        pairs, columns = inputs.topk_ids.numel(), inputs.w_gate_up.shape[1]

        def poisoned(*shape: int) -> Tensor:
            return inputs.x.new_full(shape, float("nan"))

        self._products = poisoned(pairs * max(columns, hidden))
        self.activated = poisoned(pairs, columns // 2)
        self.out = poisoned(tokens, hidden)

    def product(self, tokens: int, slots: int, columns: int) -> Tensor:
        """The shared buffer as [tokens, slots, columns]."""
        return self._products[: tokens * slots * columns].view(tokens, slots, columns)


def compose(engine: Engine, inputs: Inputs, workspace: Workspace) -> Tensor:
    """The experts of one rank, [tokens, hidden] bfloat16, in the workspace's own memory."""
    return compose_as(engine, inputs, workspace, wiring_of(engine, inputs))


def compose_as(
    engine: Engine,
    inputs: Inputs,
    workspace: Workspace,
    wiring: Wiring,
    altered: Callable[[Stages], Stages] = lambda stages: stages,
) -> Tensor:
    """`compose` with a wiring and with stages that may be other ones: so are faults planted."""
    tokens, top_k = inputs.topk_ids.shape
    block = None if inputs.quantised is None else inputs.quantised.block_shape
    shapes = (inputs.w_gate_up.shape, inputs.w_down.shape)
    tiles = engine.tiles(shapes, top_k, wiring.dtype, tokens, block)
    call = _Call(engine=engine, inputs=inputs, wiring=wiring, workspace=workspace, tiles=tiles)
    stages = altered(
        Stages(align=call.align, gemm=call.gemm, act=call.activate, combine=call.combine)
    )
    if inputs.quantised is not None:
        return _run_quantised(call, stages, inputs.quantised)
    tensors = inputs.tensors
    if wiring.expert_map is not None:
        tensors["expert_map"] = wiring.expert_map
    settings = Settings(act={"swiglu_limit": _NO_LIMIT}, config=_tile_config(tiles))
    return run(stages, tensors, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The engine's functions as the stages of one call."""

    engine: Engine
    inputs: Inputs
    wiring: Wiring
    workspace: Workspace
    tiles: dict[str, int]

    def align(self, *, topk_ids: Tensor, expert_map: Tensor, block_m: int) -> Alignment:
        given = None if self.wiring.expert_map is None else expert_map
        sorted_pairs, expert_ids, padded = self.engine.align(
            topk_ids.to(torch.int32), block_m, len(expert_map), given
        )
        # vLLM's last block may be cut; it launches programs by whole blocks all the same.
        short = len(expert_ids) * block_m - len(sorted_pairs)
        whole = functional.pad(sorted_pairs, (0, short), value=topk_ids.numel())
        return whole, expert_ids, padded

    def gemm(self, call: GroupedMatmul, out: Tensor, _accumulator: Tensor | None) -> None:
        aligned = (call.sorted_pairs, call.expert_ids, call.padded)
        product = self.multiply(call.a, call.w, aligned, second=bool(call.apply_weights))
        out.copy_(product.view(out.shape))

    def multiply(
        self,
        a: Tensor,
        w: Tensor,
        aligned: Alignment,
        *,
        second: bool,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """One product into the workspace: [tokens, slots, n]."""
        tokens, slots = self.inputs.topk_ids.shape
        target = self.workspace.product(tokens, slots, w.shape[1])
        if second and self.wiring.cleared:
            target.zero_()
        a_scales, w_scales = scales or (None, None)
        self.engine.multiply(
            Product(
                a=a,
                a_scales=a_scales,
                w=w,
                w_scales=w_scales,
                out=target,
                weights=self.inputs.topk_weights,
                aligned=aligned,
                weigh=second,
                top_k=1 if second else slots,
                config=self.tiles,
                compute_type=self.wiring.compute_type,
                block_shape=self.wiring.block_shapes[second],
            )
        )
        return target

    def activate(self, *, gate_up: Tensor, swiglu_limit: float) -> Tensor:
        assert swiglu_limit == _NO_LIMIT  # noqa: S101 - the suite itself passes no other
        self.engine.activate(gate_up, self.workspace.activated)
        return self.workspace.activated

    def combine(self, *, y: Tensor, topk_ids: Tensor, experts: int) -> Tensor:
        # vLLM adds all slots: the rows of other ranks are zeros.
        del topk_ids, experts
        self.engine.add(y, self.workspace.out)
        return self.workspace.out


def _run_quantised(call: _Call, stages: Stages, quantised: Quantised) -> Tensor:
    """The stages with both operands quantised before their product."""
    inputs, block = call.inputs, quantised.block_shape
    expert_map = call.wiring.expert_map
    if expert_map is None:
        expert_map = torch.arange(inputs.experts, dtype=torch.int32, device=inputs.x.device)
    codes, scales = call.engine.quantise(inputs.x, block)
    aligned = stages.align(
        topk_ids=inputs.topk_ids, expert_map=expert_map, block_m=call.tiles["BLOCK_SIZE_M"]
    )
    gate_up = call.multiply(
        codes,
        inputs.w_gate_up,
        aligned,
        second=False,
        scales=(scales, quantised.gate_up_scales),
    )
    activated = stages.act(gate_up=gate_up.view(-1, gate_up.shape[-1]), swiglu_limit=_NO_LIMIT)
    codes, scales = call.engine.quantise(activated, block)
    weighted = call.multiply(
        codes, inputs.w_down, aligned, second=True, scales=(scales, quantised.down_scales)
    )
    return stages.combine(y=weighted, topk_ids=inputs.topk_ids, experts=len(inputs.w_down))


def _tile_config(tiles: dict[str, int]) -> TileConfig:
    """The tiles of vLLM under our names; what it leaves to Triton has Triton's defaults."""
    return TileConfig(
        block_m=tiles["BLOCK_SIZE_M"],
        block_n=tiles["BLOCK_SIZE_N"],
        block_k=tiles["BLOCK_SIZE_K"],
        group_m=tiles["GROUP_SIZE_M"],
        num_warps=tiles.get("num_warps", 4),
        num_stages=tiles.get("num_stages", 3),
    )
