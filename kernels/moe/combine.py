"""The definition of `moe_combine`: a token's weighted rows are added, and rounded once.

    acc[t] = +0;  for slot = 0, 1, ... top_k - 1:  acc[t] = acc[t] + y[t, slot]           float32
    out[t] = bf16(acc[t])

A slot whose id is below 0 or not below `experts` is left out, whatever lies in its row: its y may
never have been written. Without any slot the result is +0. No result is -0: the sum starts at +0,
and a sum of bfloat16 numbers that is not zero does not round to it. The rounding to nearest even
and the one canonical NaN are those of `kernels.arithmetic`: the same bits on every device.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import combine_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_COMBINE = Kernel(
    op="moe_combine",
    summary="sum each token's weighted rows in float32, slots ascending, and round once",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="y", dtype="bfloat16", axes=("tokens", "top_k", "hidden")),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=(("experts", combine_data.EXPERTS),),
    make_inputs=combine_data.make_inputs,
    integer_cases=combine_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_combine-replay",
            op="moe_combine",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.combine_reference:moe_combine",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_combine-triton",
            op="moe_combine",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.combine_triton:moe_combine",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MOE_BF16_1.name: "moe_combine-replay"},
    suites=combine_data.SUITES,
)


def check(
    y: torch.Tensor, topk_ids: torch.Tensor, experts: int, out: torch.Tensor | None = None
) -> None:
    """Check the arguments of moe_combine.

    Raises:
        UsageError: a tensor is not as MOE_COMBINE says, or experts is not a positive int.
    """
    tensors = {"y": y, "topk_ids": topk_ids} | ({} if out is None else {"out": out})
    bind("moe_combine", MOE_COMBINE.tensors, tensors)
    if type(experts) is not int or experts < 1:
        raise UsageError(f"moe_combine: expected experts of at least 1, an int, got {experts!r}")
