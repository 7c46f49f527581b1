"""`moe_gemm` tile by tile, the truth of the step `ieee-tile` (see `contract`).

The tiles have the shape and the memory order of those that Triton's interpreter multiplies, so that
the host's BLAS takes the same path for both; every block is headed by the rule that it implements.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bitgate.kernels.arithmetic import canonical, round_bf16
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.experts_oracle import matmul, rounded
from bitgate.kernels.moe.gemm import GroupedMatmul

Floats = npt.NDArray[np.float32]


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
    block_m: int = DEFAULT_CONFIG.block_m,
    block_n: int = DEFAULT_CONFIG.block_n,
    block_k: int = DEFAULT_CONFIG.block_k,
) -> tuple[Tensor, Tensor]:
    """Multiply each pair's row with its expert's weights; see MOE_GEMM.

    Returns:
        out [tokens * top_k, n] bfloat16 and acc, its accumulator before the weight, float32.

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
        config=config,
    )
    out, acc = call.new(torch.bfloat16), call.new(torch.float32)
    grouped(call, out, acc)
    return out, acc


def grouped(call: GroupedMatmul, out: Tensor, acc: Tensor | None) -> None:
    """`moe_gemm` of a checked call, into memory that it has made."""
    rows, matrices = call.a.float().numpy(), call.w.float().numpy()
    pairs, columns = call.shape
    block_m, block_n = call.config.block_m, call.config.block_n
    total = torch.zeros(call.shape)
    sums = total.numpy()
    # Rule 2: a block has one expert, and a place with the padding value has no row.
    places = call.sorted_pairs.numpy().reshape(-1, block_m)[: int(call.padded) // block_m]
    for named, expert in zip(places, call.expert_ids.tolist(), strict=False):
        if not 0 <= expert < len(matrices):
            continue
        live = (named >= 0) & (named < pairs)
        tile = np.zeros((block_m, rows.shape[1]), np.float32)
        tile[live] = rows[named[live] // call.top_k]
        for start in range(0, columns, block_n):
            part = slice(start, start + block_n)
            sums[named[live], part] = _product(tile, matrices[expert, part], call.config)[live]
    # Rule 4: the weight multiplies the accumulator, and one rounding follows.
    weighted = total * call.weights[:, None] if call.apply_weights else total
    out.copy_(round_bf16(weighted))
    if acc is not None:
        acc.copy_(canonical(total))


@np.errstate(all="ignore")  # as silent about an infinity or a NaN as a device
def _product(rows: Floats, columns: Floats, config: TileConfig) -> Floats:
    """Rows [block_m, k] times columns [up to block_n, k], transposed, in steps of block_k."""
    acc = np.zeros((config.block_m, config.block_n), np.float32)
    # Rule 3: from +0, K ascending, tiles padded with +0; a step is one product and one addition.
    for start in range(0, rows.shape[1], config.block_k):
        part = slice(start, start + config.block_k)
        left, right = rows[:, part], columns[:, part]
        a_tile = np.zeros((config.block_m, config.block_k), np.float32)
        a_tile[:, : left.shape[1]] = left
        b_tile = np.zeros((config.block_k, config.block_n), np.float32)
        b_tile[: right.shape[1], : len(right)] = right.T
        acc = a_tile @ b_tile + acc
    return acc[:, : len(columns)]


def grouped_float64(call: GroupedMatmul) -> dict[str, tuple[Tensor, Tensor]]:
    """Of `out` and `acc` the exact value and the largest error that the contract can make.

    Both are [pairs, n] float64, whatever the order inside a sum; see `experts_oracle`.
    """
    pairs, _ = call.shape
    acc, error = (torch.zeros(call.shape, dtype=torch.float64) for _ in range(2))
    rows, block_m = call.a.double(), call.config.block_m
    for block, expert in enumerate(call.expert_ids[: int(call.padded) // block_m].tolist()):
        if 0 <= expert < len(call.w):
            named = call.sorted_pairs[block * block_m : (block + 1) * block_m].long()
            named = named[(named >= 0) & (named < pairs)]
            mine = rows[named // call.top_k]
            acc[named], error[named] = matmul(mine, torch.zeros_like(mine), call.w[expert].double())
    weights = call.weights.double()[:, None] if call.apply_weights else torch.ones(())
    out, out_error = acc * weights, error * weights.abs()
    return {"out": (out, rounded(out, out_error)), "acc": (acc, error)}
