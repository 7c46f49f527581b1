"""Triton kernels with the address faults that `watch` is there for."""

from bitgate.kernels.interpreter import tl, triton


@triton.jit
def narrow_rows(x, out, rows, width, block: tl.constexpr):
    """32-bit row offsets."""
    row = tl.program_id(0)
    at = row * width + tl.arange(0, block)
    live = tl.arange(0, block) < width
    tl.store(out + at, tl.load(x + at, mask=live), mask=live)


@triton.jit
def wide_rows(x, out, rows, width, block: tl.constexpr):
    """The same with 64-bit ones."""
    row = tl.program_id(0).to(tl.int64)
    at = row * width + tl.arange(0, block)
    live = tl.arange(0, block) < width
    tl.store(out + at, tl.load(x + at, mask=live), mask=live)


@triton.jit
def unmasked_tail(x, out, rows, width, block: tl.constexpr):
    """Reads a whole block where the row is shorter."""
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at), mask=tl.arange(0, block) < width)


@triton.jit
def before_the_start(x, out, rows, width, block: tl.constexpr):
    """Adds where no tensor is."""
    at = tl.arange(0, block)
    tl.atomic_add(out + at - 1, tl.load(x + at), mask=at < width)
