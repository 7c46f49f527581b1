"""moe_experts under `moe-bf16/1` with the activation as the first matmul's epilogue, in Triton.

A program holds the tiles of the same columns of both halves, so that gate and up never leave it.
Each half sums, rounds and is activated as the staged kernels do it, with the same tile of rows and
the same extents: the bits are those of `experts_triton`. On a CPU that also takes a BLAS that sums
a column of a tile alike wherever it lies in it, where block_n does not divide the intermediate
size. Rows and columns are 64-bit.
"""

import torch
from torch import Tensor

from bitgate.kernels.arithmetic_triton import launch, round_bf16, widen
from bitgate.kernels.interpreter import interpreting, repair, tl, triton
from bitgate.kernels.moe import align_triton, combine_triton, gemm_triton
from bitgate.kernels.moe.act import Activation
from bitgate.kernels.moe.act_triton import activated
from bitgate.kernels.moe.arguments import check_experts, check_ids
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_triton import rows_adjacent, tile_of
from bitgate.kernels.moe.staged import Tap


@triton.jit(do_not_specialize=["zero"])
def gemm_act_kernel(
    a,
    w,
    sorted_pairs,
    expert_ids,
    padded,
    out,
    pairs,
    experts,
    k,
    intermediate,
    a_row,
    w_expert,
    w_row,
    top_k,
    blocks,
    limit,
    alpha,
    zero,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    KIND: tl.constexpr,
    ROUND_BETWEEN: tl.constexpr,
):
    """gemm_reference.grouped over both halves, then act_reference.moe_act, for a block of each."""
    block, column = tile_of(intermediate, blocks, BLOCK_N, GROUP_M)
    exists = column < intermediate

    # `places = sorted_pairs[: padded // block_m]`; `if not 0 <= expert < experts: continue`
    if block * BLOCK_M >= tl.load(padded):
        return
    expert = tl.load(expert_ids + block)
    if (expert < 0) | (expert >= experts):
        return
    # `live`, `tile[live] = rows[named[live] // top_k]`
    pair = tl.load(sorted_pairs + block * BLOCK_M + tl.arange(0, BLOCK_M))
    live = (pair >= 0) & (pair < pairs)
    row = tl.where(live, pair // top_k, 0).to(tl.int64)
    in_step = tl.arange(0, BLOCK_K)
    a_at = a + row[:, None] * a_row + in_step[None, :]
    gate_at = w + expert.to(tl.int64) * w_expert + column.to(tl.int64)[None, :] * w_row
    gate_at += in_step[:, None]
    # A 64-bit product: an expert's half alone may exceed 2**31 elements.
    up_at = gate_at + tl.cast(intermediate, tl.int64) * w_row

    # `for start in range(0, k, block_k): acc = a_tile @ b_tile + acc`, once for each half
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = in_step < k - start
        wanted = left[:, None] & exists[None, :]
        a_tile = tl.load(a_at + start, mask=live[:, None] & left[None, :], other=0.0)
        gate_tile = tl.load(gate_at + start, mask=wanted, other=0.0)
        up_tile = tl.load(up_at + start, mask=wanted, other=0.0)
        gate = tl.dot(a_tile, gate_tile, gate, input_precision="ieee")
        up = tl.dot(a_tile, up_tile, up, input_precision="ieee")

    # `round_bf16(total)` of each half, then `round_bf16(activated(gate, up))`
    gate, up = widen(round_bf16(gate)), widen(round_bf16(up))
    result = round_bf16(activated(gate, up, limit, alpha, zero, KIND, ROUND_BETWEEN))
    at = pair.to(tl.int64)[:, None] * intermediate + column[None, :]
    tl.store(out + at, result, mask=live[:, None] & exists[None, :])


def gemm_act(call: GroupedMatmul, activation: Activation) -> Tensor:
    """The first matmul of a checked call, its halves one after the other, with an epilogue.

    Returns:
        [pairs, intermediate] bfloat16; +0 where no block names the pair.
    """
    repair()
    config, blocks = call.config, call.expert_ids.shape[0]
    experts, columns, summed = call.w.shape
    pairs, intermediate = call.weights.shape[0], columns // 2
    out = torch.zeros(pairs, intermediate, dtype=torch.bfloat16, device=call.a.device)
    a = rows_adjacent(call.a)
    launch(
        gemm_act_kernel,
        (blocks * triton.cdiv(intermediate, config.block_n),),
        a,
        call.w,
        call.sorted_pairs.contiguous(),
        call.expert_ids.contiguous(),
        call.padded,
        out.view(torch.int16),
        pairs,
        experts,
        summed,
        intermediate,
        a.stride(0),
        call.w.stride(0),
        call.w.stride(1),
        call.top_k,
        blocks,
        activation.limit,
        activation.slope,
        0,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP_M=config.group_m,
        KIND=activation.number,
        ROUND_BETWEEN=activation.round_between,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def experts_fused(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
    config: TileConfig = DEFAULT_CONFIG,
    tap: Tap | None = None,
) -> Tensor:
    """The experts in four launches, called as `staged_triton.experts_triton` is.

    A tap sees the alignment, `activated`, `weighted` and `out`: gate and up exist nowhere.

    Raises:
        UsageError: as there.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    activation = Activation(swiglu_limit=swiglu_limit, op="moe_experts")
    experts, (tokens, top_k) = len(w_gate_up), topk_ids.shape
    if interpreting():
        check_ids(topk_ids, experts)
    everyone = torch.arange(experts, dtype=torch.int32, device=x.device)
    names = ("sorted_pairs", "expert_ids", "padded")
    aligned = align_triton.moe_align(topk_ids=topk_ids, expert_map=everyone, block_m=config.block_m)
    shared = dict(zip(names, aligned, strict=True))
    weights = topk_weights.float().reshape(-1)
    first = GroupedMatmul(
        a=x, w=w_gate_up, **shared, weights=weights, top_k=top_k, apply_weights=0, config=config
    )
    hidden = gemm_act(first, activation)
    second = GroupedMatmul(
        a=hidden, w=w_down, **shared, weights=weights, top_k=1, apply_weights=1, config=config
    )
    weighted = second.new(torch.bfloat16)
    gemm_triton.grouped(second, weighted, None)
    rows = weighted.view(tokens, top_k, x.shape[1])
    out = combine_triton.moe_combine(y=rows, topk_ids=topk_ids, experts=experts)
    if tap is not None:
        for name, tensor in (*shared.items(), ("activated", hidden), ("weighted", weighted)):
            tap(name, tensor)
        tap("out", out)
    return out
