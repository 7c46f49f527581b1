"""`mhc_post_pre` under `mhc-c1` in Triton: the new residual feeds the projection as it is made.

The alias rule, `ALIASES`: post_out may be post, comb_out may be comb and layer_input may be x, each
at the same place, because those inputs are dead after the first launch. residual_out never lies
over residual: a token's later streams are made from all four old ones.
"""

from typing import Final, Unpack

import torch

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import (
    bits16,
    canonical,
    high,
    launch,
    round_bf16,
    tree,
    widen,
)
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.mhc import contract, pre_triton
from bitgate.kernels.mhc.contract import MixConstants
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre_triton import LANES, MIXES, PADDED_MIXES

ALIASES: Final = frozenset({("post_out", "post"), ("comb_out", "comb"), ("layer_input", "x")})


@triton.jit
def post_dot_kernel(x, residual, post, comb, fn, residual_out, dot, sq, hidden):
    """replay.post_sum, its rounding, and replay.dot_sq of the result: one program per token."""
    token = tl.program_id(0).to(tl.int64)
    size = hidden * 4
    lane = tl.arange(0, LANES)
    mix = tl.arange(0, PADDED_MIXES)
    real = (mix < MIXES)[:, None]

    # `acc = zeros(24, 256); square = zeros(256)`
    acc = tl.zeros((PADDED_MIXES, LANES), tl.float32)
    square = tl.zeros((LANES,), tl.float32)
    for start in range(0, size, LANES):
        # 256 places k = j * hidden + h of the new residual; they may reach over two streams j.
        k = start + lane
        j = k // hidden
        h = k - j * hidden

        # `acc = zeros; acc += post_hi * block; acc += post_lo * block`
        block = widen(tl.load(x + token * hidden + h))
        w = tl.load(post + token * 4 + j)
        hi = high(w)
        mixed = tl.zeros((LANES,), tl.float32) + hi * block
        mixed = mixed + (w - hi) * block
        # `for i in range(4): acc += comb_hi[i, j] * stream; acc += comb_lo[i, j] * stream`
        for i in tl.static_range(4):
            stream = widen(tl.load(residual + (token * 4 + i) * hidden + h))
            w = tl.load(comb + token * 16 + i * 4 + j)
            hi = high(w)
            mixed = mixed + hi * stream
            mixed = mixed + (w - hi) * stream
        # round_bf16(post_sum): what is stored is also what is projected
        bits = round_bf16(mixed)
        tl.store(residual_out + token * size + k, bits)
        new = widen(bits)

        # `for k in range(0, size, 256): acc += hi * x; acc += lo * x; square += x * x`
        w = tl.load(fn + mix[:, None] * size + k[None, :], mask=real, other=0.0)
        hi = high(w)
        acc = acc + hi * new[None, :]
        acc = acc + (w - hi) * new[None, :]
        square = square + new * new

    # `canonical(tree(acc)), canonical(tree(square))`
    total = canonical(tree(acc, PADDED_MIXES, LANES, 8))
    tl.store(dot + token * MIXES + mix, total, mask=mix < MIXES)
    norm = canonical(tree(tl.reshape(square, (1, LANES)), 1, LANES, 8))
    tl.store(sq + token + tl.arange(0, 1), norm)


def post_dot(
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    fn: torch.Tensor,
    residual_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill residual_out and return its projections: dot [tokens, 24], sq [tokens]."""
    tokens, hidden = x.shape
    dot = torch.empty(tokens, contract.MIXES, dtype=torch.float32, device=x.device)
    sq = torch.empty(tokens, dtype=torch.float32, device=x.device)
    launch(
        post_dot_kernel,
        (tokens,),
        bits16(x),
        bits16(residual),
        post.contiguous(),
        comb.contiguous(),
        fn.contiguous(),
        residual_out.view(torch.int16),
        dot,
        sq,
        hidden,
    )
    return dot, sq


def mhc_post_pre(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    residual_out: torch.Tensor | None = None,
    post_out: torch.Tensor | None = None,
    comb_out: torch.Tensor | None = None,
    layer_input: torch.Tensor | None = None,
    carry: str = "bf16",
    **constants: Unpack[MixConstants],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`mhc_post_pre` as MHC_POST_PRE defines it, into the given outputs or new ones.

    Inputs need not be contiguous (they are copied), outputs must be; `ALIASES` lists which outputs
    may lie over which inputs. MixConstants lists the constants.

    Raises:
        UsageError: an argument that the contract does not cover, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    op = "mhc_post_pre"
    contract.check_carry(op, carry)
    inputs = {"x": x, "residual": residual, "post": post, "comb": comb}
    inputs |= {"fn": fn, "scale": scale, "base": base}
    outputs = {
        "residual_out": residual_out,
        "post_out": post_out,
        "comb_out": comb_out,
        "layer_input": layer_input,
    }
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    hidden = contract.bind(op, MHC_POST_PRE.tensors, inputs | given)
    contract.check_constants(op, **constants)
    alias.check(op, inputs, outputs, ALIASES)
    tokens = x.shape[0]
    residual_out = output(op, "residual_out", residual_out, (tokens, 4, hidden), residual)
    post_out = output(op, "post_out", post_out, (tokens, 4), post)
    comb_out = output(op, "comb_out", comb_out, (tokens, 4, 4), comb)
    layer_input = output(op, "layer_input", layer_input, (tokens, hidden), x)
    dot, sq = post_dot(x, residual, post, comb, fn, residual_out)
    pre = pre_triton.finish(dot, sq, scale, base, post_out, comb_out, size=4 * hidden, **constants)
    pre_triton.apply_pre(residual_out, pre, layer_input)
    return residual_out, post_out, comb_out, layer_input
