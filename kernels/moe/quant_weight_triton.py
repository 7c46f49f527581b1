"""`moe_quant_weight` under `moe-fp8/1` in Triton, one launch."""

from torch import Tensor, float8_e4m3fn, float32, int8

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import bits16, launch, widen
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe.quant_rules import WEIGHT_FLOORS
from bitgate.kernels.moe.quant_steps_triton import codes_of, magnitude, scale_of
from bitgate.kernels.moe.quant_weight import check


@triton.jit
def block_kernel(
    w,
    codes,
    scales,
    n,
    k,
    amax_floor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UE8M0: tl.constexpr,
    RECIPROCAL: tl.constexpr,
):
    """One program per block, in the order of their scales."""
    # `blocked(w, block_n, block_k)`
    columns = tl.cdiv(k, BLOCK_K)
    rows = tl.cdiv(n, BLOCK_N)
    block = tl.program_id(0)
    row = (block // columns % rows * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    column = (block % columns * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
    live = (row < n) & (column < k)
    place = ((block // (columns * rows)).to(tl.int64) * n + row) * k + column
    values = widen(tl.load(w + place, mask=live, other=0))

    # `scale_of(amax_of(blocks.flatten(-2)), WEIGHT_FLOORS, scale_rule)`
    largest = tl.max(tl.max(magnitude(values), 1), 0) + tl.zeros((1,), tl.int32)
    scale = scale_of(largest, amax_floor, 0.0, UE8M0)
    tl.store(scales + block + tl.arange(0, 1), scale)

    # `codes_of(blocks, scales[..., None, None], rounding)`
    tl.store(codes + place, codes_of(values, scale, RECIPROCAL), mask=live)


def moe_quant_weight(
    *,
    w: Tensor,
    block_n: int = 128,
    block_k: int = 128,
    scale_rule: str = "amax",
    rounding: str = "reciprocal",
    codes: Tensor | None = None,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`moe_quant_weight` as MOE_QUANT_WEIGHT defines it, into the given tensors or new ones.

    w need not be contiguous (it is copied), the outputs must be, and may not overlap it.

    Raises:
        UsageError: an argument is not what MOE_QUANT_WEIGHT says, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    given = {name: one for name, one in (("codes", codes), ("scales", scales)) if one is not None}
    shape = check({"w": w} | given, block_n, block_k, scale_rule, rounding)
    alias.check("moe_quant_weight", {"w": w}, {"codes": codes, "scales": scales})
    codes = output("moe_quant_weight", "codes", codes, tuple(w.shape), w, float8_e4m3fn)
    scales = output("moe_quant_weight", "scales", scales, shape, w, float32)
    launch(
        block_kernel,
        (scales.numel(),),
        bits16(w),
        codes.view(int8),
        scales,
        w.shape[1],
        w.shape[2],
        WEIGHT_FLOORS.amax,
        num_warps=8,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        UE8M0=scale_rule == "ue8m0",
        RECIPROCAL=rounding == "reciprocal",
    )
    return codes, scales
