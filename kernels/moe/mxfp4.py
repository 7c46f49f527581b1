"""The definition of `moe_dequant_mxfp4`: packed 4-bit codes with a scale for 32 of them, to bf16.

    code = codes[r, k / 2] & 15 of an even k, >> 4 of an odd k         uint8, two codes a byte
    out[r, k] = value(code) * 2^(scales[r, k / 32] - 127)              e8m0 byte, 255 is NaN

A code is a sign (8), two bits of exponent (6) and one of significand (1), e2m1; its value is

    0, 0.5, 1, 1.5, 2, 3, 4, 6   for codes 0 to 7, and the negative of it, -0 too, from 8 on

No result is rounded. The smallest that is not zero, 0.5 * 2^-127 = 2^-128, is 32 of bfloat16's
subnormal units of 2^-133, and each code has two significant bits where bfloat16 has eight. What
reaches 2^128 is the infinity of its sign, as rounding would give: 2, 3, 4 and 6 at the scale 254,
4 and 6 at 253; no smaller scale overflows. The scale 255 makes its 32 numbers the canonical NaN of
`kernels.arithmetic`, zeros as well. The bits are put together by integer operations, so that a
device which flushes subnormal numbers has the same ones: scales 0 and 1 make them.

These are the weights of gpt-oss and of DeepSeek-V4's experts (`expert_dtype` fp4). Tensors may have
more leading axes; `rows` is then their product.
"""

from typing import Any, Final

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import mxfp4_data
from bitgate.kernels.spec import Contract, Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

GROUP: Final = 32

MXFP4_1: Final = Contract(
    name="mxfp4/1",
    summary="e2m1 codes, the low nibble first, times 2^(e8m0 - 127) of 32 codes, exact in bf16; "
    "infinite from 2^128 on, NaN at the scale 255",
    batch_invariant=True,
    cross_device=True,
)

MOE_DEQUANT_MXFP4 = Kernel(
    op="moe_dequant_mxfp4",
    summary="4-bit weights, two a byte, with one power of two for 32 of them, exactly in bfloat16",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="codes", dtype="uint8", axes=("rows", "16*groups"), role="param"),
        TensorSpec(name="scales", dtype="uint8", axes=("rows", "groups"), role="param"),
        TensorSpec(name="out", dtype="bfloat16", axes=("rows", "32*groups"), role="out"),
    ),
    constants=(),
    make_inputs=mxfp4_data.make_inputs,
    integer_cases=mxfp4_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_dequant_mxfp4-replay",
            op="moe_dequant_mxfp4",
            contract=MXFP4_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.mxfp4_reference:moe_dequant_mxfp4",
            summary="the bits in plain torch; the truth",
        ),
        Implementation(
            name="moe_dequant_mxfp4-triton",
            op="moe_dequant_mxfp4",
            contract=MXFP4_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.mxfp4_triton:moe_dequant_mxfp4",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MXFP4_1.name: "moe_dequant_mxfp4-replay"},
    suites=mxfp4_data.SUITES,
)


def check(
    codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor | None = None
) -> tuple[int, ...]:
    """Check the arguments of moe_dequant_mxfp4; return the shape of the result.

    Raises:
        UsageError: a tensor is not as MOE_DEQUANT_MXFP4 says, or leading axes disagree.
    """
    tensors = {"codes": codes, "scales": scales} | ({} if out is None else {"out": out})
    flat = {name: _rows(tensor) for name, tensor in tensors.items()}
    groups = bind("moe_dequant_mxfp4", MOE_DEQUANT_MXFP4.tensors, flat)["groups"]
    leading = {name: list(tensor.shape[:-1]) for name, tensor in tensors.items()}
    if any(shape != leading["codes"] for shape in leading.values()):
        raise UsageError(f"moe_dequant_mxfp4: expected the same leading axes, got {leading}")
    return (*codes.shape[:-1], GROUP * groups)


def _rows(tensor: Any) -> Any:
    """The tensor with its leading axes as one; what is no tensor, as it is, for `bind` to name."""
    if isinstance(tensor, torch.Tensor) and tensor.ndim > 2:
        return tensor.flatten(0, -2)
    return tensor
