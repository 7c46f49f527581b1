"""The truth of contract `mhc-c1`: every stage in plain torch operations, in the contract's order.

Every step is made of the pieces of `kernels.arithmetic`. The other implementations cite these
functions by name.
"""

from typing import Unpack

import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.mhc import contract
from bitgate.kernels.mhc.contract import LANES, MIXES, STREAMS, MixConstants, inner_eps
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.pre import MHC_PRE

Tensor = torch.Tensor


def sum_of_four(a: Tensor, dim: int) -> Tensor:
    """((a0 + a1) + a2) + a3 over an axis of four, which is kept with extent one."""
    a0, a1, a2, a3 = a.unbind(dim)
    return (((a0 + a1) + a2) + a3).unsqueeze(dim)


def maximum_of_four(a: Tensor) -> Tensor:
    """The largest of the last axis of four, which is kept with extent one."""
    largest, *others = a.unbind(-1)
    for other in others:
        largest = torch.where(other > largest, other, largest)
    return largest.unsqueeze(-1)


def normalise(c: Tensor, dim: int, eps: float) -> Tensor:
    """C divided by its sum over `dim` plus eps."""
    return c / (sum_of_four(c, dim) + eps)


def affine(mixes: Tensor, scale: Tensor, base: Tensor) -> Tensor:
    """Mixes times the scale of their kind, rounded, plus base: [tokens, 24]."""
    counts = torch.tensor([4, 4, 16], device=scale.device)
    return mixes * scale.repeat_interleave(counts) + base


def dot_sq(residual: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """The projections of the flattened streams and their sum of squares.

    Args:
        residual: [tokens, 4, hidden] bfloat16.
        fn: [24, 4 * hidden] float32.

    Returns:
        dot [tokens, 24] and sq [tokens], float32.
    """
    tokens = residual.shape[0]
    x = residual.reshape(tokens, fn.shape[1]).float()
    hi, lo = arithmetic.split(fn)
    acc = x.new_zeros(tokens, MIXES, LANES)
    square = x.new_zeros(tokens, LANES)
    for k in range(0, fn.shape[1], LANES):
        lane = x[:, k : k + LANES]
        acc = acc + hi[:, k : k + LANES] * lane[:, None]
        acc = acc + lo[:, k : k + LANES] * lane[:, None]
        square = square + lane * lane
    return arithmetic.canonical(arithmetic.tree(acc)), arithmetic.canonical(arithmetic.tree(square))


def finish(
    dot: Tensor,
    sq: Tensor,
    scale: Tensor,
    base: Tensor,
    *,
    size: int,
    **constants: Unpack[MixConstants],
) -> tuple[Tensor, Tensor, Tensor]:
    """From the projections to the three mixes.

    Args:
        dot: [tokens, 24] float32.
        sq: [tokens] float32.
        scale: [3] float32, for pre, post and comb.
        base: [24] float32.
        size: 4 * hidden, what the mean of squares divides by.
        constants: as MixConstants says.

    Returns:
        pre [tokens, 4], post [tokens, 4], comb [tokens, 4, 4], float32.
    """
    sink_eps = inner_eps(**constants)
    inv = 1.0 / arithmetic.sqrt(sq / float(size) + constants["rms_eps"])
    logits = affine(dot * inv[:, None], scale, base)
    pre = arithmetic.sigmoid(logits[:, 0:4]) + constants["hc_eps"]
    post = arithmetic.sigmoid(logits[:, 4:8]) * constants["post_mult"]
    rows = logits[:, 8:24].reshape(-1, STREAMS, STREAMS)
    grown = arithmetic.exp(rows - maximum_of_four(rows))
    comb = grown / sum_of_four(grown, -1) + sink_eps
    comb = normalise(comb, -2, sink_eps)
    for _ in range(constants["sinkhorn_iters"] - 1):
        comb = normalise(comb, -1, sink_eps)
        comb = normalise(comb, -2, sink_eps)
    return arithmetic.canonical(pre), arithmetic.canonical(post), arithmetic.canonical(comb)


def apply_pre(residual: Tensor, pre: Tensor) -> Tensor:
    """The streams collapsed by their weights: [tokens, hidden] bfloat16."""
    hi, lo = arithmetic.split(pre)
    acc = torch.zeros_like(residual[:, 0], dtype=torch.float32)
    for i in range(STREAMS):
        stream = residual[:, i].float()
        acc = acc + hi[:, i, None] * stream
        acc = acc + lo[:, i, None] * stream
    return arithmetic.round_bf16(acc)


def post_sum(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """mhc_post before its rounding: [tokens, 4, hidden] float32. Sums over comb's first axis."""
    post_hi, post_lo = arithmetic.split(post)
    comb_hi, comb_lo = arithmetic.split(comb)
    block = x[:, None].float()
    acc = torch.zeros_like(residual, dtype=torch.float32)
    acc = acc + post_hi[:, :, None] * block
    acc = acc + post_lo[:, :, None] * block
    for i in range(STREAMS):
        stream = residual[:, i, None].float()
        acc = acc + comb_hi[:, i, :, None] * stream
        acc = acc + comb_lo[:, i, :, None] * stream
    return acc


def mhc_pre(
    *,
    residual: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    **constants: Unpack[MixConstants],
) -> tuple[Tensor, Tensor, Tensor]:
    """`mhc_pre` under mhc-c1, as MHC_PRE defines it: post, comb, layer_input.

    Raises:
        UsageError: an argument that the contract does not cover.
    """
    tensors = {"residual": residual, "fn": fn, "scale": scale, "base": base}
    hidden = contract.bind("mhc_pre", MHC_PRE.tensors, tensors)
    contract.check_constants("mhc_pre", **constants)
    dot, sq = dot_sq(residual, fn)
    pre, post, comb = finish(dot, sq, scale, base, size=STREAMS * hidden, **constants)
    return post, comb, apply_pre(residual, pre)


def mhc_post(*, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`mhc_post` under mhc-c1, as MHC_POST defines it: residual_out.

    Raises:
        UsageError: an argument that the contract does not cover.
    """
    tensors = {"x": x, "residual": residual, "post": post, "comb": comb}
    contract.bind("mhc_post", MHC_POST.tensors, tensors)
    return arithmetic.round_bf16(post_sum(x, residual, post, comb))


def mhc_post_pre(
    *,
    x: Tensor,
    residual: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    carry: str = "bf16",
    **constants: Unpack[MixConstants],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`mhc_post_pre` under mhc-c1: residual_out, post_out, comb_out, layer_input.

    Raises:
        UsageError: an argument that the contract does not cover.
    """
    contract.check_carry("mhc_post_pre", carry)
    residual_out = mhc_post(x=x, residual=residual, post=post, comb=comb)
    mixed = mhc_pre(residual=residual_out, fn=fn, scale=scale, base=base, **constants)
    return residual_out, *mixed
