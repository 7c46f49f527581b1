"""Kernels that break the rules of a canonical contract, for the compile check to refuse."""

import triton
import triton.language as tl

from bitgate.kernels.arithmetic_triton import sigmoid


@triton.jit
def library_exp(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, tl.exp(tl.load(x + at)))


@triton.jit
def plain_division(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, 1.0 / tl.load(x + at))


@triton.jit
def library_sqrt(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, tl.sqrt(tl.load(x + at)))


@triton.jit
def written_fma(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    value = tl.load(x + at)
    tl.store(out + at, tl.fma(value, value, value))


@triton.jit
def no_such_name(x, out, block: tl.constexpr):
    tl.store(out + tl.arange(0, block), tl.no_such_function(x))


@triton.jit
def contract_sigmoid(x, out, zero, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, sigmoid(tl.load(x + at), zero))


@triton.jit
def folded_sigmoid(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, sigmoid(tl.load(x + at), 0))
