"""Qwen3-MoE in transformers (models/qwen3_moe): attention, gate and experts."""

import math
from typing import Any

from bitgate.parity.taps.experts import attention, experts, gate
from bitgate.parity.taps.spec import ModelTaps, ModuleTap


def _boundaries(config: Any) -> tuple[ModuleTap, ...]:
    taps = []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        taps.append(attention(prefix, layer))
        sparse = (layer + 1) % config.decoder_sparse_step == 0
        if sparse and config.num_experts and layer not in config.mlp_only_layers:
            taps += [gate(f"{prefix}.mlp", layer), experts(f"{prefix}.mlp", layer, math.inf)]
    return tuple(taps)


QWEN3_MOE = ModelTaps(model_type="qwen3_moe", version=1, boundaries=_boundaries)
