"""`mhc_post` under `mhc-c1` in Triton, one launch. Each block is headed by its replay line."""

import torch

from bitgate.kernels import alias
from bitgate.kernels.arguments import output
from bitgate.kernels.arithmetic_triton import bits16, block_of, high, launch, round_bf16, widen
from bitgate.kernels.interpreter import interpreting, tl, triton
from bitgate.kernels.mhc import contract
from bitgate.kernels.mhc.post import MHC_POST


@triton.jit
def post_kernel(x, residual, post, comb, residual_out, hidden, BLOCK: tl.constexpr):
    """replay.post_sum and its rounding: one program per token and block of hidden numbers."""
    token = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = h < hidden
    streams = residual + token * 4 * hidden + h
    block = widen(tl.load(x + token * hidden + h, mask=live, other=0))
    for j in tl.static_range(4):
        # `acc = zeros; acc += post_hi * block; acc += post_lo * block`
        w = tl.load(post + token * 4 + j)
        hi = high(w)
        acc = tl.zeros((BLOCK,), tl.float32) + hi * block
        acc = acc + (w - hi) * block
        # `for i in range(4): acc += comb_hi[i, j] * stream; acc += comb_lo[i, j] * stream`
        for i in tl.static_range(4):
            stream = widen(tl.load(streams + i * hidden, mask=live, other=0))
            w = tl.load(comb + token * 16 + i * 4 + j)
            hi = high(w)
            acc = acc + hi * stream
            acc = acc + (w - hi) * stream
        # `round_bf16(post_sum)`
        out = residual_out + (token * 4 + j) * hidden + h
        tl.store(out, round_bf16(acc), mask=live)


def mhc_post(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    residual_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`mhc_post` as MHC_POST defines it, into the given residual_out or a new one.

    Inputs need not be contiguous (they are copied), the output must be, and it may overlap nothing.

    Raises:
        UsageError: an argument that the contract does not cover, or overlapping memory.
        EnvironmentUnfit: CPU tensors where Triton does not interpret.
    """
    inputs = {"x": x, "residual": residual, "post": post, "comb": comb}
    given = {} if residual_out is None else {"residual_out": residual_out}
    hidden = contract.bind("mhc_post", MHC_POST.tensors, inputs | given)
    alias.check("mhc_post", inputs, given)
    tokens = x.shape[0]
    residual_out = output("mhc_post", "residual_out", residual_out, (tokens, 4, hidden), residual)
    block = block_of(hidden, 4096 if interpreting() else 1024)
    launch(
        post_kernel,
        (tokens, triton.cdiv(hidden, block)),
        bits16(x),
        bits16(residual),
        post.contiguous(),
        comb.contiguous(),
        residual_out.view(torch.int16),
        hidden,
        BLOCK=block,
    )
    return residual_out
