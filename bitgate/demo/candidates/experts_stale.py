"""The third candidate: sorted experts that save the clearing of a workspace, and should not.

The workspace is kept between calls and cleared only when it is made. The first call of a shape is
right; the next one adds to what the first one left.
"""

import torch
from torch.nn import functional

_workspaces: dict[tuple[int, ...], torch.Tensor] = {}


def run(
    *,
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    swiglu_limit: float,
) -> torch.Tensor:
    """The expert computation of a MoE layer; arguments as in `moe_experts`."""
    out = _workspaces.get(tuple(x.shape))
    if out is None:
        out = _workspaces[tuple(x.shape)] = torch.zeros_like(x)
    for expert in range(w_gate_up.shape[0]):
        slots, tokens = torch.where(torch.eq(topk_ids.T, expert))
        if len(tokens) == 0:
            continue
        gate, up = functional.linear(x[tokens], w_gate_up[expert]).chunk(2, dim=-1)
        gate = gate.clamp(max=swiglu_limit)
        up = up.clamp(min=-swiglu_limit, max=swiglu_limit)
        rows = functional.linear(functional.silu(gate) * up, w_down[expert])
        out.index_add_(0, tokens, (rows * topk_weights[tokens, slots, None]).to(out.dtype))
    return out.clone()
