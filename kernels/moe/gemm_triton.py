"""`moe_gemm` in Triton, one launch over all experts. Each block is headed by its reference line.

Row and column offsets are 64-bit: the rows of a large batch times their length exceed 2**31.
"""

from dataclasses import replace

import torch
from torch import Tensor

from bitgate.kernels import alias
from bitgate.kernels.arguments import bind, output
from bitgate.kernels.arithmetic_triton import canonical, launch, round_bf16
from bitgate.kernels.interpreter import repair, tl, triton
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.pair_matmul import PairMatmul


@triton.jit
def tile_of(n, blocks, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The block of rows and the columns of this program.

    GROUP_M row blocks take turns over the columns, so that weights are read from the cache.
    """
    program = tl.program_id(0)
    per_group = GROUP_M * tl.cdiv(n, BLOCK_N)
    first = program // per_group * GROUP_M
    height = min(blocks - first, GROUP_M)
    block = first + program % per_group % height
    return block, program % per_group // height * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit
def finished(
    acc,
    weights,
    bias,
    pair,
    live,
    column,
    exists,
    APPLY_WEIGHTS: tl.constexpr,
    BIAS: tl.constexpr,
):
    """gemm_reference.finished, before the rounding; `bias` points at the expert's."""
    # `total = total + bias`
    if BIAS:
        acc = acc + tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)[None, :]
    # `total * weights[:, None]`
    if APPLY_WEIGHTS:
        acc = acc * tl.load(weights + pair, mask=live, other=0.0)[:, None]
    return acc


@triton.jit
def gemm_kernel(
    a,
    w,
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
    top_k,
    blocks,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    APPLY_WEIGHTS: tl.constexpr,
    BIAS: tl.constexpr,
    STORE_ACC: tl.constexpr,
):
    """gemm_reference.grouped: one program per block of rows and block of columns.

    a_row, w_expert and w_row are strides in elements.
    """
    block, column = tile_of(n, blocks, BLOCK_N, GROUP_M)
    exists = column < n

    # `places = sorted_pairs[: padded // block_m]`; `if not 0 <= expert < experts: continue`
    if block * BLOCK_M >= tl.load(padded):
        return
    expert = tl.load(expert_ids + block)
    if (expert < 0) | (expert >= experts):
        return
    expert = expert.to(tl.int64)
    # `live`, `tile[live] = rows[named[live] // top_k]`
    pair = tl.load(sorted_pairs + block * BLOCK_M + tl.arange(0, BLOCK_M))
    live = (pair >= 0) & (pair < pairs)
    row = tl.where(live, pair // top_k, 0).to(tl.int64)
    in_step = tl.arange(0, BLOCK_K)
    a_at = a + row[:, None] * a_row + in_step[None, :]
    w_at = w + expert * w_expert + column.to(tl.int64)[None, :] * w_row + in_step[:, None]

    # `for start in range(0, k, block_k): acc = a_tile @ b_tile + acc`
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = in_step < k - start
        a_tile = tl.load(a_at + start, mask=live[:, None] & left[None, :], other=0.0)
        b_tile = tl.load(w_at + start, mask=left[:, None] & exists[None, :], other=0.0)
        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")

    at = pair.to(tl.int64)[:, None] * n + column[None, :]
    here = live[:, None] & exists[None, :]
    if STORE_ACC:
        tl.store(acc_out + at, canonical(acc), mask=here)
    # `round_bf16(finished(total, call))`
    total = finished(
        acc, weights, bias + expert * n, pair, live, column, exists, APPLY_WEIGHTS, BIAS
    )
    tl.store(out + at, round_bf16(total), mask=here)


def moe_gemm(
    *,
    a: Tensor,
    w: Tensor,
    sorted_pairs: Tensor,
    expert_ids: Tensor,
    padded: Tensor,
    weights: Tensor,
    top_k: int,
    apply_weights: int,
    bias: Tensor | None = None,
    block_m: int = DEFAULT_CONFIG.block_m,
    block_n: int = DEFAULT_CONFIG.block_n,
    block_k: int = DEFAULT_CONFIG.block_k,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    acc: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_gemm` as MOE_GEMM defines it, into the given outputs or new ones.

    Rows of a and w may lie apart; what else is not contiguous is copied, but for w, which is
    refused. Outputs must be contiguous, and they may overlap nothing.
    A config takes the place of block_n and block_k; block_m stays that of the alignment.

    Raises:
        UsageError: an argument is not what MOE_GEMM says, or memory overlaps.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    call = GroupedMatmul(
        a=a,
        w=w,
        sorted_pairs=sorted_pairs,
        expert_ids=expert_ids,
        padded=padded,
        weights=weights,
        top_k=top_k,
        apply_weights=apply_weights,
        bias=bias,
        config=TileConfig(block_m=block_m, block_n=block_n, block_k=block_k)
        if config is None
        else replace(config, block_m=block_m),
    )
    out, acc = results(call, out, acc)
    grouped(call, out, acc)
    return out, acc


def results(call: PairMatmul, out: Tensor | None, acc: Tensor | None) -> tuple[Tensor, Tensor]:
    """The caller's memory for out and acc, or new, +0 either way.

    Raises:
        UsageError: the caller's is not as the definition says, or overlaps something.
    """
    op, (pairs, columns) = call.definition.op, call.shape
    given = {name: value for name, value in (("out", out), ("acc", acc)) if value is not None}
    bind(op, call.definition.outputs, given, fixed={"tokens*top_k": pairs, "n": columns})
    alias.check(op, call.inputs, given)
    for name, value in given.items():
        output(op, name, value, call.shape, call.a).zero_()
    return (
        call.new(torch.bfloat16) if out is None else out,
        call.new(torch.float32) if acc is None else acc,
    )


def grouped(call: GroupedMatmul, out: Tensor, acc: Tensor | None) -> None:
    """`moe_gemm` of a checked call, into memory that it has made.

    The accumulator is stored where `acc` is given; without it the same code computes the same out.
    """
    # Interpreted, products of bfloat16 are those of the numbers only after the repair.
    repair()
    config = call.config
    pairs, columns = call.shape
    blocks = call.expert_ids.shape[0]
    experts, _, summed = call.w.shape
    a = rows_adjacent(call.a)
    launch(
        gemm_kernel,
        (blocks * triton.cdiv(columns, config.block_n),),
        a,
        call.w,
        call.sorted_pairs.contiguous(),
        call.expert_ids.contiguous(),
        call.padded,
        call.weights.contiguous(),
        call.weights if call.bias is None else call.bias.contiguous(),
        out.view(torch.int16),
        acc if acc is not None else call.weights,
        pairs,
        experts,
        summed,
        columns,
        a.stride(0),
        call.w.stride(0),
        call.w.stride(1),
        call.top_k,
        blocks,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP_M=config.group_m,
        APPLY_WEIGHTS=call.apply_weights,
        BIAS=call.bias is not None,
        STORE_ACC=acc is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def rows_adjacent(a: Tensor) -> Tensor:
    """The rows where they lie if the elements of each are adjacent, else a contiguous copy."""
    return a if a.shape[-1] <= 1 or a.stride(-1) == 1 else a.contiguous()
