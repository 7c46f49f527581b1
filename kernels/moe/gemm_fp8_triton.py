"""`moe_gemm_fp8` in Triton, one launch over all experts, headed by the reference's lines.

Row and column offsets are 64-bit: the rows of a large batch times their length exceed 2**31.
"""

from dataclasses import replace

import torch
from torch import Tensor

from bitgate.kernels.arithmetic_triton import canonical, launch, round_bf16
from bitgate.kernels.interpreter import repair, tl, triton
from bitgate.kernels.moe.contract import FP8_CONFIG, TileConfig
from bitgate.kernels.moe.gemm_fp8 import ACCUMULATE, ScaledMatmul
from bitgate.kernels.moe.gemm_fp8_data import GROUP
from bitgate.kernels.moe.gemm_triton import finished, results, rows_adjacent, tile_of

FMA = tl.constexpr(ACCUMULATE.index("mul-fma"))
PRODUCT = tl.constexpr(ACCUMULATE.index("scale-product"))


@triton.jit
def accumulated(part, a_scale, w_scale, acc, ACCUMULATE: tl.constexpr):
    """gemm_fp8_reference._ACCUMULATE, of a tile and the scales of its rows and columns."""
    if ACCUMULATE == PRODUCT:
        acc = acc + part * (a_scale[:, None] * w_scale[None, :])
    elif ACCUMULATE == FMA:
        scaled, w_scale = tl.broadcast(part * a_scale[:, None], w_scale[None, :])
        acc = tl.fma(scaled, w_scale, acc)
    else:
        acc = acc + (part * a_scale[:, None]) * w_scale[None, :]
    return acc


@triton.jit
def gemm_fp8_kernel(
    a,
    a_scales,
    w,
    w_scales,
    sorted_pairs,
    expert_ids,
    padded,
    weights,
    bias,
    out,
    acc_out,
    pairs,
    experts,
    k,
    n,
    a_row,
    w_expert,
    w_row,
    scale_row,
    scale_expert,
    scale_column,
    group_n,
    group_k,
    top_k,
    blocks,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROMOTE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    APPLY_WEIGHTS: tl.constexpr,
    BIAS: tl.constexpr,
    STORE_ACC: tl.constexpr,
):
    """gemm_fp8_reference.grouped: one program per block of rows and block of columns.

    a_row, w_expert and w_row are strides in elements, scale_row that of a_scales, scale_expert and
    scale_column those of w_scales; a scale that all rows share has a stride of 0.
    """
    block, column = tile_of(n, blocks, BLOCK_N, GROUP_M)
    exists = column < n

    # `for live, named, expert in blocks(call)`
    if block * BLOCK_M >= tl.load(padded):
        return
    expert = tl.load(expert_ids + block)
    if (expert < 0) | (expert >= experts):
        return
    expert = expert.to(tl.int64)
    pair = tl.load(sorted_pairs + block * BLOCK_M + tl.arange(0, BLOCK_M))
    live = (pair >= 0) & (pair < pairs)
    # `tile[live] = rows[named // top_k]`, `of_rows[live] = a_scales[named // top_k]`
    row = tl.where(live, pair // top_k, 0).to(tl.int64)
    in_step = tl.arange(0, BLOCK_K)
    a_at = a + row[:, None] * a_row + in_step[None, :]
    w_at = w + expert * w_expert + column.to(tl.int64)[None, :] * w_row + in_step[:, None]
    a_scale_at = a_scales + row * scale_row
    # `of_columns = w_scales[expert][np.arange(start, stop) // share_n]`
    w_scale_at = w_scales + expert * scale_expert + (column // group_n).to(tl.int64) * scale_column

    # `for start, a_tile, b_tile in steps(left, right, config, step)`
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = in_step < k - start
        a_tile = tl.load(a_at + start, mask=live[:, None] & left[None, :], other=0.0)
        b_tile = tl.load(w_at + start, mask=left[:, None] & exists[None, :], other=0.0)
        # `acc = add(product, a, b, acc)`, or of scheme whole `acc = product + acc`
        if PROMOTE:
            group = start // group_k
            a_scale = tl.load(a_scale_at + group, mask=live, other=0.0)
            w_scale = tl.load(w_scale_at + group, mask=exists, other=0.0)
            acc = accumulated(tl.dot(a_tile, b_tile), a_scale, w_scale, acc, ACCUMULATE)
        else:
            acc = tl.dot(a_tile, b_tile, acc)

    at = pair.to(tl.int64)[:, None] * n + column[None, :]
    here = live[:, None] & exists[None, :]
    if STORE_ACC:
        tl.store(acc_out + at, canonical(acc), mask=here)
    # `(acc * a_scales) * w_scales[:, 0]`
    if not PROMOTE:
        acc = acc * tl.load(a_scale_at, mask=live, other=0.0)[:, None]
        acc = acc * tl.load(w_scale_at, mask=exists, other=0.0)[None, :]
    # `round_bf16(finished(call, totals))`
    total = finished(
        acc, weights, bias + expert * n, pair, live, column, exists, APPLY_WEIGHTS, BIAS
    )
    tl.store(out + at, round_bf16(total), mask=here)


def moe_gemm_fp8(
    *,
    a: Tensor,
    a_scales: Tensor,
    w: Tensor,
    w_scales: Tensor,
    sorted_pairs: Tensor,
    expert_ids: Tensor,
    padded: Tensor,
    weights: Tensor,
    top_k: int,
    apply_weights: int,
    bias: Tensor | None = None,
    scheme: str = "block",
    group_n: int = GROUP,
    group_k: int = GROUP,
    accumulate: str = "mul-mul-add",
    block_m: int = FP8_CONFIG.block_m,
    block_n: int = FP8_CONFIG.block_n,
    block_k: int = FP8_CONFIG.block_k,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    acc: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_gemm_fp8` as MOE_GEMM_FP8 defines it, into the given outputs or new ones.

    Rows of a and w may lie apart; what else is not contiguous is copied, but for w, which is
    refused. Outputs must be contiguous, and they may overlap nothing.
    A config takes the place of block_n and block_k; block_m stays that of the alignment.

    Raises:
        UsageError: an argument is not what MOE_GEMM_FP8 says, or memory overlaps.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    call = ScaledMatmul(
        a=a,
        a_scales=a_scales,
        w=w,
        w_scales=w_scales,
        sorted_pairs=sorted_pairs,
        expert_ids=expert_ids,
        padded=padded,
        weights=weights,
        bias=bias,
        top_k=top_k,
        apply_weights=apply_weights,
        config=TileConfig(block_m=block_m, block_n=block_n, block_k=block_k)
        if config is None
        else replace(config, block_m=block_m),
        scheme=scheme,
        group_n=group_n,
        group_k=group_k,
        accumulate=accumulate,
    )
    out, acc = results(call, out, acc)
    grouped(call, out, acc)
    return out, acc


def grouped(call: ScaledMatmul, out: Tensor, acc: Tensor | None) -> None:
    """`moe_gemm_fp8` of a checked call, into memory that it has made.

    The accumulator is stored where `acc` is given; without it the same code computes the same out.
    """
    # Interpreted, products of float8 and fused additions are right only after the repair.
    repair()
    config = call.config
    pairs, columns = call.shape
    blocks = call.expert_ids.shape[0]
    a, a_scales, w_scales = rows_adjacent(call.a), call.a_scales.contiguous(), call.w_scales
    w_scales = w_scales.contiguous()
    share_m, share_n, share_k = call.shared
    launch(
        gemm_fp8_kernel,
        (blocks * triton.cdiv(columns, config.block_n),),
        a,
        a_scales,
        call.w,
        w_scales,
        call.sorted_pairs.contiguous(),
        call.expert_ids.contiguous(),
        call.padded,
        call.weights.contiguous(),
        call.weights if call.bias is None else call.bias.contiguous(),
        out.view(torch.int16),
        acc if acc is not None else call.weights,
        pairs,
        call.w.shape[0],
        call.w.shape[2],
        columns,
        a.stride(0),
        call.w.stride(0),
        call.w.stride(1),
        a_scales.shape[1] if share_m == 1 else 0,
        w_scales.shape[1] * w_scales.shape[2],
        w_scales.shape[2],
        share_n,
        share_k,
        call.top_k,
        blocks,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=call.step,
        GROUP_M=config.group_m,
        PROMOTE=call.scheme == "block",
        ACCUMULATE=ACCUMULATE.index(call.accumulate),
        APPLY_WEIGHTS=call.apply_weights,
        BIAS=call.bias is not None,
        STORE_ACC=acc is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
