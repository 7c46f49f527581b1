"""The definition of `moe_combine_weighted`: rows are weighted, added and rounded in one step.

    acc[t] = +0;  for slot = 0, 1, ... top_k - 1:
        acc[t] = acc[t] + y[t, slot] * topk_weights[t, slot]      float32, product and sum rounded
    out[t] = bf16(acc[t])

y is the second matmul's result without the routing weight, rounded to bfloat16; that is what vLLM's
moe_fused_mul_sum and the XPU's moe_gather are given. `moe_combine` follows a matmul that multiplied
its float32 accumulator by the weight instead, so the two do not have the same bits: rows that are
weighted and rounded before the sum change 38 in 100 outputs of `make_inputs` at a top_k of 8.

The product is not contracted with the addition. Compilers may do so: a product of 8 by 24
significant bits is then added before it is rounded, which changes 44 in 100 of those float32 sums,
and 6 in 100 000 of the outputs. A build of an engine that contracts is another arithmetic; this one
says what each operation rounds.

A slot whose id is below 0 or not below `experts` is left out, whatever lies in its row and in its
weight. Without any slot the result is +0 (moe_fused_mul_sum leaves such rows as they were). A sum
that is not zero and at most half the smallest bfloat16 becomes the zero of its sign. The rounding
to nearest even and the one canonical NaN are those of `kernels.arithmetic`: the same bits on every
device.
"""

from typing import Final

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import combine_data, combine_weighted_data
from bitgate.kernels.moe.combine import check_experts
from bitgate.kernels.spec import Contract, Implementation, Kernel, TensorSpec

MOE_GATHER_1: Final = Contract(
    name="moe-gather/1",
    summary="the routing weight, in float32, multiplies each bf16 row of the second matmul; slots "
    "added in float32 from +0, ascending, no contraction, rounded once",
    batch_invariant=True,
    cross_device=True,
)

MOE_COMBINE_WEIGHTED = Kernel(
    op="moe_combine_weighted",
    summary="sum each token's rows times their routing weights in float32, and round once",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="y", dtype="bfloat16", axes=("tokens", "top_k", "hidden")),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="topk_weights", dtype="float32", axes=("tokens", "top_k")),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=(("experts", combine_data.EXPERTS),),
    make_inputs=combine_weighted_data.make_inputs,
    integer_cases=combine_weighted_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_combine_weighted-replay",
            op="moe_combine_weighted",
            contract=MOE_GATHER_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.combine_weighted_reference:moe_combine_weighted",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_combine_weighted-triton",
            op="moe_combine_weighted",
            contract=MOE_GATHER_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.combine_weighted_triton:moe_combine_weighted",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MOE_GATHER_1.name: "moe_combine_weighted-replay"},
    suites=combine_weighted_data.SUITES,
)


def check(
    y: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    experts: int,
    out: torch.Tensor | None = None,
) -> None:
    """Check the arguments of moe_combine_weighted.

    Raises:
        UsageError: a tensor or a constant is not as MOE_COMBINE_WEIGHTED says.
    """
    tensors = {"y": y, "topk_ids": topk_ids, "topk_weights": topk_weights}
    tensors |= {} if out is None else {"out": out}
    bind("moe_combine_weighted", MOE_COMBINE_WEIGHTED.tensors, tensors)
    check_experts("moe_combine_weighted", experts)
