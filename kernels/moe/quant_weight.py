"""The definition of `moe_quant_weight`: experts' weights to float8_e4m3fn, a scale for each block.

    amax = the largest |w| of a block of block_n rows by block_k columns, at least 1e-4
    s = amax / 448; under scale_rule ue8m0 the least power of two not below max(s, 1e-10)
    codes = w / s (rounding divide) or w * (1 / s) (rounding reciprocal), to float8_e4m3fn

The steps are those of `moe_quant`, and so are the bits on every device. The last block of an axis
may be smaller. DeepGEMM's per_block_cast_to_fp8 multiplies by the reciprocal; checkpoints of
DeepSeek-V3.2 and V4 have scales of powers of two. Under block [128, 64] a tile of a matmul sums at
most 64 elements between scales.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import quant_weight_data
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.quant_rules import check_names
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_QUANT_WEIGHT = Kernel(
    op="moe_quant_weight",
    summary="the experts' weights in float8_e4m3fn, with a scale for each block",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="w", dtype="bfloat16", axes=("experts", "n", "k"), role="param"),
        TensorSpec(name="codes", dtype="float8_e4m3fn", axes=("experts", "n", "k"), role="out"),
        TensorSpec(
            name="scales", dtype="float32", axes=("experts", "n_blocks", "k_blocks"), role="out"
        ),
    ),
    constants=(
        ("block_k", quant_weight_data.BLOCK),
        ("block_n", quant_weight_data.BLOCK),
        ("rounding", "reciprocal"),
        ("scale_rule", "amax"),
    ),
    make_inputs=quant_weight_data.make_inputs,
    integer_cases=quant_weight_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_quant_weight-replay",
            op="moe_quant_weight",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.quant_weight_reference:moe_quant_weight",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_quant_weight-triton",
            op="moe_quant_weight",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.quant_weight_triton:moe_quant_weight",
            summary="one Triton kernel, one program for each block",
        ),
    ),
    references={MOE_FP8_1.name: "moe_quant_weight-replay"},
    suites=quant_weight_data.SUITES,
)


def check(
    tensors: dict[str, torch.Tensor], block_n: int, block_k: int, scale_rule: str, rounding: str
) -> tuple[int, int, int]:
    """Check the arguments of moe_quant_weight; return the shape of its scales.

    Raises:
        UsageError: a tensor is not as MOE_QUANT_WEIGHT says, n or k is 0, a name is unknown, or a
            block's extent is one that engines have not.
    """
    op = "moe_quant_weight"
    check_names(op, block_n=block_n, block_k=block_k, scale_rule=scale_rule, rounding=rounding)
    axes = bind(op, MOE_QUANT_WEIGHT.tensors[:2], tensors)
    if not (axes["n"] and axes["k"]):
        raise UsageError(f"{op}: expected n and k of at least 1, got {axes['n']} and {axes['k']}")
    blocks = {"n_blocks": -(-axes["n"] // block_n), "k_blocks": -(-axes["k"] // block_k)}
    reason = f"blocks are {block_n} by {block_k} of {axes['n']} by {axes['k']}"
    bind(op, MOE_QUANT_WEIGHT.tensors, tensors, fixed=axes | blocks, reason=reason)
    return axes["experts"], blocks["n_blocks"], blocks["k_blocks"]
