"""The second candidate: the plain mHC pre step, its mixes given to torch.compile as they are.

The compiler fuses operations and sums in another order. The result is as accurate and as
repeatable as before, and it is not the same bits.
"""

import torch
from torch.nn import functional


@torch.compile(fullgraph=True, dynamic=True)
def mixes(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise the streams, project them, and squash the 24 mixes of each token."""
    tokens, streams, hidden = residual.shape
    flat = residual.reshape(tokens, streams * hidden).float()
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    parts = [streams, streams, streams**2]
    pre, post, comb = torch.split(functional.linear(flat, fn), parts, dim=-1)
    pre_base, post_base, comb_base = torch.split(base, parts)
    pre = torch.sigmoid(pre * scale[0] + pre_base)
    post = torch.sigmoid(post * scale[1] + post_base)
    comb = (comb * scale[2] + comb_base).view(tokens, streams, streams)
    return pre, post, torch.softmax(comb, dim=-1)


def normalise(comb: torch.Tensor, eps: float) -> torch.Tensor:
    """One Sinkhorn step: the rows, then the columns."""
    comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
    return comb / (comb.sum(dim=-2, keepdim=True) + eps)


def run(
    *,
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    rms_eps: float,
    hc_eps: float,
    sinkhorn_iters: int,
    post_mult: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arguments and results as `bitgate kernels show mhc_pre` lists them."""
    # One token would be compiled once more, as a special case: two take the general code.
    tokens = residual.shape[0]
    rows = residual.repeat(2, 1, 1) if tokens == 1 else residual
    pre, post, comb = mixes(rows, fn, scale, base, rms_eps)
    comb = comb + hc_eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + hc_eps)
    for _ in range(sinkhorn_iters - 1):
        comb = normalise(comb, hc_eps)
    layer_input = ((pre + hc_eps).unsqueeze(-1) * rows).sum(dim=1).to(rows.dtype)
    return (post_mult * post)[:tokens], comb[:tokens], layer_input[:tokens]
