"""moe_experts under `moe-bf16/1` by the Triton kernels of its stages."""

from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from bitgate.kernels.interpreter import interpreting
from bitgate.kernels.moe import (
    act_quant_triton,
    act_triton,
    align_triton,
    combine_triton,
    gemm_fp8_triton,
    gemm_triton,
    quant_triton,
)
from bitgate.kernels.moe.arguments import check_experts, check_ids
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, FP8_CONFIG, TileConfig
from bitgate.kernels.moe.experts_fp8 import check
from bitgate.kernels.moe.experts_fp8_data import BLOCK
from bitgate.kernels.moe.staged import Scaling, Settings, Stages, Tap, run

TRITON: Final = Stages(
    align=align_triton.moe_align,
    gemm=gemm_triton.grouped,
    act=act_triton.moe_act,
    combine=combine_triton.moe_combine,
    quant=quant_triton.moe_quant,
    gemm_fp8=gemm_fp8_triton.grouped,
)


def experts_triton(
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
    """The experts by Triton kernels, called as `staged_reference.experts_tile` is.

    On a device the values of topk_ids are not looked at, because that would wait for them: every
    id below 0 or from the number of experts on is dropped.

    Raises:
        UsageError: dtypes or shapes disagree, the limit is not positive or no bfloat16, or,
            interpreted, an id is out of range.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    if interpreting():
        check_ids(topk_ids, w_gate_up.shape[0])
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "w_down": w_down}
    settings = Settings(act={"swiglu_limit": swiglu_limit}, config=config, tap=tap)
    return run(TRITON, tensors, settings)


def experts_fp8_triton(
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
    fused: bool = False,
) -> Tensor:
    """The experts over float8 weights by Triton kernels, called as `experts_fp8_tile` is.

    `fused` is what `experts_fp8_fused` does.

    On a device the values of topk_ids are not looked at, because that would wait for them: every
    id below 0 or from the number of experts on is dropped.

    Raises:
        UsageError: an argument is not what MOE_EXPERTS_FP8 says, or, interpreted, an id is out of
            range.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "gate_up_scales": gate_up_scales}
    tensors |= {"w_down": w_down, "down_scales": down_scales}
    scaling = Scaling(
        scheme=scheme, scale_rule=scale_rule, rounding=rounding, block_n=block_n, block_k=block_k
    )
    check(tensors, scaling, swiglu_limit)
    if interpreting():
        check_ids(topk_ids, w_down.shape[0])
    act_quant = act_quant_triton.moe_act_quant if fused and scheme != "tensor" else None
    act = {"swiglu_limit": swiglu_limit}
    settings = Settings(act=act, scaling=scaling, config=config, tap=tap)
    return run(replace(TRITON, act_quant=act_quant), tensors, settings)


def experts_fp8_fused(**arguments: Any) -> Tensor:
    """`experts_fp8_triton` with the activation and its quantisation in one launch.

    Arguments, result and errors are the same, and so are the bits; the boundary `activated` exists
    nowhere. A scale of the whole tensor is known only after its last element, so scheme tensor is
    computed as there.
    """
    return experts_fp8_triton(**arguments, fused=True)
