"""`moe_quant` of a whole tensor in Triton: its largest magnitude, then its codes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bitgate.kernels.arithmetic_triton import bits16, launch, widen
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.moe.quant_steps_triton import codes_of, magnitude, scale_of


@triton.jit
def amax_kernel(x, largest, count, BLOCK: tl.constexpr):
    """One program per BLOCK elements. A maximum of integers is the same in any order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = widen(tl.load(x + at, mask=at < count, other=0))
    tl.atomic_max(largest, tl.max(magnitude(values), 0))


@triton.jit
def whole_kernel(
    x,
    largest,
    codes,
    scales,
    count,
    given,
    BLOCK: tl.constexpr,
    STATIC: tl.constexpr,
    UE8M0: tl.constexpr,
    RECIPROCAL: tl.constexpr,
):
    """One program per BLOCK elements; every one makes the scale, and the first stores it."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = widen(tl.load(x + at, mask=at < count, other=0))
    one = tl.arange(0, 1)
    if STATIC:
        scale = tl.full((1,), given, tl.float32)
    else:
        scale = scale_of(tl.load(largest + one), 0.0, 0.0, UE8M0)
    tl.store(scales + one, scale, mask=tl.program_id(0) == 0)
    code = codes_of(values[None, :], scale, RECIPROCAL)
    tl.store(codes + at[None, :], code, mask=(at < count)[None, :])


def quantise(
    x: Tensor,
    given: float | None,
    codes: Tensor,
    scales: Tensor,
    rules: Mapping[str, bool],
) -> None:
    """Fill codes and scales for x, by the given scale or, where that is None, by its largest."""
    largest = torch.zeros(1, dtype=torch.int32, device=x.device)
    block = 1 << 16 if interpreting() else 4096
    programs = max(1, triton.cdiv(x.numel(), block))
    pattern = bits16(x)
    if given is None:
        launch(amax_kernel, (programs,), pattern, largest, x.numel(), BLOCK=block)
    launch(
        whole_kernel,
        (programs,),
        pattern,
        largest,
        codes.view(torch.int8),
        scales,
        x.numel(),
        given or 0.0,
        BLOCK=block,
        STATIC=given is not None,
        **rules,
    )
