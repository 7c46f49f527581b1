"""From config.json to calls: known models by hand, the rest by parameters, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from bitgate.records.errors import UsageError
from bitgate.records.ops import operator
from bitgate.sim.arch import calls, load_model, parameters, terms
from bitgate.sim.families import FAMILIES
from bitgate.sim.scenario import TINY_MODEL
from bitgate.sim.step import StepShape

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
NOT_HERE = "the model configurations are not beside this checkout"

SUPPORTED = {
    # Parameters as their publishers count them, in billions.
    "Qwen--Qwen3-235B-A22B": "235.1",
    "Qwen--Qwen3-30B-A3B": "30.5",
    "Qwen--Qwen3-32B": "32.8",
    "meta-llama--Meta-Llama-3.1-70B": "70.6",
    "meta-llama--Meta-Llama-3.1-8B": "8.03",
    "mistralai--Mixtral-8x7B-v0.1": "46.7",
}
REFUSED = {
    "MiniMaxAI--MiniMax-M2.5": "MiniMaxM2ForCausalLM cannot be priced: its norm",
    "Qwen--Qwen3-235B-A22B-FP8": "quantization_config: expected None",
    "deepseek-ai--DeepSeek-V3": "DeepseekV3ForCausalLM cannot be priced: multi-head latent",
    "deepseek-ai--DeepSeek-V4-Flash": "DeepseekV4ForCausalLM cannot be priced: attention to comp",
    "deepseek-ai--DeepSeek-V4-Pro": "DeepseekV4ForCausalLM cannot be priced: attention to comp",
    "moonshotai--Kimi-K2-Instruct": "DeepseekV3ForCausalLM cannot be priced: multi-head latent",
    "moonshotai--Kimi-K2.5": "KimiK25ForConditionalGeneration cannot be priced: multi-head latent",
    "openai--gpt-oss-120b": "GptOssForCausalLM cannot be priced: sliding windows",
    "openai--gpt-oss-20b": "GptOssForCausalLM cannot be priced: sliding windows",
}
# Two prompts, one of them resumed after 7 tokens; three decodes that attend to 60 tokens.
SHAPE = StepShape(((5, 0), (4, 7)), 3, 60, 5)


def made(path: Path, shape: StepShape = SHAPE) -> dict[str, int]:
    """The calls of a step as op[axes] without the kind of data, with their counts."""
    found = calls(load_model(path), shape)
    return {workload.key.rpartition("/")[0]: count for workload, count in found.items()}


@pytest.mark.needs_data
def test_every_known_configuration_is_supported_or_refused_by_name():
    if not CONFIGS.is_dir():
        pytest.skip(NOT_HERE)
    names = {path.stem for path in CONFIGS.glob("*.json")}
    assert SUPPORTED.keys() | REFUSED.keys() <= names
    for name in names:
        path = CONFIGS / f"{name}.json"
        if name in SUPPORTED:
            found = parameters(load_model(path)) / 10**9
            assert abs(found / float(SUPPORTED[name]) - 1) < 0.01, (name, found)
        else:
            with pytest.raises(UsageError) as refused:
                load_model(path)
            assert str(path) in str(refused.value)
            assert REFUSED.get(name, "cannot be priced") in str(refused.value)


@pytest.mark.needs_data
def test_the_calls_of_qwen3_30b_are_those_counted_by_hand():
    path = CONFIGS / "Qwen--Qwen3-30B-A3B.json"
    if not path.is_file():
        pytest.skip(NOT_HERE)
    heads = "head_dim=128,heads=32,kv_heads=4"
    assert made(path) == {
        "embedding[hidden=2048,tokens=12,vocabulary=151936]/bfloat16": 1,
        "rms_norm[hidden=2048,tokens=12]/bfloat16": 1,
        "add_rms_norm[hidden=2048,tokens=12]/bfloat16": 96,  # two a layer, less one, and the last
        "gemm[k=2048,m=12,n=5120]/bfloat16": 48,  # (32 + 2 * 4) * 128
        "rms_norm[hidden=128,tokens=384]/bfloat16": 48,  # 12 rows of 32 query heads
        "rms_norm[hidden=128,tokens=48]/bfloat16": 48,  # and of 4 key heads
        "rope[head_dim=128,heads=36,tokens=12]/bfloat16": 48,
        f"context_attention[context=0,{heads},tokens=5]/bfloat16": 48,
        f"context_attention[context=7,{heads},tokens=4]/bfloat16": 48,
        f"generation_attention[{heads},kv_tokens=60,sequences=3]/bfloat16": 48,
        "gemm[k=4096,m=12,n=2048]/bfloat16": 48,
        "gemm[k=2048,m=12,n=128]/bfloat16": 48,  # the router
        "moe_route[experts=128,tokens=12,top_k=8]/bfloat16": 48,
        "moe_experts[experts=128,hidden=2048,intermediate=768,tokens=12,top_k=8]/bfloat16": 48,
        "gemm[k=2048,m=5,n=151936]/bfloat16": 1,
    }
    assert parameters(load_model(path)) == 30_532_122_624


@pytest.mark.needs_data
def test_the_calls_of_llama_8b_are_those_counted_by_hand():
    path = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"
    if not path.is_file():
        pytest.skip(NOT_HERE)
    heads = "head_dim=128,heads=32,kv_heads=8"
    assert made(path, StepShape((), 3, 60, 3)) == {
        "embedding[hidden=4096,tokens=3,vocabulary=128256]/bfloat16": 1,
        "rms_norm[hidden=4096,tokens=3]/bfloat16": 1,
        "add_rms_norm[hidden=4096,tokens=3]/bfloat16": 64,
        "gemm[k=4096,m=3,n=6144]/bfloat16": 32,
        "rope[head_dim=128,heads=40,tokens=3]/bfloat16": 32,
        f"generation_attention[{heads},kv_tokens=60,sequences=3]/bfloat16": 32,
        "gemm[k=4096,m=3,n=4096]/bfloat16": 32,
        "gemm[k=4096,m=3,n=28672]/bfloat16": 32,
        "silu_and_mul[intermediate=14336,tokens=3]/bfloat16": 32,
        "gemm[k=14336,m=3,n=4096]/bfloat16": 32,
        "gemm[k=4096,m=3,n=128256]/bfloat16": 1,
    }


MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize(
    ("changes", "moe_layers"),
    [
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, 4),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [1]}, 3),  # 0, 2, 3
        ({"decoder_sparse_step": 2, "mlp_only_layers": []}, 2),  # 1, 3
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, 1),  # 1
        ({"decoder_sparse_step": 5, "mlp_only_layers": []}, 0),
    ],
)
def test_layers_that_are_not_moe_are_dense(config, changes, moe_layers):
    found = made(config(**MOE, **changes))
    moe = "moe_experts[experts=8,hidden=64,intermediate=32,tokens=12,top_k=2]/bfloat16"
    assert found.get(moe, 0) == moe_layers
    assert found.get("silu_and_mul[intermediate=96,tokens=12]/bfloat16", 0) == 4 - moe_layers


def test_the_first_layers_of_dots_are_dense_and_the_others_have_shared_experts(config):
    path = config(
        architectures=["Dots1ForCausalLM"],
        num_hidden_layers=4,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    found = made(path)
    assert found["silu_and_mul[intermediate=96,tokens=12]/bfloat16"] == 1
    assert found["silu_and_mul[intermediate=64,tokens=12]/bfloat16"] == 3  # two of 32, as one
    assert found["add[hidden=64,tokens=12]/bfloat16"] == 3
    assert found["gemm[k=64,m=12,n=8]/bfloat16"] == 3
    assert found["moe_experts[experts=8,hidden=64,intermediate=32,tokens=12,top_k=2]/bfloat16"] == 3


def test_a_head_that_is_tied_to_the_embedding_has_no_weights_of_its_own(config):
    apart, tied = (
        parameters(load_model(config(tie_word_embeddings=tied))) for tied in (False, True)
    )
    assert apart - tied == 100 * 64


def test_calls_with_the_same_axes_are_one_with_a_count(config):
    found = made(config(vocab_size=64, num_hidden_layers=1), StepShape(((5, 0),), 0, 0, 5))
    # The head of as many columns as the projection back, for as many rows.
    assert found["gemm[k=64,m=5,n=64]/bfloat16"] == 2


def test_nothing_of_zero_size_is_called(config):
    found = made(config(), StepShape(((5, 0),), 0, 0, 1))
    assert not [key for key in found if key.startswith("generation")]
    assert made(config(), StepShape((), 0, 0, 0)) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "the field hidden_size is missing"),
        ({"torch_dtype": ...}, "the field torch_dtype or dtype is missing"),
        ({"dtype": "float16"}, "torch_dtype and dtype disagree"),
        ({"torch_dtype": "float8"}, "torch_dtype: expected one of bfloat16"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number from 1 to"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: .* got 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers: expected a whole number"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of silu, got 'gelu'"),
        ({"attention_bias": True}, "attention_bias: expected False or None, got True"),
        ({"sliding_window": 4096}, "sliding_window: expected None, got 4096: within a window"),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings: expected true or false, got 0"),
        ({"attention_sinks": True}, "unknown field\\(s\\) attention_sinks"),
        ({"architectures": ["BertModel"]}, "BertModel cannot be priced: nobody has said yet"),
        ({"architectures": []}, "architectures: expected 1 name"),
        ({"architectures": ...}, "the field architectures is missing"),
    ],
)
def test_what_might_change_the_work_is_refused_with_its_field_and_file(config, changes, message):
    path = config(**changes)
    with pytest.raises(UsageError, match=message) as refused:
        load_model(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads to divide .* got 3 and 4"),
        (
            MOE | {"num_experts_per_tok": 9, "decoder_sparse_step": 1, "mlp_only_layers": []},
            "num_experts_per_tok of at most .* got 9 of 8",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(config, changes, message):
    with pytest.raises(UsageError, match=message):
        load_model(config(**changes))


def test_a_window_that_is_switched_off_is_none(config):
    assert load_model(config(sliding_window=4096, use_sliding_window=False)).heads == 4


def test_a_refusal_lists_what_is_supported(config):
    with pytest.raises(UsageError) as refused:
        load_model(config(architectures=["DeepseekV4ForCausalLM"]))
    assert str(refused.value).endswith(", ".join(FAMILIES))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "expected a JSON object, got list"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="expected a Hugging Face config"):
        load_model(tmp_path / "elsewhere.json")


def test_the_stand_in_is_the_tiny_model_of_the_captures():
    """Every field that decides what is computed agrees with what captures are made from."""
    transformers = pytest.importorskip("transformers")
    from bitgate.parity.tiny import tiny
    from bitgate.parity.tiny.build import vocabulary

    ours = load_model(TINY_MODEL)
    config = tiny("qwen3-moe").config(-(-len(vocabulary()) // 64) * 64)
    assert isinstance(config, transformers.Qwen3MoeConfig)
    stored = transformers.Qwen3MoeConfig.from_pretrained(TINY_MODEL)
    ignored = {"architectures", "dtype", "transformers_version", "_name_or_path"}
    theirs, kept = (
        {k: v for k, v in one.to_dict().items() if k not in ignored} for one in (config, stored)
    )
    assert theirs == kept
    assert (ours.name, ours.moe.experts, ours.layers) == ("tiny-qwen3-moe", 64, 2)


def test_every_term_is_an_operator_with_all_its_axes():
    for term in terms(load_model(TINY_MODEL)):
        workload = term.at(*(3 for _ in operator(term.op).sizes))
        operator(term.op).check(workload)
