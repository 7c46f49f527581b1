"""The definition of `moe_act`: the gated activation between the two matmuls of the experts.

    gate = min(gate_up[r, i], limit);  up = gate_up[r, intermediate + i] between -limit and limit
    silu = bf16(gate / (1 + exp(-gate)))                            float32, rounded
    out[r, i] = bf16(silu * up)                                     float32, rounded again

exp, the rounding to nearest even and the one canonical NaN are those of `kernels.arithmetic`, and
the division is correctly rounded, so the bits are the same on every device. The rounding between
silu and the product is vLLM's; SGLang keeps the product in float32, which is another contract. The
limit of a model without one is inf.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import act_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_ACT = Kernel(
    op="moe_act",
    summary="silu of the clamped gate half, rounded, times the clamped up half, rounded",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="gate_up", dtype="bfloat16", axes=("rows", "2*intermediate")),
        TensorSpec(name="out", dtype="bfloat16", axes=("rows", "intermediate"), role="out"),
    ),
    constants=(("swiglu_limit", 10.0),),
    make_inputs=act_data.make_inputs,
    integer_cases=act_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_act-replay",
            op="moe_act",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_reference:moe_act",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_act-triton",
            op="moe_act",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_triton:moe_act",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MOE_BF16_1.name: "moe_act-replay"},
    suites=act_data.SUITES,
)


def check(gate_up: torch.Tensor, swiglu_limit: float, out: torch.Tensor | None = None) -> int:
    """Check the arguments of moe_act; return the intermediate size.

    Raises:
        UsageError: a tensor is not as MOE_ACT says, or the limit is no positive number that
            bfloat16 holds exactly: engines that clamp before and after rounding would differ.
    """
    tensors = {"gate_up": gate_up} | ({} if out is None else {"out": out})
    intermediate = bind("moe_act", MOE_ACT.tensors, tensors)["intermediate"]
    if type(swiglu_limit) not in (int, float) or not swiglu_limit > 0:
        raise UsageError(
            f"moe_act: expected swiglu_limit to be a positive number, or inf for none, got "
            f"{swiglu_limit!r}"
        )
    rounded = torch.tensor(float(swiglu_limit), dtype=torch.float64).to(torch.bfloat16).item()
    if rounded != swiglu_limit:
        raise UsageError(
            f"moe_act: expected a swiglu_limit that bfloat16 holds exactly, got {swiglu_limit}; "
            f"the nearest is {rounded}"
        )
    return intermediate
