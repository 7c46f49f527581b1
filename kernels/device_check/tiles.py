"""Do the bits of an accumulator depend on the tile? Groups of tiles that give equal ones.

On Hopper bfloat16 should give one group, for its instructions form one chain over K whatever the
tile is; float8 should split by instruction family (16 rows or 64) and by the promotion interval.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.device_check.context import FAILURES, Context
from bitgate.kernels.device_check.inputs import device_spread
from bitgate.kernels.device_check.rows import Answer, Row
from bitgate.kernels.moe import (
    align_triton,
    gemm_fp8_triton,
    gemm_triton,
    quant_triton,
    quant_weight_triton,
)
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.experts_data import route
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_fp8 import ScaledMatmul

# Ten configurations: every instruction family (16 and 64 rows and more), three depths of K, both
# launch widths. If the accumulation is one chain of k = 16 steps, all of them give equal bits.
CONFIGS = tuple(
    TileConfig(block_m=m, block_n=n, block_k=k, group_m=g, num_warps=warps, num_stages=stages)
    for m, n, k, g, warps, stages in (
        (16, 64, 64, 1, 4, 3),
        (16, 128, 128, 8, 4, 3),
        (32, 64, 32, 8, 4, 4),
        (64, 64, 32, 8, 4, 3),
        (64, 128, 64, 8, 4, 3),
        (64, 128, 64, 8, 8, 2),
        (64, 256, 64, 8, 8, 3),
        (128, 64, 64, 8, 4, 3),
        (128, 128, 64, 8, 8, 3),
        (128, 256, 64, 8, 8, 3),
    )
)
FP8_CONFIGS = tuple(
    TileConfig(block_m=m, block_n=128, block_k=k, num_warps=4, num_stages=3)
    for m in (16, 64)
    for k in (64, 128)
)
_GROUP = 128

Sum = Callable[[TileConfig], Tensor]


def tiles(context: Context) -> Iterator[Row]:
    """The answers for bfloat16 and for float8 in blocks of 128, by numbers of tokens."""
    hidden, columns, experts, top_k = (2048, 1536, 128, 8)
    counts: tuple[int, ...] = (1, 64, 257, 4096)
    if context.small:
        hidden, columns, experts, top_k, counts = 256, 128, 8, 2, (1, 33)
    w = device_spread(1, (experts, columns, hidden), scale_log2=9, device=context.name)
    w_codes, w_scales = quant_weight_triton.moe_quant_weight(w=w, block_n=_GROUP, block_k=_GROUP)
    for tokens in counts:
        a = device_spread(2, (tokens, hidden), scale_log2=6, device=context.name)
        ids = torch.from_numpy(route(IntegerStream(3), tokens, experts, top_k)).to(context.name)
        codes, scales = quant_triton.moe_quant(
            x=a, scheme="group", group=_GROUP, scale_rule="amax", rounding="divide"
        )
        scaled: dict[str, Any] = {
            "a": codes,
            "a_scales": scales,
            "w": w_codes,
            "w_scales": w_scales,
        }

        def plain(config: TileConfig, a: Tensor = a, ids: Tensor = ids) -> Tensor:
            call = GroupedMatmul(a=a, w=w, **_pairs(ids, experts, config), config=config)
            out, acc = call.new(torch.bfloat16), call.new(torch.float32)
            gemm_triton.grouped(call, out, acc)
            return acc

        def float8(config: TileConfig, given: dict[str, Any] = scaled, ids: Tensor = ids) -> Tensor:
            call = ScaledMatmul(**given, **_pairs(ids, experts, config), config=config)
            out, acc = call.new(torch.bfloat16), call.new(torch.float32)
            gemm_fp8_triton.grouped(call, out, acc)
            return acc

        about = f"T={tokens}, K={hidden}"
        yield from _grouped(context, f"bf16 accumulators, {about}", CONFIGS, plain)
        yield from _grouped(context, f"fp8 block accumulators, {about}", FP8_CONFIGS, float8)


def _grouped(
    context: Context, question: str, configs: tuple[TileConfig, ...], run: Sum
) -> Iterator[Row]:
    """The groups of configurations with equal bits; no answer where the time is over.

    A configuration that does not run is in no group: the answer names it with the reason.
    """
    digests: dict[str, list[str]] = {}
    faults: list[str] = []
    for config in configs:
        if context.late:
            return
        try:
            digests.setdefault(_digest(run(config)), []).append(_short(config))
        except FAILURES as error:
            line = next(iter(str(error).splitlines()), "")
            faults.append(f"; {_short(config)} did not run: {type(error).__name__}: {line}")
    groups = [" ".join(members) for members in digests.values()]
    answer = f"{len(groups)} groups of equal bits: {' | '.join(groups)}{''.join(faults)}"
    yield Answer(section="tiles", question=question, answer=answer)


def _pairs(ids: Tensor, experts: int, config: TileConfig) -> dict[str, Any]:
    """The alignment of every pair, without weights, for a grouped matmul."""
    here = torch.arange(experts, dtype=torch.int32, device=ids.device)
    aligned = align_triton.moe_align(topk_ids=ids, expert_map=here, block_m=config.block_m)
    return {
        **dict(zip(("sorted_pairs", "expert_ids", "padded"), aligned, strict=True)),
        "weights": torch.ones(ids.numel(), device=ids.device),
        "top_k": ids.shape[1],
        "apply_weights": 0,
    }


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _short(config: TileConfig) -> str:
    tile = f"{config.block_m}/{config.block_n}/{config.block_k}"
    return f"{tile}/g{config.group_m}/w{config.num_warps}/s{config.num_stages}"
