"""A DeepSeek-V4 of four layers: hyper-connections, hash and top-k routing, all attention kinds."""

from typing import Any

from bitgate.parity.tiny.build import TinyModel


def _config(vocab_size: int) -> Any:
    from transformers import DeepseekV4Config

    return DeepseekV4Config(
        vocab_size=vocab_size,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        head_dim=32,
        partial_rotary_factor=0.5,
        q_lora_rank=32,
        o_lora_rank=16,
        o_groups=2,
        n_routed_experts=8,
        num_experts_per_tok=2,
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        # Short texts must reach the compressors too.
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        sliding_window=8,
        index_topk=4,
        index_n_heads=2,
        index_head_dim=16,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


TINY_DEEPSEEK_V4 = TinyModel(name="deepseek-v4", config=_config, seed=20251231)
