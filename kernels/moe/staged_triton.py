"""moe_experts under `moe-bf16/1` by the Triton kernels of its stages."""

from typing import Final

from torch import Tensor

from bitgate.kernels.interpreter import interpreting
from bitgate.kernels.moe import (
    act_triton,
    align_triton,
    combine_triton,
    gemm_fp8_triton,
    gemm_triton,
    quant_triton,
)
from bitgate.kernels.moe.arguments import check_experts, check_ids
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.staged import Settings, Stages, Tap, run

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
        TypeError: a tensor has another dtype.
        ValueError: shapes disagree, the limit is not positive, or, interpreted, an id is out of
            range.
        UsageError: the limit is no bfloat16.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    if interpreting():
        check_ids(topk_ids, w_gate_up.shape[0])
    tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {"w_gate_up": w_gate_up, "w_down": w_down}
    settings = Settings(act={"swiglu_limit": swiglu_limit}, config=config, tap=tap)
    return run(TRITON, tensors, settings)
