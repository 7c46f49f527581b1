"""`mhc_pre` under `mhc-c1` in Triton: project, finish, collapse.

Each block is headed by the line of the replay that it implements. There are three launches: the
projection walks a token's flattened streams, the finish stage works on blocks of tokens, the
collapse on blocks of a token's hidden numbers. No result depends on a block size.
"""

from typing import Unpack

import torch

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import (
    bits16,
    block_of,
    canonical,
    exp,
    fence,
    high,
    launch,
    round_bf16,
    sigmoid,
    tree,
    widen,
)
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.mhc import contract
from bitgate.kernels.mhc.contract import MixConstants
from bitgate.kernels.mhc.pre import MHC_PRE

LANES = tl.constexpr(contract.LANES)
MIXES = tl.constexpr(contract.MIXES)
PADDED_MIXES = tl.constexpr(32)  # MIXES in a power of two


@triton.jit
def dot_sq_kernel(residual, fn, dot, sq, size):
    """replay.dot_sq: one program per token; residual [tokens, size], fn [24, size]."""
    token = tl.program_id(0)
    lane = tl.arange(0, LANES)
    mix = tl.arange(0, PADDED_MIXES)
    real = (mix < MIXES)[:, None]

    # `acc = zeros(24, 256); square = zeros(256)`
    acc = tl.zeros((PADDED_MIXES, LANES), tl.float32)
    square = tl.zeros((LANES,), tl.float32)

    # `for k in range(0, size, 256): acc += hi * x; acc += lo * x; square += x * x`
    for k in range(0, size, LANES):
        x = widen(tl.load(residual + token.to(tl.int64) * size + k + lane))
        w = tl.load(fn + mix[:, None] * size + k + lane[None, :], mask=real, other=0.0)
        hi = high(w)
        acc = acc + hi * x[None, :]
        acc = acc + (w - hi) * x[None, :]
        square = square + x * x

    # `canonical(tree(acc)), canonical(tree(square))`
    total = canonical(tree(acc, PADDED_MIXES, LANES, 8))
    tl.store(dot + token * MIXES + mix, total, mask=mix < MIXES)
    norm = canonical(tree(tl.reshape(square, (1, LANES)), 1, LANES, 8))
    tl.store(sq + token + tl.arange(0, 1), norm)


@triton.jit
def comb_logit(dot, base, scale, token, live, inv, entry: tl.constexpr, zero):
    """replay.affine for one entry of comb."""
    m: tl.constexpr = 8 + entry
    mix = tl.load(dot + token * MIXES + m, mask=live, other=0.0) * inv
    return fence(mix * tl.load(scale + 2), zero) + tl.load(base + m)


@triton.jit
def softmax(a, b, c, d, eps, zero):
    """exp(row - maximum_of_four(row)), divided by sum_of_four of itself, plus eps."""
    largest = tl.where(b > a, b, a)
    largest = tl.where(c > largest, c, largest)
    largest = tl.where(d > largest, d, largest)
    a = exp(a - largest, zero)
    b = exp(b - largest, zero)
    c = exp(c - largest, zero)
    d = exp(d - largest, zero)
    total = ((a + b) + c) + d
    return (
        tl.div_rn(a, total) + eps,
        tl.div_rn(b, total) + eps,
        tl.div_rn(c, total) + eps,
        tl.div_rn(d, total) + eps,
    )


@triton.jit
def normalise(a, b, c, d, eps):
    """replay.normalise for four blocks that are divided by their sum."""
    total = (((a + b) + c) + d) + eps
    return tl.div_rn(a, total), tl.div_rn(b, total), tl.div_rn(c, total), tl.div_rn(d, total)


@triton.jit(do_not_specialize=["sinkhorn_iters", "zero"])
def finish_kernel(
    dot,
    sq,
    scale,
    base,
    pre,
    post,
    comb,
    tokens,
    size,
    rms_eps,
    pre_eps,
    sink_eps,
    post_mult,
    sinkhorn_iters,
    zero,
    BLOCK: tl.constexpr,
):
    """replay.finish: one program per block of tokens; `size` is a float."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens

    # `inv = 1.0 / sqrt(sq / float(size) + rms_eps)`
    square = tl.load(sq + token, mask=live, other=1.0)
    mean = tl.div_rn(square, tl.full((BLOCK,), size, tl.float32))
    inv = tl.div_rn(tl.full((BLOCK,), 1.0, tl.float32), tl.sqrt_rn(mean + rms_eps))

    # `logits = affine(dot * inv, scale, base)`, the first eight
    m = tl.arange(0, 8)
    mix = tl.load(dot + token[:, None] * MIXES + m[None, :], mask=live[:, None], other=0.0)
    mix = mix * inv[:, None]
    factor = tl.where(m < 4, tl.load(scale), tl.load(scale + 1))
    logit = fence(mix * factor[None, :], zero) + tl.load(base + m)[None, :]

    # `pre = sigmoid(logits[:, 0:4]) + hc_eps; post = sigmoid(logits[:, 4:8]) * post_mult`
    gates = sigmoid(logit, zero)
    out = token[:, None] * 4 + m[None, :]
    tl.store(pre + out, canonical(gates + pre_eps), mask=live[:, None] & (m < 4)[None, :])
    tl.store(post + out - 4, canonical(gates * post_mult), mask=live[:, None] & (m >= 4)[None, :])

    # `rows = logits[:, 8:24]`
    c00 = comb_logit(dot, base, scale, token, live, inv, 0, zero)
    c01 = comb_logit(dot, base, scale, token, live, inv, 1, zero)
    c02 = comb_logit(dot, base, scale, token, live, inv, 2, zero)
    c03 = comb_logit(dot, base, scale, token, live, inv, 3, zero)
    c10 = comb_logit(dot, base, scale, token, live, inv, 4, zero)
    c11 = comb_logit(dot, base, scale, token, live, inv, 5, zero)
    c12 = comb_logit(dot, base, scale, token, live, inv, 6, zero)
    c13 = comb_logit(dot, base, scale, token, live, inv, 7, zero)
    c20 = comb_logit(dot, base, scale, token, live, inv, 8, zero)
    c21 = comb_logit(dot, base, scale, token, live, inv, 9, zero)
    c22 = comb_logit(dot, base, scale, token, live, inv, 10, zero)
    c23 = comb_logit(dot, base, scale, token, live, inv, 11, zero)
    c30 = comb_logit(dot, base, scale, token, live, inv, 12, zero)
    c31 = comb_logit(dot, base, scale, token, live, inv, 13, zero)
    c32 = comb_logit(dot, base, scale, token, live, inv, 14, zero)
    c33 = comb_logit(dot, base, scale, token, live, inv, 15, zero)

    # `grown = exp(rows - maximum_of_four(rows)); comb = grown / sum_of_four(grown, -1) + inner_eps`
    c00, c01, c02, c03 = softmax(c00, c01, c02, c03, sink_eps, zero)
    c10, c11, c12, c13 = softmax(c10, c11, c12, c13, sink_eps, zero)
    c20, c21, c22, c23 = softmax(c20, c21, c22, c23, sink_eps, zero)
    c30, c31, c32, c33 = softmax(c30, c31, c32, c33, sink_eps, zero)

    # `comb = normalise(comb, -2, inner_eps)`
    c00, c10, c20, c30 = normalise(c00, c10, c20, c30, sink_eps)
    c01, c11, c21, c31 = normalise(c01, c11, c21, c31, sink_eps)
    c02, c12, c22, c32 = normalise(c02, c12, c22, c32, sink_eps)
    c03, c13, c23, c33 = normalise(c03, c13, c23, c33, sink_eps)

    for _ in range(1, sinkhorn_iters):
        # `comb = normalise(comb, -1, inner_eps)`
        c00, c01, c02, c03 = normalise(c00, c01, c02, c03, sink_eps)
        c10, c11, c12, c13 = normalise(c10, c11, c12, c13, sink_eps)
        c20, c21, c22, c23 = normalise(c20, c21, c22, c23, sink_eps)
        c30, c31, c32, c33 = normalise(c30, c31, c32, c33, sink_eps)
        # `comb = normalise(comb, -2, inner_eps)`
        c00, c10, c20, c30 = normalise(c00, c10, c20, c30, sink_eps)
        c01, c11, c21, c31 = normalise(c01, c11, c21, c31, sink_eps)
        c02, c12, c22, c32 = normalise(c02, c12, c22, c32, sink_eps)
        c03, c13, c23, c33 = normalise(c03, c13, c23, c33, sink_eps)

    # `canonical(comb)`
    out = comb + token * 16
    tl.store(out + 0, canonical(c00), mask=live)
    tl.store(out + 1, canonical(c01), mask=live)
    tl.store(out + 2, canonical(c02), mask=live)
    tl.store(out + 3, canonical(c03), mask=live)
    tl.store(out + 4, canonical(c10), mask=live)
    tl.store(out + 5, canonical(c11), mask=live)
    tl.store(out + 6, canonical(c12), mask=live)
    tl.store(out + 7, canonical(c13), mask=live)
    tl.store(out + 8, canonical(c20), mask=live)
    tl.store(out + 9, canonical(c21), mask=live)
    tl.store(out + 10, canonical(c22), mask=live)
    tl.store(out + 11, canonical(c23), mask=live)
    tl.store(out + 12, canonical(c30), mask=live)
    tl.store(out + 13, canonical(c31), mask=live)
    tl.store(out + 14, canonical(c32), mask=live)
    tl.store(out + 15, canonical(c33), mask=live)


@triton.jit
def apply_pre_kernel(residual, pre, layer_input, hidden, BLOCK: tl.constexpr):
    """replay.apply_pre: one program per token and block of hidden numbers."""
    token = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = h < hidden

    # acc = zeros; for i in range(4): acc += hi[i] * stream; acc += lo[i] * stream
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(4):
        stream = widen(tl.load(residual + (token * 4 + i) * hidden + h, mask=live, other=0))
        w = tl.load(pre + token * 4 + i)
        hi = high(w)
        acc = acc + hi * stream
        acc = acc + (w - hi) * stream

    # `round_bf16(acc)`
    tl.store(layer_input + token * hidden + h, round_bf16(acc), mask=live)


def dot_sq(residual: torch.Tensor, fn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """replay.dot_sq on the tensors' device; both must be contiguous."""
    tokens = residual.shape[0]
    dot = torch.empty(tokens, contract.MIXES, dtype=torch.float32, device=residual.device)
    sq = torch.empty(tokens, dtype=torch.float32, device=residual.device)
    launch(dot_sq_kernel, (tokens,), bits16(residual), fn.contiguous(), dot, sq, fn.shape[1])
    return dot, sq


def finish(
    dot: torch.Tensor,
    sq: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    size: int,
    **constants: Unpack[MixConstants],
) -> torch.Tensor:
    """replay.finish on the tensors' device: fills post and comb, returns pre [tokens, 4]."""
    tokens = dot.shape[0]
    pre = torch.empty(tokens, contract.STREAMS, dtype=torch.float32, device=dot.device)
    # The interpreter pays per program, a device per idle lane.
    block = block_of(tokens, 4096 if interpreting() else 128)
    launch(
        finish_kernel,
        (triton.cdiv(tokens, block),),
        dot,
        sq,
        scale.contiguous(),
        base.contiguous(),
        pre,
        post,
        comb,
        tokens,
        float(size),
        float(constants["rms_eps"]),
        float(constants["hc_eps"]),
        float(contract.inner_eps(**constants)),
        float(constants["post_mult"]),
        int(constants["sinkhorn_iters"]),
        0,
        BLOCK=block,
    )
    return pre


def apply_pre(residual: torch.Tensor, pre: torch.Tensor, layer_input: torch.Tensor) -> None:
    """replay.apply_pre on the tensors' device: fills layer_input [tokens, hidden]."""
    tokens, _, hidden = residual.shape
    block = block_of(hidden, 4096 if interpreting() else 1024)
    launch(
        apply_pre_kernel,
        (tokens, triton.cdiv(hidden, block)),
        bits16(residual),
        pre,
        layer_input.view(torch.int16),
        hidden,
        BLOCK=block,
    )


def mhc_pre(
    *,
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    post: torch.Tensor | None = None,
    comb: torch.Tensor | None = None,
    layer_input: torch.Tensor | None = None,
    **constants: Unpack[MixConstants],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`mhc_pre` as MHC_PRE defines it, into the given outputs or new ones.

    Inputs need not be contiguous (they are copied), outputs must be, and no output may overlap
    anything. MixConstants lists the constants.

    Raises:
        UsageError: an argument that the contract does not cover, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    inputs = {"residual": residual, "fn": fn, "scale": scale, "base": base}
    outputs = {"post": post, "comb": comb, "layer_input": layer_input}
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    hidden = contract.bind("mhc_pre", MHC_PRE.tensors, inputs | given)
    contract.check_constants("mhc_pre", **constants)
    alias.check("mhc_pre", inputs, outputs)
    tokens = residual.shape[0]
    post = output("mhc_pre", "post", post, (tokens, 4), scale)
    comb = output("mhc_pre", "comb", comb, (tokens, 4, 4), scale)
    layer_input = output("mhc_pre", "layer_input", layer_input, (tokens, hidden), residual)
    residual = residual.contiguous()
    dot, sq = dot_sq(residual, fn)
    pre = finish(dot, sq, scale, base, post, comb, size=4 * hidden, **constants)
    apply_pre(residual, pre, layer_input)
    return post, comb, layer_input
