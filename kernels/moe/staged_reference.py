"""moe_experts under `moe-bf16/1` by the references of its stages."""

from typing import Final

from torch import Tensor

from bitgate.kernels.moe import (
    act_reference,
    align_reference,
    combine_reference,
    gemm_fp8_reference,
    gemm_reference,
    quant_reference,
)
from bitgate.kernels.moe.arguments import check_experts, check_ids
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, FP8_CONFIG, TileConfig
from bitgate.kernels.moe.experts_fp8 import check
from bitgate.kernels.moe.experts_fp8_data import BLOCK
from bitgate.kernels.moe.staged import Scaling, Settings, Stages, Tap, run

TILE: Final = Stages(
    align=align_reference.moe_align,
    gemm=gemm_reference.grouped,
    act=act_reference.moe_act,
    combine=combine_reference.moe_combine,
    quant=quant_reference.moe_quant,
    gemm_fp8=gemm_fp8_reference.grouped,
)


def experts_tile(
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
    """The experts by the references of their stages, on the CPU: the truth of `ieee-tile`.

    Args:
        x: [tokens, hidden] bfloat16.
        topk_ids: [tokens, top_k] int64, 0 to experts - 1; -1 and `experts` are padding, skipped.
        topk_weights: [tokens, top_k] float32, or bfloat16, which is widened.
        w_gate_up: [experts, 2 * intermediate, hidden] bfloat16, gate rows first.
        w_down: [experts, hidden, intermediate] bfloat16.
        swiglu_limit: gate is clamped above, up on both sides; inf clamps nothing.
        config: the tiles of both matmuls; the bits depend on its block_k.
        tap: called with the name and the tensor of each boundary.

    Returns:
        [tokens, hidden] bfloat16.

    Raises:
        UsageError: dtypes or shapes disagree, an id is out of range, or the limit is not positive
            or no bfloat16.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    check_ids(topk_ids, w_gate_up.shape[0])
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "w_down": w_down}
    settings = Settings(act={"swiglu_limit": swiglu_limit}, config=config, tap=tap)
    return run(TILE, tensors, settings)


def experts_fp8_tile(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    gate_up_scales: Tensor,
    w_down: Tensor,
    down_scales: Tensor,
    swiglu_limit: float,
    scheme: str = "group",
    scale_rule: str = "amax",
    rounding: str = "divide",
    block_n: int = BLOCK,
    block_k: int = BLOCK,
    config: TileConfig = FP8_CONFIG,
    tap: Tap | None = None,
) -> Tensor:
    """The experts over float8 weights by the references of their stages, on the CPU.

    Args:
        x: [tokens, hidden] bfloat16.
        topk_ids: [tokens, top_k] int64, 0 to experts - 1; -1 and `experts` are padding, skipped.
        topk_weights: [tokens, top_k] float32.
        w_gate_up: [experts, 2 * intermediate, hidden] float8_e4m3fn, gate rows first.
        gate_up_scales: float32; see MOE_EXPERTS_FP8 for the shapes of each scheme.
        w_down: [experts, hidden, intermediate] float8_e4m3fn.
        down_scales: float32.
        swiglu_limit: gate is clamped above, up on both sides; inf clamps nothing.
        scheme: group, token or tensor, as moe_quant has them.
        scale_rule: amax or ue8m0.
        rounding: divide or reciprocal.
        block_n: rows of a weight that share a scale of scheme group.
        block_k: elements of K that do, and elements of a group of a row.
        config: the tiles of both matmuls; the bits depend on its block_k.
        tap: called with the name and the tensor of each boundary.

    Returns:
        [tokens, hidden] bfloat16.

    Raises:
        UsageError: an argument is not what MOE_EXPERTS_FP8 says, or an id is out of range.
    """
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "gate_up_scales": gate_up_scales}
    tensors |= {"w_down": w_down, "down_scales": down_scales}
    scaling = Scaling(
        scheme=scheme, scale_rule=scale_rule, rounding=rounding, block_n=block_n, block_k=block_k
    )
    check(tensors, scaling, swiglu_limit)
    check_ids(topk_ids, w_down.shape[0])
    act = {"swiglu_limit": swiglu_limit}
    return run(TILE, tensors, Settings(act=act, scaling=scaling, config=config, tap=tap))
