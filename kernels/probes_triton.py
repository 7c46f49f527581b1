"""The questions of `probes`, asked of kernels that Triton builds or interprets.

Run as a module it prints the answers of the interpreter as JSON.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from triton.errors import TritonError

from bitgate.kernels.interpreter import repair, tl, triton
from bitgate.kernels.probes import ask
from bitgate.records.types import Pairs

_BLOCK = 1024


@triton.jit
def multiply_add(a, b, c, out, count, block: tl.constexpr):
    """Compute out = a * b + c."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    product = tl.load(a + i, mask=live) * tl.load(b + i, mask=live)
    tl.store(out + i, product + tl.load(c + i, mask=live), mask=live)


@triton.jit
def multiply(a, b, out, count, block: tl.constexpr):
    """Compute out = a * b."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    tl.store(out + i, tl.load(a + i, mask=live) * tl.load(b + i, mask=live), mask=live)


@triton.jit
def divide(a, b, out, count, block: tl.constexpr, rounded: tl.constexpr):
    """Compute out = a / b, as written or by the rounded division."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    top = tl.load(a + i, mask=live, other=1.0)
    bottom = tl.load(b + i, mask=live, other=1.0)
    if rounded:
        tl.store(out + i, tl.div_rn(top, bottom), mask=live)
    else:
        tl.store(out + i, top / bottom, mask=live)


@triton.jit
def root(a, out, count, block: tl.constexpr, rounded: tl.constexpr):
    """Compute out = sqrt(a), as written or by the rounded root."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    radicand = tl.load(a + i, mask=live, other=1.0)
    if rounded:
        tl.store(out + i, tl.sqrt_rn(radicand), mask=live)
    else:
        tl.store(out + i, tl.sqrt(radicand), mask=live)


@triton.jit
def exponential(a, out, count, block: tl.constexpr):
    """Compute out = exp(a)."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    tl.store(out + i, tl.exp(tl.load(a + i, mask=live, other=0.0)), mask=live)


@triton.jit
def to_bfloat16(a, out, count, block: tl.constexpr):
    """Compute out = a, rounded to bfloat16."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    live = i < count
    tl.store(out + i, tl.load(a + i, mask=live).to(tl.bfloat16), mask=live)


def triton_answers(device: str) -> Pairs:
    """The answers of Triton's kernels on the device, or of its interpreter on a processor.

    Raises:
        EnvironmentUnfit: the interpreter's version was not tested with its repair.
    """
    repair()
    ways = {
        "contraction": ("contraction", _launcher(multiply_add)),
        "contraction-off": ("contraction", _launcher(multiply_add, enable_fp_fusion=False)),
        "subnormal": ("subnormal", _launcher(multiply)),
        "bf16-tie": ("bf16-tie", _launcher(to_bfloat16, torch.bfloat16)),
        "div": ("div", _launcher(divide, rounded=False)),
        "div_rn": ("div", _launcher(divide, rounded=True)),
        "sqrt": ("sqrt", _launcher(root, rounded=False)),
        "sqrt_rn": ("sqrt", _launcher(root, rounded=True)),
        "exp": ("exp", _launcher(exponential)),
    }
    return ask("triton", device, ways)


def _launcher(
    kernel: object, dtype: torch.dtype = torch.float32, **options: bool
) -> Callable[..., Tensor]:
    return partial(_launch, kernel, dtype, options)


def _launch(kernel, dtype, options, *tensors):
    out = torch.empty_like(tensors[0], dtype=dtype)
    count = out.numel()
    try:
        kernel[(triton.cdiv(count, _BLOCK),)](*tensors, out, count, block=_BLOCK, **options)
    except TritonError as error:
        raise RuntimeError(f"Triton: {error}") from error
    return out


if __name__ == "__main__":
    json.dump(triton_answers("cpu"), sys.stdout)
