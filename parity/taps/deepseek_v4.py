"""DeepSeek-V4 in transformers (models/deepseek_v4): both hyper-connections, gate, experts, head."""

from typing import Any

from bitgate.parity.capture_plan import Declared
from bitgate.parity.taps.experts import attention, experts, gate
from bitgate.parity.taps.spec import ModelTaps, ModuleTap, rows


def _hyper_connection(prefix: str, name: str, layer: int, config: Any) -> ModuleTap:
    """A hyper-connection as the operator mhc_pre, in the order of contract mhc-torch/1."""
    path = f"{prefix}.{name}"
    return ModuleTap(
        path=path,
        declared=Declared(
            name=name,
            layer=layer,
            op="mhc_pre",
            contract="mhc-torch/1",
            constants={
                "rms_eps": float(config.rms_norm_eps),
                "hc_eps": float(config.hc_eps),
                "sinkhorn_iters": int(config.hc_sinkhorn_iters),
                "post_mult": 2.0,
            },
            closed=True,
            source=path,
        ),
        inputs=lambda call: {"residual": rows(call.argument(0, "hidden_streams"))},
        params=lambda module: {"fn": module.fn, "scale": module.scale, "base": module.base},
        outputs=lambda result: {
            "post": rows(result[0]),
            "comb": rows(result[1]),
            "layer_input": rows(result[2]),
        },
    )


def _head() -> ModuleTap:
    path = "model.hc_head"
    return ModuleTap(
        path=path,
        declared=Declared(name="hc_head", closed=True, source=path),
        inputs=lambda call: {"residual": rows(call.argument(0, "x"))},
        params=lambda module: {
            "fn": module.hc_fn,
            "scale": module.hc_scale,
            "base": module.hc_base,
        },
        outputs=lambda result: {"out": rows(result)},
    )


def _boundaries(config: Any) -> tuple[ModuleTap, ...]:
    taps = []
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        taps += [
            _hyper_connection(prefix, "attn_hc", layer, config),
            attention(prefix, layer),
            _hyper_connection(prefix, "ffn_hc", layer, config),
            gate(f"{prefix}.mlp", layer),
            experts(f"{prefix}.mlp", layer, float(config.swiglu_limit)),
        ]
    return (*taps, _head())


DEEPSEEK_V4 = ModelTaps(model_type="deepseek_v4", version=1, boundaries=_boundaries)
