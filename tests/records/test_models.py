"""The numbers of model shapes are those of the configurations; what follows from them is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from bitgate.records.codec import FormatError
from bitgate.records.errors import UsageError
from bitgate.records.models import first_overflow_tokens, names, shape, split_shape
from bitgate.records.models.load import parse
from bitgate.records.ops import operator
from bitgate.records.types import Workload

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
PACKAGED = {
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen--Qwen3-235B-A22B",
    "Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "DeepSeek-V3": "deepseek-ai--DeepSeek-V3",
    "DeepSeek-V4-Flash": "deepseek-ai--DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro": "deepseek-ai--DeepSeek-V4-Pro",
    "Kimi-K2": "moonshotai--Kimi-K2-Instruct",
    "Kimi-K2.5": "moonshotai--Kimi-K2.5",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "Mixtral-8x7B": "mistralai--Mixtral-8x7B-v0.1",
}
# The first key that a configuration has, for each number of ours.
KEYS = {
    "hidden": ("hidden_size",),
    "intermediate": ("moe_intermediate_size", "intermediate_size"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok",),
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "dense_first": ("first_k_dense_replace",),
    "shared_experts": ("n_shared_experts",),
    "swiglu_limit": ("swiglu_limit",),
}
ROUTING = {
    "groups": "n_group",
    "keep_groups": "topk_group",
    "scale": "routed_scaling_factor",
    "renormalise": "norm_topk_prob",
    "hash_layers": "num_hash_layers",
}
HYPER = {"streams": "hc_mult", "sinkhorn_iterations": "hc_sinkhorn_iters"}
LATENT = {
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
    "value": "v_head_dim",
    "kv_rank": "kv_lora_rank",
    "q_rank": "q_lora_rank",
}


@pytest.mark.needs_data
@pytest.mark.skipif(not CONFIGS.is_dir(), reason="needs the configurations beside the checkout")
@pytest.mark.parametrize("name", PACKAGED)
def test_the_numbers_are_those_of_the_configuration(name: str) -> None:
    config = json.loads((CONFIGS / f"{PACKAGED[name]}.json").read_bytes())
    config = config.get("text_config", config)
    model = shape(name)
    wanted: dict[str, Any] = {}
    for field, keys in KEYS.items():
        key = next((key for key in keys if key in config), None)
        # A latent attention's heads are not what the number of key and value heads says.
        if key is not None and not (field == "kv_heads" and model.latent):
            wanted[field] = config[key]
    parts = [(model.routing, ROUTING), (model.hyper_connections, HYPER), (model.latent, LATENT)]
    found: dict[str, Any] = {field: getattr(model, field) for field in wanted}
    for part, fields in parts:
        for field, key in fields.items():
            if key in config and part is not None:
                wanted[field], found[field] = config[key], getattr(part, field)
    assert len(wanted) >= 7
    assert {name: float(value) for name, value in found.items()} == wanted
    assert (model.latent is not None) == ("kv_lora_rank" in config)
    assert (model.hyper_connections is not None) == ("hc_mult" in config)


# The first failing number of tokens, as published in the reports of kernels that overflowed.
@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("Qwen3-30B-A3B", 131_072),
        ("Qwen3-235B-A22B", 65_536),
        ("DeepSeek-V3", 37_450),
        ("Kimi-K2", 37_450),
        ("DeepSeek-V4-Flash", 87_382),
        ("DeepSeek-V4-Pro", 49_933),
        ("GLM-5", 43_691),
        ("gpt-oss-120b", 93_207),
        ("Mixtral-8x7B", 37_450),
        ("Phi-tiny-MoE", 262_144),
    ],
)
def test_the_first_tokens_that_overflow(name: str, tokens: int) -> None:
    model = shape(name)
    assert model.first_overflow_tokens == tokens
    row = max(2 * model.intermediate, model.hidden)
    assert (tokens - 1) * model.top_k * row < 1 << 31 <= tokens * model.top_k * row


def test_a_rank_overflows_later_where_its_rows_are_shorter() -> None:
    # At eight parts the first matmul's rows hold 3584 elements, and those of the second, 4096.
    assert split_shape("Mixtral-8x7B@tp8").first_overflow_tokens == 1 << 18
    assert split_shape("Mixtral-8x7B@ep8").first_overflow_tokens == 37_450


def test_the_wider_of_the_two_rows_decides() -> None:
    assert first_overflow_tokens(1, 1 << 20, 1 << 18) == 1 << 11
    assert first_overflow_tokens(1, 1 << 20, 1 << 20) == 1 << 10


@pytest.mark.parametrize(
    ("name", "extent", "multiple", "rest"),
    [
        ("gpt-oss-120b", "hidden", 128, 64),
        ("gpt-oss-120b", "intermediate", 256, 64),
        ("Phi-tiny-MoE", "intermediate", 128, 64),
        ("Qwen3-30B-A3B", "intermediate", 256, 0),
        ("Qwen3-30B-A3B", "intermediate", 512, 256),
        ("GLM-4.5-Air", "intermediate", 128, 0),
        ("GLM-4.5-Air", "intermediate", 256, 128),
        ("DeepSeek-V3@tp8", "intermediate", 256, 0),
        ("Qwen3-235B-A22B@tp8", "intermediate", 128, 64),
    ],
)
def test_which_extents_are_multiples(name: str, extent: str, multiple: int, rest: int) -> None:
    split = split_shape(name)
    value = split.intermediate if extent == "intermediate" else split.model.hidden
    assert value % multiple == rest


@pytest.mark.parametrize(
    ("name", "experts", "intermediate"),
    [
        ("Qwen3-30B-A3B", 128, 768),
        ("Qwen3-30B-A3B@ep2", 64, 768),
        ("Qwen3-235B-A22B@tp8", 128, 192),
        ("DeepSeek-V3@tp8", 256, 256),
        ("DeepSeek-V3@ep8,tp2", 32, 1024),
    ],
)
def test_a_split_gives_the_axes_of_a_workload(name: str, experts: int, intermediate: int) -> None:
    axes = split_shape(name).experts_axes(tokens=7)
    workload = Workload(op="moe_experts", axes=axes, dtype="bfloat16")
    operator("moe_experts").check(workload)
    assert (workload.axis("experts"), workload.axis("intermediate")) == (experts, intermediate)
    assert workload.axis("tokens") == 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3-30B", "unknown model 'Qwen3-30B'; known: .*; did you mean Qwen3-30B-A3B"),
        ("Qwen3-30B-A3B@", "expected a split such as @ep2"),
        ("Qwen3-30B-A3B@dp2", "got @dp2"),
        ("Qwen3-30B-A3B@ep2,", "expected a split"),
        ("Qwen3-30B-A3B@,tp2", "expected a split"),
        ("Qwen3-30B-A3B@ep2tp2", "expected a split"),
        ("Qwen3-30B-A3B@ep\u0662", "expected a split"),
        ("Qwen3-30B-A3B@ep0", "experts 128 cannot be divided into 0"),
        ("Qwen3-30B-A3B@ep3", "experts 128 cannot be divided into 3"),
        ("gpt-oss-120b@tp7", r"intermediate 2880 .* divides it, such as 1, 2, 4, 8, 16, 32, 64"),
    ],
)
def test_what_is_no_model_or_no_split_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_shape(name)


def test_a_rank_with_fewer_experts_than_a_token_chooses_is_refused() -> None:
    with pytest.raises(UsageError, match="4 local experts, expected at least the 8"):
        split_shape("Qwen3-30B-A3B@ep32").experts_axes(tokens=1)


def test_every_model_names_its_source_and_doubt_is_kept() -> None:
    assert len(names()) > 15
    assert all(shape(name).source.strip() for name in names())
    doubtful = {name: shape(name).unverified for name in names() if shape(name).unverified}
    assert doubtful == {"GLM-4.5-Air": ("experts",)}
    assert "nobody" in shape("GLM-4.5-Air").other_sources["experts"]


def test_layers_with_experts() -> None:
    assert shape("DeepSeek-V3").moe_layers == 58
    assert shape("Llama-4-Maverick").moe_layers == 24
    assert shape("Llama-4-Scout").moe_layers == 48


FILE = """
[sources]
book = "a book"
[[models]]
name = "one"
source = "book"
hidden = 4
intermediate = 4
experts = 2
top_k = 1
layers = 1
heads = 1
"""


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ('\n[[models]]\nname = "two"\nlike = "three"', UsageError, "does not stand before it"),
        ('other_sources = { heads = "talk" }', UsageError, "'talk', which is no source"),
        ('other_sources = { kv_heads = "book" }', UsageError, "and no value"),
        ("hiden = 4", FormatError, "hiden"),
        ('kv_heads = "4"', FormatError, "kv_heads"),
        ("dense_first = 2", FormatError, "dense_first"),
        ('routing = { score = "softmax", keep_groups = 2 }', FormatError, "keep_groups"),
        ('[[models]]\nname = "two"\nlike = "one"\ntop_k = 3', FormatError, "at most experts"),
    ],
)
def test_a_file_with_a_fault_is_refused(more: str, error: type[Exception], message: str) -> None:
    assert [model.name for model in parse(FILE)] == ["one"]
    with pytest.raises(error, match=message):
        parse(FILE + more)
