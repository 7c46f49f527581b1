"""The definition of `moe_act_quant`: the gated activation and its quantisation, fused.

    product = what `moe_act` rounds last: factor * up, float32
    with round_product = 1:  product = bf16(product)
    codes, scales = `moe_quant` of the product, by its scheme (token or group) and rules

With round_product = 1 the bits are those of `moe_act` and then `moe_quant`: vLLM's modular experts
write bfloat16 between the two. With 0 the product stays float32 and so does its amax: vLLM's fused
SiLU and quantisation, which keeps silu in float32 as well (round_between = 0). The two are not the
same bits, in one engine. The same bits on every device; a row's do not depend on the other rows.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import act_quant_data
from bitgate.kernels.moe.act import ALPHA
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.quant import scales_shape
from bitgate.kernels.moe.quant_data import GROUP
from bitgate.kernels.moe.quant_rules import check_names
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_ACT_QUANT = Kernel(
    op="moe_act_quant",
    summary="the gated activation in float8_e4m3fn, with a scale for each token or group",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="gate_up", dtype="bfloat16", axes=("rows", "2*intermediate")),
        TensorSpec(name="codes", dtype="float8_e4m3fn", axes=("rows", "intermediate"), role="out"),
        TensorSpec(name="scales", dtype="float32", axes=("rows", "groups"), role="out"),
    ),
    constants=(
        ("alpha", ALPHA),
        ("group", GROUP),
        ("kind", "silu"),
        ("round_between", 1),
        ("round_product", 1),
        ("rounding", "divide"),
        ("scale_rule", "amax"),
        ("scheme", "group"),
        ("swiglu_limit", 10.0),
    ),
    make_inputs=act_quant_data.make_inputs,
    integer_cases=act_quant_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_act_quant-replay",
            op="moe_act_quant",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_quant_reference:moe_act_quant",
            summary="the two references' steps one after the other; the truth",
        ),
        Implementation(
            name="moe_act_quant-triton",
            op="moe_act_quant",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_quant_triton:moe_act_quant",
            summary="one Triton kernel; the product is never written",
        ),
    ),
    references={MOE_FP8_1.name: "moe_act_quant-replay"},
    suites=act_quant_data.SUITES,
)


def check(
    tensors: dict[str, torch.Tensor],
    scheme: str,
    group: int,
    scale_rule: str,
    rounding: str,
    round_product: int,
) -> tuple[int, int]:
    """Check the tensors of moe_act_quant and the constants that are not the activation's.

    Returns:
        The shape of the scales.

    Raises:
        UsageError: a tensor is not as MOE_ACT_QUANT says for this scheme, intermediate is 0, a
            name is unknown, or the scheme spans the rows of a call.
    """
    op = "moe_act_quant"
    check_names(op, scheme=scheme, group=group, scale_rule=scale_rule, rounding=rounding)
    if scheme not in ("token", "group"):
        raise UsageError(
            f"{op}: expected scheme of token, group, got {scheme!r}; a scale of the whole tensor "
            "is known only after the last product: use moe_act and moe_quant"
        )
    if type(round_product) is not int or round_product not in (0, 1):
        raise UsageError(f"{op}: expected round_product of 0 or 1, an int, got {round_product!r}")
    axes = bind(op, MOE_ACT_QUANT.tensors[:2], tensors)
    if axes["intermediate"] < 1:
        raise UsageError(f"{op}: expected intermediate of at least 1, got 0")
    shape = scales_shape(scheme, group, axes["rows"], axes["intermediate"])
    reason = f"scheme {scheme} with group {group} has {shape[1]} scales a row"
    bind(op, MOE_ACT_QUANT.tensors, tensors, fixed=axes | {"groups": shape[1]}, reason=reason)
    return shape
