"""`mhc_pre` in plain torch: float32 as transformers runs it, and the float64 oracle of all three.

The float32 form is the truth of contract `mhc-torch/1`: the sequence of library operations of
DeepSeek-V4's hyper-connection in transformers 5.24, for [tokens, streams, hidden]. Its bits depend
on the library, the processor and the number of tokens. The oracle belongs to no contract: it says
how accurate an order is.
"""

from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom

from bitgate.kernels.mhc import contract
from bitgate.kernels.mhc.contract import STREAMS, MixConstants
from bitgate.kernels.mhc.pre import MHC_PRE

Tensor = torch.Tensor


def mhc_pre(
    *,
    residual: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    **constants: Unpack[MixConstants],
) -> tuple[Tensor, Tensor, Tensor]:
    """`mhc_pre` under mhc-torch/1, as MHC_PRE defines it: post, comb, layer_input.

    Raises:
        UsageError: an argument that the definition does not cover.
    """
    tensors = {"residual": residual, "fn": fn, "scale": scale, "base": base}
    contract.bind("mhc_pre", MHC_PRE.tensors, tensors)
    contract.check_constants("mhc_pre", **constants)
    flat = residual.flatten(1).float()
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + constants["rms_eps"])
    # With gaps in fn the library would take another path, and give other bits.
    pre, post, comb = _mix(F.linear(flat, fn.contiguous()), scale, base, **constants)
    layer_input = (pre.unsqueeze(-1) * residual).sum(dim=1).to(residual.dtype)
    return post, comb, layer_input


def _mix(
    mixes: Tensor, scale: Tensor, base: Tensor, **constants: Unpack[MixConstants]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pre, post and comb from the normalised projections, in the dtype that they have."""
    split = 2 * STREAMS
    sink_eps = contract.inner_eps(**constants)
    pre = torch.sigmoid(mixes[:, :STREAMS] * scale[0] + base[:STREAMS]) + constants["hc_eps"]
    post = torch.sigmoid(mixes[:, STREAMS:split] * scale[1] + base[STREAMS:split])
    post = constants["post_mult"] * post
    rows = mixes[:, split:].reshape(-1, STREAMS, STREAMS) * scale[2]
    comb = torch.softmax(rows + base[split:].reshape(STREAMS, STREAMS), dim=-1) + sink_eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + sink_eps)
    for _ in range(constants["sinkhorn_iters"] - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + sink_eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + sink_eps)
    return pre, post, comb


class PreOracle(NamedTuple):
    """`mhc_pre` in float64: every stage, and layer_input rounded once to bfloat16."""

    dot: Tensor
    sq: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    layer_input: Tensor


def mhc_pre_f64(
    *,
    residual: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    **constants: Unpack[MixConstants],
) -> PreOracle:
    """`mhc_pre` in float64 from the same inputs; shapes as MHC_PRE."""
    x = residual.double()
    flat = x.flatten(1)
    dot, sq = flat @ fn.double().T, flat.square().sum(-1)
    mixes = dot / torch.sqrt(sq / flat.shape[1] + constants["rms_eps"])[:, None]
    pre, post, comb = _mix(mixes, scale.double(), base.double(), **constants)
    collapsed = torch.einsum("ti,tih->th", pre, x)
    return PreOracle(dot, sq, pre, post, comb, round_bf16_once(collapsed))


def mhc_post_f64(*, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`mhc_post` in float64 from the same inputs, rounded once to bfloat16."""
    mixed = torch.einsum("tij,tih->tjh", comb.double(), residual.double())
    return round_bf16_once(post.double()[:, :, None] * x.double()[:, None] + mixed)


def round_bf16_once(value: Tensor) -> Tensor:
    """Finite float64 to bfloat16, nearest even, without the double rounding through float32.

    The step to float32 rounds to odd, which keeps what the second rounding needs to know.
    """
    near = value.float()
    bits = near.view(torch.int32)
    error = value - near.double()
    # Away from zero when the error has the sign of the value, towards zero otherwise.
    outward = torch.where((error > 0) == (value > 0), 1, -1).to(torch.int32)
    odd = torch.where((error != 0) & (bits & 1 == 0), bits + outward, bits)
    return odd.view(torch.float32).to(torch.bfloat16)
