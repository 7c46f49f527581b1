"""Faults of the staged experts: stages left out, halves, weights, precision, workspaces, buckets.

`STAGES` are faults of single stages, for any pipeline that is made of them; the tests plant them in
every implementation of moe_experts and let gate G2 find them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.staged import Stages, local_ids
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults.base import Fired, Memory, Run
from bitgate.parity.faults.pipeline import pipeline_of

Changed = Callable[..., Any]

# An engine's chunk of 32768 tokens, or a test's of 128, scaled to what runs here.
CHUNK = 8

# --- faults of single stages ----------------------------------------------------------------------


def only_slot(combine: Changed, kept: int) -> Changed:
    """The reduction left out: one slot's rows are the result."""

    def wrong(*, y: Tensor, topk_ids: Tensor, experts: int) -> Tensor:
        others = torch.full_like(topk_ids, -1)
        others[:, kept] = topk_ids[:, kept]
        return _tensor(combine(y=y, topk_ids=others, experts=experts))

    return wrong


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)  # noqa: S101 - for the type checker
    return value


def gate_half(*, gate_up: Tensor, **_: float) -> Tensor:
    """The gate half as it is, instead of the activation."""
    return gate_up.chunk(2, dim=1)[0].contiguous()


def unactivated(*, gate_up: Tensor, swiglu_limit: float) -> Tensor:
    """Gate times up, without silu."""
    gate, up = gate_up.float().chunk(2, dim=1)
    clamped = gate.clamp(max=swiglu_limit) * up.clamp(-swiglu_limit, swiglu_limit)
    return clamped.to(torch.bfloat16)


def _swapped(act: Changed) -> Changed:
    return lambda *, gate_up, swiglu_limit: act(
        gate_up=gate_up.roll(gate_up.shape[1] // 2, 1), swiglu_limit=swiglu_limit
    )


def _unclamped(act: Changed) -> Changed:
    return lambda *, gate_up, **_: act(gate_up=gate_up, swiglu_limit=float("inf"))


def _before_gemm(gemm: Changed, change: Callable[[GroupedMatmul], GroupedMatmul]) -> Changed:
    def wrong(call: GroupedMatmul, out: Tensor, acc: Tensor | None) -> None:
        gemm(change(call), out, acc)

    return wrong


def _next_expert(align: Changed) -> Changed:
    def wrong(*, expert_map: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
        sorted_pairs, expert_ids, padded = align(expert_map=expert_map, **arguments)
        experts = max(1, int((expert_map >= 0).sum()))
        return sorted_pairs, torch.where(expert_ids < 0, -1, (expert_ids + 1) % experts), padded

    return wrong


STAGES: dict[str, Callable[[Stages], Stages]] = {
    "gate half unactivated, no reduction": lambda real: replace(
        real, act=gate_half, combine=only_slot(real.combine, 0)
    ),
    "no activation": lambda real: replace(real, act=unactivated),
    "no reduction, first slot": lambda real: replace(real, combine=only_slot(real.combine, 0)),
    "no reduction, last slot": lambda real: replace(real, combine=only_slot(real.combine, -1)),
    "no routing weight": lambda real: replace(
        real, gemm=_before_gemm(real.gemm, lambda call: replace(call, apply_weights=0))
    ),
    "gate and up swapped": lambda real: replace(real, act=_swapped(real.act)),
    "wrong expert": lambda real: replace(real, align=_next_expert(real.align)),
    "not clamped": lambda real: replace(real, act=_unclamped(real.act)),
}


def in_stages(change: Callable[[Stages], Stages]) -> Callable[[Run, Fired], Run]:
    """A plant that changes stages, and so acts in every call that has a token."""

    def plant(correct: Run, fired: Fired) -> Run:
        pipeline = pipeline_of(correct)
        wrong = replace(pipeline, stages=change(pipeline.stages))

        def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
            fired(len(given["x"]) > 0)
            return wrong(given, constants, memory)

        return run

    return plant


def first_weights(correct: Run, fired: Fired) -> Run:
    """Every slot of a token has the weight of its first."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        weights = given["topk_weights"]
        fired(weights.shape[1] > 1 and len(weights) > 0)
        first = weights[:, :1].expand_as(weights).contiguous()
        return correct(given | {"topk_weights": first}, constants, memory)

    return run


def _rounding(gemm: Changed, weigh: Callable[[Tensor, Tensor], Tensor]) -> Changed:
    """Another way from the accumulator and the weights [pairs, 1] to the result."""

    def wrong(call: GroupedMatmul, out: Tensor, acc: Tensor | None) -> None:
        sums = call.new(torch.float32)
        gemm(call, out, sums)
        weights = call.weights[:, None] if call.apply_weights else torch.ones(1, 1)
        out.copy_(weigh(sums, weights))
        if acc is not None:
            acc.copy_(sums)

    return wrong


def rounded_by(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Run, Fired], Run]:
    """A plant with another epilogue of the matmuls."""
    return in_stages(lambda real: replace(real, gemm=_rounding(real.gemm, weigh)))


def through_half(sums: Tensor, weights: Tensor) -> Tensor:
    """The accumulator in float16, and then in the bfloat16 of the buffer."""
    return arithmetic.round_bf16((sums * weights).half().float())


def weighed_late(sums: Tensor, weights: Tensor) -> Tensor:
    """The weight multiplies the row that was rounded already."""
    return arithmetic.round_bf16(arithmetic.round_bf16(sums).float() * weights)


def weighed_in_bfloat16(sums: Tensor, weights: Tensor) -> Tensor:
    """The weight is rounded to bfloat16 first."""
    return arithmetic.round_bf16(sums * arithmetic.round_bf16(weights).float())


# --- faults of the whole pipeline -----------------------------------------------------------------


def unmapped_sum(correct: Run, fired: Fired) -> Run:
    """The reduction masks by the ids of all experts: rows of other ranks, never written, count."""
    pipeline = pipeline_of(correct)
    wrong = replace(pipeline, combined_ids=lambda ids, _: torch.where(ids >= 0, 0, -1))

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        every = torch.arange(len(given["w_gate_up"]), dtype=torch.int32)
        local = local_ids(given["topk_ids"], given.get("expert_map", every))
        fired(bool(((given["topk_ids"] >= 0) & (local < 0)).any()))
        return wrong(given, constants, memory)

    return run


def unwritten_top_one(correct: Run, fired: Fired) -> Run:
    """One slot and a weight that is not 1: the short cut scales a buffer that nobody filled."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        weights = given["topk_weights"]
        if weights.shape[1] == 1 and fired(bool((weights != 1).any())):
            stale = memory.take("scaled", tuple(made["out"].shape), made["out"].dtype)
            made["out"].copy_((stale.float() * weights).to(stale.dtype))
        return made

    return run


def wrong_bucket(correct: Run, fired: Fired) -> Run:
    """The kernel for 3 and 4 tokens gives the last one the row of the first."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        if fired(len(given["x"]) in (3, 4)):
            made["out"][-1] = made["out"][0]
        return made

    return run


def first_chunk_shape(correct: Run, fired: Fired) -> Run:
    """The last chunk is copied out by the shape of the first: its end is the last chunk's end."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        tokens = len(given["x"])
        short = tokens % CHUNK
        if fired(tokens > CHUNK and short > 0):
            last, before = made["out"][-short:].clone(), made["out"][:CHUNK].clone()
            before[:short] = last
            made["out"][-CHUNK:] = before
        return made

    return run


def tiles_by_tokens(correct: Run, fired: Fired) -> Run:
    """One token alone is computed by tiles with another block of K than several are."""

    def tiles(tokens: int) -> TileConfig:
        return replace(DEFAULT_CONFIG, block_k=128) if tokens == 1 else DEFAULT_CONFIG

    wrong = replace(pipeline_of(correct), tiles=tiles)

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        fired(len(given["x"]) == 1)
        return wrong(given, constants, memory)

    return run
