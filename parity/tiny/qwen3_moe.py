"""A Qwen3-MoE of two layers with many small experts, as its large relatives have."""

from typing import Any

from bitgate.parity.tiny.build import TinyModel


def _config(vocab_size: int) -> Any:
    from transformers import Qwen3MoeConfig

    factory: Any = Qwen3MoeConfig  # its stub lacks head_dim
    return factory(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=64,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        eos_token_id=1,
        pad_token_id=0,
    )


TINY_QWEN3_MOE = TinyModel(name="qwen3-moe", config=_config, seed=20251230)
