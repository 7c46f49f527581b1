"""The definition of `moe_experts_fp8`: the routed experts over float8 weights.

    a, a_scales = moe_quant(x)
    gate_up = bf16(moe_gemm_fp8(a, w_gate_up))              of each pair
    b, b_scales = moe_quant(moe_act(gate_up))
    rows = bf16(weight * moe_gemm_fp8(b, w_down))
    out[t] = moe_combine(rows of the token's slots)

`moe-fp8/1`, with the boundaries that `staged` lists. scheme, scale_rule and rounding are those of
moe_quant: group has a scale for each block_k elements of a row and for each block of block_n by
block_k of a weight; token and tensor have one for a row or for the whole operand, and weights one
for each of their rows ([experts, n, 1]) or for an expert ([experts, 1, 1]). The bits depend on the
promotion interval, min(block_k of the tile, block_n, block_k); the catalogue's tiles are
FP8_CONFIG.

Under scheme tensor the scale of x and of the activation is that of all rows of the call, so no
row's bits are its own. A static scale of the activations is moe_quant's alone.
"""

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import experts_fp8_data
from bitgate.kernels.moe.act import Activation
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.gemm_fp8 import require_scales, weight_scales
from bitgate.kernels.moe.quant_rules import check_names
from bitgate.kernels.moe.staged import Scaling
from bitgate.kernels.spec import Implementation, Kernel, Tensors, TensorSpec
from bitgate.records.errors import UsageError

_OP = "moe_experts_fp8"

MOE_EXPERTS_FP8 = Kernel(
    op=_OP,
    summary="the experts over float8 weights: quantise, matmul, activation, quantise, matmul, sum",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="x", dtype="bfloat16", axes=("tokens", "hidden")),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k")),
        TensorSpec(name="topk_weights", dtype="float32", axes=("tokens", "top_k")),
        TensorSpec(
            name="w_gate_up",
            dtype="float8_e4m3fn",
            axes=("experts", "2*intermediate", "hidden"),
            role="param",
        ),
        TensorSpec(
            name="gate_up_scales",
            dtype="float32",
            axes=("experts", "gate_up_rows", "gate_up_groups"),
            role="param",
        ),
        TensorSpec(
            name="w_down",
            dtype="float8_e4m3fn",
            axes=("experts", "hidden", "intermediate"),
            role="param",
        ),
        TensorSpec(
            name="down_scales",
            dtype="float32",
            axes=("experts", "down_rows", "down_groups"),
            role="param",
        ),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=(
        ("block_k", experts_fp8_data.BLOCK),
        ("block_n", experts_fp8_data.BLOCK),
        ("rounding", "divide"),
        ("scale_rule", "amax"),
        ("scheme", "group"),
        ("swiglu_limit", 10.0),
    ),
    make_inputs=experts_fp8_data.make_inputs,
    integer_cases=experts_fp8_data.integer_cases,
    implementations=(
        Implementation(
            name="experts_fp8_tile",
            op=_OP,
            contract=MOE_FP8_1.name,
            tier="native",
            devices=("cpu",),
            target="bitgate.kernels.moe.staged_reference:experts_fp8_tile",
            summary="the references of the stages; the truth of the step ieee-tile",
            tiled=True,
        ),
        Implementation(
            name="experts_fp8_triton",
            op=_OP,
            contract=MOE_FP8_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.staged_triton:experts_fp8_triton",
            summary="the Triton kernels of the stages; on a CPU through Triton's interpreter",
            tiled=True,
        ),
        Implementation(
            name="experts_fp8_fused",
            op=_OP,
            contract=MOE_FP8_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.staged_triton:experts_fp8_fused",
            summary="as experts_fp8_triton, the activation fused with its quantisation",
            tiled=True,
        ),
    ),
    references={MOE_FP8_1.name: "experts_fp8_tile"},
    suites={"default": experts_fp8_data.SUITE},
)


def check(tensors: Tensors, scaling: Scaling, swiglu_limit: float) -> None:
    """Check everything about a call that can be seen without the values of its tensors.

    Raises:
        UsageError: a tensor is not as MOE_EXPERTS_FP8 says, or a constant is none of it.
    """
    check_names(
        _OP,
        scheme=scaling.scheme,
        scale_rule=scaling.scale_rule,
        rounding=scaling.rounding,
        block_n=scaling.block_n,
        block_k=scaling.block_k,
    )
    if scaling.scheme == "static":
        raise UsageError(
            f"{_OP}: expected scheme of group, token, tensor, got 'static'; static scales are "
            "inputs: use moe_quant and moe_gemm_fp8"
        )
    Activation(swiglu_limit=swiglu_limit, op=_OP)
    bind(_OP, MOE_EXPERTS_FP8.inputs, tensors)
    scheme, groups = scaling.matmul["scheme"], (scaling.block_n, scaling.block_k)
    for name in ("gate_up", "down"):
        shapes = weight_scales(scheme, tensors[f"w_{name}"], groups)
        require_scales(_OP, f"{name}_scales", tensors[f"{name}_scales"], scheme, groups, shapes)
