"""The definition of `moe_combine`: a token's weighted rows are added, and rounded once.

    acc[t] = +0;  for slot = 0, 1, ... top_k - 1:  acc[t] = acc[t] + y[t, slot]           float32
    out[t] = bf16(acc[t])

With accumulate "bf16-step" the sum is rounded after every addition, acc[t] = bf16(acc[t] + y). That
is what vLLM 0.10.2 computes for a top_k of 2, 3 and 4, and bf16-step takes no other: vLLM gave
those to torch's sum, which adds in float32 in an order of its own. vLLM 0.33 is "fp32" for every
top_k. At a top_k of 2 the two agree, because the first addition is exact.

A slot whose id is below 0 or not below `experts` is left out, whatever lies in its row: its y may
never have been written. Without any slot the result is +0. No result is -0: the sum starts at +0,
and a sum of bfloat16 numbers that is not zero does not round to it. The rounding to nearest even
and the one canonical NaN are those of `kernels.arithmetic`: the same bits on every device.
"""

from typing import Final

import torch

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.moe import combine_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

ACCUMULATE: Final = ("fp32", "bf16-step")
STEP_TOP_K: Final = (2, 3, 4)
# Ids are compared as 32-bit integers where a kernel has them so.
MOST_EXPERTS: Final = 2**31 - 1

MOE_COMBINE = Kernel(
    op="moe_combine",
    summary="sum each token's weighted rows, slots ascending, in float32 and rounded once",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="y", dtype="bfloat16", axes=("tokens", "top_k", "hidden")),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=(("experts", combine_data.EXPERTS), ("accumulate", "fp32")),
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
    y: torch.Tensor,
    topk_ids: torch.Tensor,
    experts: int,
    accumulate: str = "fp32",
    out: torch.Tensor | None = None,
) -> None:
    """Check the arguments of moe_combine.

    Raises:
        UsageError: a tensor or a constant is not as MOE_COMBINE says.
    """
    tensors = {"y": y, "topk_ids": topk_ids} | ({} if out is None else {"out": out})
    top_k = bind("moe_combine", MOE_COMBINE.tensors, tensors)["top_k"]
    check_experts("moe_combine", experts)
    if accumulate not in ACCUMULATE:
        raise UsageError(
            f"moe_combine: expected accumulate of {' or '.join(ACCUMULATE)}, got {accumulate!r}"
        )
    if accumulate == "bf16-step" and top_k not in STEP_TOP_K:
        raise UsageError(
            f"moe_combine: expected a top_k of 2, 3 or 4 for bf16-step, got {top_k}; vLLM 0.10.2 "
            "adds others in float32: pass fp32"
        )


def check_experts(op: str, experts: int) -> None:
    """Raise UsageError unless `experts` is an int from 1 to MOST_EXPERTS."""
    if type(experts) is not int or not 1 <= experts <= MOST_EXPERTS:
        raise UsageError(
            f"{op}: expected experts of 1 to {MOST_EXPERTS}, an int, got {shown(experts)}"
        )
