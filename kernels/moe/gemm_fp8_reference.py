"""`moe_gemm_fp8` tile by tile, the truth of the step `ieee-tile`, and float64 with a bound.

The tiles are those of `gemm_reference`; every block is headed by the rule that it implements.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic import canonical, round_bf16
from bitgate.kernels.moe.contract import FP8_CONFIG, TileConfig
from bitgate.kernels.moe.experts_oracle import FP32, TINY, summation
from bitgate.kernels.moe.gemm_fp8 import ScaledMatmul
from bitgate.kernels.moe.gemm_fp8_data import GROUP
from bitgate.kernels.moe.gemm_reference import Floats, blocks, finished, rounded_once, steps
from bitgate.kernels.moe.quant_reference import dequantised

# Hopper's float8 instructions cut a sum's terms below 13 bits of its largest.
HOPPER_FP8: Final = 2.0**-13


def _fma(part: Floats, a: Floats, b: Floats, acc: Floats) -> Floats:
    terms = (torch.from_numpy(one.copy()) for one in np.broadcast_arrays(part * a, b, acc))
    fused: Floats = arithmetic.fma(*terms).numpy()
    return fused


_ACCUMULATE: Final[Mapping[str, Callable[[Floats, Floats, Floats, Floats], Floats]]] = {
    "mul-mul-add": lambda part, a, b, acc: acc + (part * a) * b,
    "mul-fma": _fma,
    "scale-product": lambda part, a, b, acc: acc + part * (a * b),
}


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
) -> tuple[Tensor, Tensor]:
    """Multiply each pair's codes with its expert's, and scale; see MOE_GEMM_FP8 and ScaledMatmul.

    A config takes the place of block_n and block_k; block_m stays that of the alignment.

    Returns:
        out [tokens * top_k, n] bfloat16 and acc, its accumulator, float32.

    Raises:
        UsageError: an argument is not what MOE_GEMM_FP8 says.
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
    out, acc = call.new(torch.bfloat16), call.new(torch.float32)
    grouped(call, out, acc)
    return out, acc


@np.errstate(all="ignore")  # as silent about an infinity or a NaN as a device
def grouped(call: ScaledMatmul, out: Tensor, acc: Tensor | None) -> None:
    """`moe_gemm_fp8` of a checked call, into memory that it has made."""
    rows, matrices = call.a.float().numpy(), call.w.float().numpy()
    a_scales, w_scales = row_scales(call).numpy(), call.w_scales.numpy()
    _, share_n, _ = call.shared
    columns, block_n = call.shape[1], call.config.block_n
    # Of scheme whole the sums before the scales are the accumulator.
    sums, totals = (np.zeros(call.shape, np.float32) for _ in range(2))
    for live, named, expert in blocks(call):
        tile = np.zeros((call.config.block_m, rows.shape[1]), np.float32)
        tile[live] = rows[named // call.top_k]
        of_rows = np.zeros((call.config.block_m, a_scales.shape[1]), np.float32)
        of_rows[live] = a_scales[named // call.top_k]
        for start in range(0, columns, block_n):
            part = slice(start, min(start + block_n, columns))
            of_columns = w_scales[expert][np.arange(part.start, part.stop) // share_n]
            acc_tile, total = _product(call, (tile, of_rows), (matrices[expert, part], of_columns))
            sums[named, part], totals[named, part] = acc_tile[live], total[live]
    out.copy_(round_bf16(finished(call, torch.from_numpy(totals))))
    if acc is not None:
        acc.copy_(canonical(torch.from_numpy(sums)))


def _product(
    call: ScaledMatmul, rows: tuple[Floats, Floats], columns: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """The accumulator of a tile and what it is worth; rows and columns come with their scales."""
    (left, a_scales), (right, w_scales) = rows, columns
    acc = np.zeros((call.config.block_m, len(right)), np.float32)
    add = _ACCUMULATE[call.accumulate]
    # K ascending in steps, tiles padded with +0.
    for start, a_tile, b_tile in steps(left, right, call.config, call.step):
        product = a_tile @ b_tile
        if call.scheme == "whole":
            acc = product[:, : len(right)] + acc
            continue
        group = start // call.group_k
        a, b = a_scales[:, group, None], w_scales[None, :, group]
        acc = add(product[:, : len(right)], a, b, acc)
    if call.scheme == "whole":
        return acc, (acc * a_scales) * w_scales[:, 0]
    return acc, acc


def row_scales(call: ScaledMatmul) -> Tensor:
    """The scales of every row of a: [tokens, groups]."""
    return call.a_scales.expand(call.a.shape[0], -1)


def grouped_float64(call: ScaledMatmul, unit: float = FP32) -> dict[str, tuple[Tensor, Tensor]]:
    """Of `out` and `acc` the exact value and the largest error that the contract can make.

    Both are [pairs, n] float64, whatever the order inside a step and the accumulate form. `unit` is
    what one addition within a matrix instruction can lose of the magnitudes that it adds.
    """
    block = call.scheme == "block"
    _, share_n, share_k = call.shared
    ones = torch.ones_like(row_scales(call))
    a = dequantised(call.a, row_scales(call) if block else ones, 1, share_k)
    acc, magnitude = (torch.zeros(call.shape, dtype=torch.float64) for _ in range(2))
    scales = torch.ones_like(acc)
    for _, named, expert in blocks(call):
        mine, of_w = named // call.top_k, call.w_scales[expert]
        w = dequantised(call.w[expert], of_w if block else torch.ones_like(of_w), share_n, share_k)
        acc[named], magnitude[named] = a[mine] @ w.T, a[mine].abs() @ w.abs().T
        if not block:
            of_columns = of_w.double().repeat_interleave(share_n, 0)[: call.shape[1], 0]
            scales[named] = row_scales(call)[mine].double() * of_columns
    # A term each and the accumulator once in 16, in the instruction; then, in float32, both scales
    # and the additions of the steps.
    depth = call.a.shape[1]
    inside = summation(-(-depth // 16) * 17, unit)
    error = (inside + summation(-(-depth // call.step) + 3)) * magnitude + TINY
    total, total_error = acc * scales, error * scales.abs()
    total_error = total_error + (0 if block else 3 * FP32 * (total.abs() + total_error)) + TINY
    return {"out": rounded_once(call, total, total_error), "acc": (acc, error)}
