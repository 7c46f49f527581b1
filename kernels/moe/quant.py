"""The definition of `moe_quant`: rows to float8_e4m3fn, with a scale for each tile of elements.

    tile = the whole tensor (scheme static, tensor), a row (token), or `group` of a row's elements
           in order (group); the last group of a row may be shorter
    amax = the largest |x| of the tile, at least 1e-10 under scheme group
    s = amax / 448, at least 1 / (448 * 512) under scheme token; the given scale under scheme static
    s = the least power of two not below max(s, 1e-10)     (scale_rule ue8m0; not of a given scale)
    q = x / s (rounding divide)  or  x * (1 / s) (rounding reciprocal); a scale of 0 divides as 1
    codes = q to float8_e4m3fn, to nearest even, at most 448 in magnitude

All of it is float32, every quotient is correctly rounded, the power of two comes from the bits of
the exponent, and codes from integer arithmetic: the same bits on every device. Scales are
[1, 1] for the tensor, [rows, 1] for tokens, [rows, ceil(k / group)] for groups. Which engine has
which of them is `quant_rules.QUANTISERS`.

Under the schemes token and group a row's bits do not depend on the other rows. Under scheme tensor
they do, on every row of the call: one token's outlier changes the codes of all others, and a
contract that pins it is not batch invariant.

Engines differ where an element is not finite or a whole tensor is zero; here a NaN in a tile makes
its scale and all its codes NaN, an infinity makes its scale infinite, its own code NaN and the
finite ones 0, and a tensor of zeros gets a scale and codes of zero (vLLM's kernel then stores codes
of 448, which are worth zero as well). Below an amax of 2^-119 under scheme tensor, 1 / s is
infinite: rounding reciprocal gives 448 for what is not 0, and NaN for what is.
"""

from typing import Final

import torch

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.moe import quant_data
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.quant_rules import check_names
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

# Above every float32; an integer may be too large for any float.
_BEYOND: Final = 2.0**128

MOE_QUANT = Kernel(
    op="moe_quant",
    summary="rows in float8_e4m3fn, with a scale for each tensor, token or group of elements",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="x", dtype="bfloat16", axes=("rows", "k")),
        TensorSpec(name="codes", dtype="float8_e4m3fn", axes=("rows", "k"), role="out"),
        TensorSpec(name="scales", dtype="float32", axes=("rows", "groups"), role="out"),
    ),
    constants=(
        ("group", quant_data.GROUP),
        ("rounding", "divide"),
        ("scale", 1.0),
        ("scale_rule", "amax"),
        ("scheme", "group"),
    ),
    make_inputs=quant_data.make_inputs,
    integer_cases=quant_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_quant-replay",
            op="moe_quant",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.quant_reference:moe_quant",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_quant-triton",
            op="moe_quant",
            contract=MOE_FP8_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.quant_triton:moe_quant",
            summary="one Triton kernel; two for a whole tensor",
        ),
    ),
    references={MOE_FP8_1.name: "moe_quant-replay"},
    suites=quant_data.SUITES,
)


def check(
    tensors: dict[str, torch.Tensor],
    scheme: str,
    group: int,
    scale_rule: str,
    rounding: str,
    scale: float = 1.0,
) -> tuple[int, int]:
    """Check the arguments of moe_quant; return the shape of its scales.

    Raises:
        UsageError: a tensor is not as MOE_QUANT says for this scheme, k is 0, a name is unknown,
            or the scale is not positive, finite and exact in float32.
    """
    check_names("moe_quant", scheme=scheme, group=group, scale_rule=scale_rule, rounding=rounding)
    if type(scale) not in (int, float) or not 0 < scale < _BEYOND or _float32(scale) != scale:
        raise UsageError(
            "moe_quant: expected scale to be positive, finite and exact in float32, got "
            f"{shown(scale)}"
        )
    axes = bind("moe_quant", MOE_QUANT.tensors[:2], tensors)
    if axes["k"] < 1:
        raise UsageError("moe_quant: expected k of at least 1, got 0; a row has no largest element")
    shape = scales_shape(scheme, group, axes["rows"], axes["k"])
    scales = TensorSpec(
        name="scales", dtype="float32", axes=(str(shape[0]), str(shape[1])), role="out"
    )
    bind("moe_quant", (MOE_QUANT.tensors[0], scales), tensors)
    return shape


def scales_shape(scheme: str, group: int, rows: int, k: int) -> tuple[int, int]:
    """The shape of the scales of [rows, k] elements."""
    if scheme in ("static", "tensor"):
        return 1, 1
    return rows, 1 if scheme == "token" else -(-k // group)


def _float32(value: float) -> float:
    return torch.tensor(float(value), dtype=torch.float64).to(torch.float32).item()
