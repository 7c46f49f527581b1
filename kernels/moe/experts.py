"""moe_experts in torch: the per-expert loop, and the same order with one sort (`moe-torch/1`).

out[t] = sum over experts e of t, ascending:
             bf16( weight[t, e] * down_e( silu(clamp(gate_e(x[t]))) * clamp(up_e(x[t])) ) )

The order is the one that transformers 5.24 runs for DeepSeek-V4 (models/deepseek_v4, class
DeepseekV4Experts) and, without a limit, for Qwen3-MoE: bf16 after each matmul, after the
activation, after the product with the up half and after each addition to the output.
The timing envelope of both functions holds routing bookkeeping, both matmuls, the gated
activation, the routing weights and the reduction over experts; the router is outside.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels.moe.arguments import check_experts, check_ids


def experts_loop(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
) -> Tensor:
    """Run the experts one after the other, each over the tokens that a mask finds for it.

    Args:
        x: [tokens, hidden] bfloat16.
        topk_ids: [tokens, top_k] int64, 0 to experts - 1; -1 and `experts` are padding, skipped.
        topk_weights: [tokens, top_k] float32 or bfloat16, multiplied into the expert's output.
        w_gate_up: [experts, 2 * intermediate, hidden] bfloat16, gate rows first.
        w_down: [experts, hidden, intermediate] bfloat16.
        swiglu_limit: gate is clamped above, up on both sides; inf clamps nothing.

    Returns:
        [tokens, hidden] bfloat16.

    Raises:
        UsageError: dtypes or shapes disagree, an id is out of range, or the limit is not positive.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    check_ids(topk_ids, w_gate_up.shape[0])
    experts = w_gate_up.shape[0]
    out = torch.zeros_like(x)
    by_slot = topk_ids.T
    with torch.no_grad():
        for expert in torch.unique(topk_ids).tolist():
            if not 0 <= expert < experts:
                continue
            slots, tokens = torch.where(by_slot == expert)
            gate, up = functional.linear(x[tokens], w_gate_up[expert]).chunk(2, dim=-1)
            gate = gate.clamp(max=swiglu_limit)
            up = up.clamp(min=-swiglu_limit, max=swiglu_limit)
            rows = functional.linear(functional.silu(gate) * up, w_down[expert])
            rows = rows * topk_weights[tokens, slots, None]
            out.index_add_(0, tokens, rows.to(out.dtype))
    return out


def experts_sorted(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
) -> Tensor:
    """Sort the (token, slot) pairs by expert once, then work on contiguous rows.

    Arguments, result and errors are those of `experts_loop`, and so are the bits: every matmul
    and every silu sees the same rows in the same shape, the remaining elementwise steps round each
    element by itself, and a token's terms are added in ascending expert order.
    """
    check_experts(x, topk_ids, topk_weights, w_gate_up, w_down, swiglu_limit)
    check_ids(topk_ids, w_gate_up.shape[0])
    tokens, top_k = topk_ids.shape
    experts, intermediate = w_gate_up.shape[0], w_down.shape[2]
    if tokens * top_k == 0:
        return torch.zeros_like(x)
    with torch.no_grad():
        # Slot-major pairs: within an expert the loop's mask yields slot by slot, then by token.
        pair_expert = topk_ids.T.reshape(-1)
        pair_expert = torch.where(pair_expert < 0, experts, pair_expert)
        order = torch.argsort(pair_expert, stable=True)
        pair_token = order % tokens
        counts = torch.bincount(pair_expert, minlength=experts + 1).tolist()
        hit = [expert for expert in range(experts) if counts[expert]]
        sizes = [counts[expert] for expert in hit]
        kept = sum(sizes)

        gate_up = x.new_empty(kept, 2 * intermediate)
        rows = x[pair_token[:kept]].split_with_sizes(sizes)
        for expert, inputs, out in zip(hit, rows, gate_up.split_with_sizes(sizes), strict=True):
            torch.mm(inputs, w_gate_up[expert].T, out=out)
        gate = gate_up[:, :intermediate].clamp(max=swiglu_limit)
        up = gate_up[:, intermediate:].clamp(min=-swiglu_limit, max=swiglu_limit)
        gates = gate.split_with_sizes(sizes)
        for inputs in gates:
            # Per expert: torch's silu has other bits in the tail of a vector than in its body.
            functional.silu(inputs, inplace=True)
        gate.mul_(up)
        # Rows of padded pairs stay +0, whatever their weights are (a router may leave NaN there):
        # adding them to a sum that began at +0 changes no bit.
        terms = x.new_zeros(tokens * top_k, x.shape[1])
        for expert, inputs, out in zip(
            hit, gates, terms[:kept].split_with_sizes(sizes), strict=True
        ):
            torch.mm(inputs, w_down[expert].T, out=out)
        weights = topk_weights.T.reshape(-1)[order[:kept]]
        terms[:kept] = terms[:kept] * weights[:, None]
        return _combine(x, terms, pair_expert[order], pair_token, experts)


def _combine(
    x: Tensor, terms: Tensor, term_expert: Tensor, term_token: Tensor, experts: int
) -> Tensor:
    """Add each token's terms in ascending expert order, bfloat16 after each expert."""
    tokens = x.shape[0]
    by_token = torch.argsort(term_token, stable=True).view(tokens, -1)
    out = torch.zeros_like(x)
    chosen = term_expert[by_token]
    twice = (chosen[:, 1:] == chosen[:, :-1]) & (chosen[:, 1:] < experts)
    if bool(twice.any()):
        # An expert that a token names twice is added in float32 and rounded once by index_add_;
        # only the same call repeats those bits.
        for expert in torch.unique(term_expert[term_expert < experts]).tolist():
            mine = term_expert == expert
            out.index_add_(0, term_token[mine], terms[mine])
        return out
    for place in by_token.T:
        out += terms[place]
    return out
