"""The boundaries that the model families share: routed experts, their gate, and attention."""

from typing import Any

import torch

from bitgate.parity.capture_plan import Declared
from bitgate.parity.taps.spec import Call, ModuleTap, Tensors, rows


def experts(prefix: str, layer: int, swiglu_limit: float) -> ModuleTap:
    """The routed experts as the operator moe_experts, in the order of contract moe-torch/1."""
    path = f"{prefix}.experts"
    return ModuleTap(
        path=path,
        declared=Declared(
            name="experts",
            layer=layer,
            op="moe_experts",
            contract="moe-torch/1",
            constants={"swiglu_limit": swiglu_limit},
            closed=True,
            source=path,
        ),
        inputs=_experts_inputs,
        params=lambda module: {"w_gate_up": module.gate_up_proj, "w_down": module.down_proj},
        outputs=lambda result: {"out": result},
    )


def _experts_inputs(call: Call) -> Tensors:
    return {
        "x": call.argument(0, "hidden_states"),
        "topk_ids": call.argument(1, "top_k_index"),
        "topk_weights": call.argument(2, "top_k_weights"),
    }


def gate(prefix: str, layer: int) -> ModuleTap:
    """The router in front of the experts, with every table that it reads."""
    path = f"{prefix}.gate"
    return ModuleTap(
        path=path,
        declared=Declared(name="gate", layer=layer, closed=True, source=path),
        inputs=_gate_inputs,
        params=_gate_params,
        outputs=_gate_outputs,
    )


def _gate_inputs(call: Call) -> Tensors:
    hidden: torch.Tensor = call.argument(0, "hidden_states")
    named = {"x": hidden.reshape(-1, hidden.shape[-1])}
    # Routers that look experts up by token take the ids as their second argument.
    if len(call.args) > 1 or "input_ids" in call.kwargs:
        named["input_ids"] = call.argument(1, "input_ids").reshape(-1)
    return named


def _gate_params(module: Any) -> Tensors:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _gate_outputs(result: Any) -> Tensors:
    logits, weights, ids = result
    return {"logits": logits, "topk_weights": weights, "topk_ids": ids}


def attention(prefix: str, layer: int) -> ModuleTap:
    """Attention; not closed, for its cache, masks and positions are not captured."""
    path = f"{prefix}.self_attn"
    return ModuleTap(
        path=path,
        declared=Declared(name="self_attn", layer=layer, source=path),
        inputs=lambda call: {"x": rows(call.argument(0, "hidden_states"))},
        outputs=lambda result: {"out": rows(result[0])},
    )
