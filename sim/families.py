"""Model families: which fields of a config.json say what is computed. One function for each.

Their facts are those of the architectures as transformers defines them; where a serving engine
fuses operators, those of vLLM. To add a family: one function and its line in FAMILIES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bitgate.records.errors import UsageError
from bitgate.sim.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts layers; `shared_intermediate` is the shared expert's, 0 for none."""

    layers: int
    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What decides the operators of a forward pass, and their sizes; UsageError where they clash.

    intermediate: of the dense layers' MLP
    qk_norm: whether each query and key head is normalised
    max_model_len: the positions that the model was made for
    """

    name: str
    architecture: str
    dtype: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool
    max_model_len: int
    moe: Experts | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: expected num_key_value_heads to divide num_attention_heads, got "
                f"{self.kv_heads} and {self.heads}"
            )
        if self.moe is not None and self.moe.top_k > self.moe.experts:
            raise UsageError(
                f"{self.name}: expected num_experts_per_tok of at most the number of experts, got "
                f"{self.moe.top_k} of {self.moe.experts}"
            )

    @property
    def dense_layers(self) -> int:
        """Layers whose MLP is dense."""
        return self.layers - (0 if self.moe is None else self.moe.layers)


def _model(
    name: str, architecture: str, fields: Fields, *, qk_norm: bool, moe: Experts | None = None
) -> Model:
    """What all families share: a decoder with grouped-query attention and a gated MLP."""
    fields.only(
        "quantization_config", (), why="no operator has a quantised form yet; use the plain model"
    )
    for bias in ("attention_bias", "mlp_bias"):
        fields.only(bias, (False,), why="a projection with a bias is no operator yet")
    if fields.given("use_sliding_window", (False,)):
        fields.ignore("sliding_window")
    else:
        fields.only("sliding_window", (), why=_WINDOW)
    fields.word("hidden_act", allowed=("silu",))
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    return Model(
        name=name,
        architecture=architecture,
        dtype=fields.word("torch_dtype", "dtype", allowed=("bfloat16", "float16", "float32")),
        layers=fields.whole("num_hidden_layers"),
        hidden=hidden,
        intermediate=fields.whole("intermediate_size"),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads"),
        # transformers divides where the field is absent.
        head_dim=fields.whole_or("head_dim", hidden // heads),
        vocabulary=fields.whole("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
        qk_norm=qk_norm,
        max_model_len=fields.whole("max_position_embeddings"),
        moe=moe,
    )


def _llama(name: str, architecture: str, fields: Fields) -> Model:
    return _model(name, architecture, fields, qk_norm=False)


def _qwen3(name: str, architecture: str, fields: Fields) -> Model:
    return _model(name, architecture, fields, qk_norm=True)


def _mixtral(name: str, architecture: str, fields: Fields) -> Model:
    """Every layer has experts, whose width is the field that is the MLP's elsewhere."""
    moe = Experts(
        layers=fields.whole("num_hidden_layers"),
        experts=fields.whole("num_local_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate=fields.whole("intermediate_size"),
    )
    return _model(name, architecture, fields, qk_norm=False, moe=moe)


def _qwen3_moe(name: str, architecture: str, fields: Fields) -> Model:
    """Layer i has experts unless it is listed as dense or (i + 1) misses the sparse step."""
    step, dense = fields.whole("decoder_sparse_step"), fields.wholes("mlp_only_layers")
    layers = range(fields.whole("num_hidden_layers"))
    moe = Experts(
        layers=sum((i + 1) % step == 0 and i not in dense for i in layers),
        experts=fields.whole("num_experts", "num_local_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate=fields.whole("moe_intermediate_size"),
    )
    return _model(name, architecture, fields, qk_norm=True, moe=moe)


def _dots1(name: str, architecture: str, fields: Fields) -> Model:
    """The first layers are dense; the shared experts are one MLP of their summed width."""
    fields.only("moe_layer_freq", (1,), why="experts in some of the later layers only")
    layers, dense = (
        fields.whole("num_hidden_layers"),
        fields.whole("first_k_dense_replace", least=0),
    )
    width = fields.whole("moe_intermediate_size")
    moe = Experts(
        layers=max(layers - dense, 0),
        experts=fields.whole("n_routed_experts", "num_local_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate=width,
        shared_intermediate=width * fields.whole_or("n_shared_experts", 0, least=0),
    )
    return _model(name, architecture, fields, qk_norm=True, moe=moe)


FAMILIES: Final[Mapping[str, Callable[[str, str, Fields], Model]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen3ForCausalLM": _qwen3,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Dots1ForCausalLM": _dots1,
}

_WINDOW = (
    "within a window a step's time depends on each sequence's length, and steps are priced by "
    "their sum"
)
_LATENT = "multi-head latent attention is no operator yet"
REFUSED: Final[Mapping[str, str]] = {
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": _LATENT,
    "DeepseekV4ForCausalLM": "attention to compressed tokens is no operator yet",
    "GptOssForCausalLM": f"sliding windows: {_WINDOW}",
    "KimiK25ForConditionalGeneration": _LATENT,
    "MiniMaxM2ForCausalLM": "its norm over all heads of a token is not described yet",
}


def refusal(architecture: str, where: str) -> str:
    """Why an architecture cannot be priced, and which ones can."""
    why = REFUSED.get(architecture, "nobody has said yet what it computes (sim/families.py)")
    return f"{where}: {architecture} cannot be priced: {why}. Supported: {', '.join(FAMILIES)}"
