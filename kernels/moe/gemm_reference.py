"""`moe_gemm` tile by tile, the truth of the step `ieee-tile` (see `contract`).

The tiles have the shape and the memory order of those that Triton's interpreter multiplies, so that
the host's BLAS takes the same path for both; every block is headed by the rule that it implements.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bitgate.kernels.arithmetic import canonical, round_bf16
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.experts_oracle import FP32, matmul, rounded
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_fp8 import ScaledMatmul

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Matmul = GroupedMatmul | ScaledMatmul


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
) -> tuple[Tensor, Tensor]:
    """Multiply each pair's row with its expert's weights; see MOE_GEMM.

    Returns:
        out [tokens * top_k, n] bfloat16 and acc, its accumulator before bias and weight, float32.

    Raises:
        UsageError: an argument is not what MOE_GEMM says.
    """
    config = TileConfig(block_m=block_m, block_n=block_n, block_k=block_k)
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
        config=config,
    )
    out, acc = call.new(torch.bfloat16), call.new(torch.float32)
    grouped(call, out, acc)
    return out, acc


def grouped(call: GroupedMatmul, out: Tensor, acc: Tensor | None) -> None:
    """`moe_gemm` of a checked call, into memory that it has made."""
    rows, matrices = call.a.float().numpy(), call.w.float().numpy()
    columns, block_n = call.shape[1], call.config.block_n
    total = torch.zeros(call.shape)
    sums = total.numpy()
    for live, named, expert in blocks(call):
        tile = np.zeros((call.config.block_m, rows.shape[1]), np.float32)
        tile[live] = rows[named // call.top_k]
        for start in range(0, columns, block_n):
            part = slice(start, start + block_n)
            sums[named, part] = _product(tile, matrices[expert, part], call.config)[live]
    out.copy_(round_bf16(finished(call, total)))
    if acc is not None:
        acc.copy_(canonical(total))


def blocks(call: Matmul) -> Iterator[tuple[Bools, Ints, int]]:
    """Of each block that is computed: which places have a pair, those pairs, and the expert.

    Rule 2: a block has one expert, and a place with the padding value has no row.
    """
    block_m = call.config.block_m
    places = call.sorted_pairs.numpy().reshape(-1, block_m)[: int(call.padded) // block_m]
    for named, expert in zip(places, call.expert_ids.tolist(), strict=False):
        if 0 <= expert < len(call.w):
            live = (named >= 0) & (named < call.shape[0])
            yield live, named[live], expert


def finished(call: Matmul, total: Tensor) -> Tensor:
    """Rule 4 before its one rounding: bias of the expert, then routing weight; other rows are +0.

    total: [pairs, n] float32, or float64 for the exact value.
    """
    value = torch.zeros_like(total)
    for _, named, expert in blocks(call):
        mine = total[named]
        if call.bias is not None:
            mine = mine + call.bias[expert].to(total.dtype)
        if call.apply_weights:
            mine = mine * call.weights[named, None].to(total.dtype)
        value[named] = mine
    return value


@np.errstate(all="ignore")  # as silent about an infinity or a NaN as a device
def _product(rows: Floats, columns: Floats, config: TileConfig) -> Floats:
    """Rows [block_m, k] times columns [up to block_n, k], transposed, in steps of block_k."""
    acc = np.zeros((config.block_m, config.block_n), np.float32)
    # Rule 3: from +0, K ascending; a step is one product and one addition.
    for _, a_tile, b_tile in steps(rows, columns, config, config.block_k):
        acc = a_tile @ b_tile + acc
    return acc[:, : len(columns)]


def steps(
    rows: Floats, columns: Floats, config: TileConfig, step: int
) -> Iterator[tuple[int, Floats, Floats]]:
    """Rule 3's tiles [block_m, step] and [step, block_n], padded with +0, from each start in K."""
    for start in range(0, rows.shape[1], step):
        part = slice(start, start + step)
        left, right = rows[:, part], columns[:, part]
        a_tile = np.zeros((config.block_m, step), np.float32)
        a_tile[:, : left.shape[1]] = left
        b_tile = np.zeros((step, config.block_n), np.float32)
        b_tile[: right.shape[1], : len(right)] = right.T
        yield start, a_tile, b_tile


def grouped_float64(call: GroupedMatmul) -> dict[str, tuple[Tensor, Tensor]]:
    """Of `out` and `acc` the exact value and the largest error that the contract can make.

    Both are [pairs, n] float64, whatever the order inside a sum; see `experts_oracle`.
    """
    acc, error = (torch.zeros(call.shape, dtype=torch.float64) for _ in range(2))
    rows = call.a.double()
    for _, named, expert in blocks(call):
        mine = rows[named // call.top_k]
        acc[named], error[named] = matmul(mine, torch.zeros_like(mine), call.w[expert].double())
    return {"out": rounded_once(call, acc, error), "acc": (acc, error)}


def rounded_once(call: Matmul, total: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The exact result of an exact accumulator, and what its error and the rest can make of it."""
    biased = finished(replace(call, apply_weights=0), total)
    error = error + FP32 * (biased.abs() + error)
    if call.apply_weights:
        error = error * call.weights.double().abs()[:, None]
    value = finished(call, total)
    return value, rounded(value, error)
