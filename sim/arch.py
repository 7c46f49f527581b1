"""A model's operators: from its config.json to the priced calls of one forward pass."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bitgate.records.errors import UsageError
from bitgate.records.ops import operator
from bitgate.records.types import Workload
from bitgate.sim.families import FAMILIES, Model, refusal
from bitgate.sim.fields import Fields
from bitgate.sim.step import StepShape

# What a model fixes of a call: the operator, the axes that are no sizes, the dtype.
Key = tuple[str, tuple[tuple[str, int], ...], str]
Per = Literal["tokens", "logits", "prefill", "decodes"]
_WEIGHTLESS = (
    "rope",
    "context_attention",
    "generation_attention",
    "silu_and_mul",
    "add",
    "moe_route",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Calls of one operator in every forward pass, equal but for the axes that a step sets.

    count: calls of a step, or of each prefill chunk
    per: what sets the sizes: all tokens, the rows of the head, a prefill chunk, the decodes
    factor: rows for each token (the heads, where a norm runs over heads)
    """

    op: str
    axes: tuple[tuple[str, int], ...]
    dtype: str
    count: int
    per: Per = "tokens"
    factor: int = 1

    @property
    def key(self) -> Key:
        """What all calls of this term have in common."""
        return self.op, self.axes, self.dtype

    def at(self, *sizes: int) -> Workload:
        """The call at these sizes, one for each of the operator's size axes, in their order."""
        names = operator(self.op).sizes
        scaled = (size * self.factor for size in sizes)
        axes = {**dict(self.axes), **dict(zip(names, scaled, strict=True))}
        return Workload(op=self.op, axes=tuple(sorted(axes.items())), dtype=self.dtype)

    @property
    def weights(self) -> int:
        """Elements of the weights of one call."""
        axes = dict(self.axes)
        match self.op:
            case "gemm":
                return axes["k"] * axes["n"]
            case "embedding":
                return axes["vocabulary"] * axes["hidden"]
            case "rms_norm" | "add_rms_norm":
                return axes["hidden"]
            case "moe_experts":
                return 3 * axes["experts"] * axes["intermediate"] * axes["hidden"]
        assert self.op in _WEIGHTLESS, self.op  # noqa: S101 - a term of `terms` below
        return 0


def config_file(path: Path) -> Path:
    """The config.json of a checkpoint directory, or the file itself."""
    return path / "config.json" if path.is_dir() else path


def load_model(path: Path) -> Model:
    """The model that a Hugging Face config.json describes, or the one in a checkpoint directory.

    Raises:
        UsageError: no such file, no JSON object, an architecture that cannot be priced, a field
            that is missing, or one that is not known and so might change what is computed; names
            the field and the file.
    """
    file = config_file(path)
    try:
        values = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a Hugging Face config.json") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected a JSON object, got {type(values).__name__}")
    fields = Fields(values, str(file))
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    (architecture,) = fields.names("architectures", count=1)
    if architecture not in FAMILIES:
        raise UsageError(refusal(architecture, str(file)))
    model = FAMILIES[architecture](name, architecture, fields)
    fields.refuse_unknown()
    return model


def terms(model: Model) -> tuple[Term, ...]:
    """The operators of one forward pass; equal ones are merged."""
    merged: dict[Term, int] = {}
    for term in (*_outer(model), *_attention(model), *_dense_mlp(model), *_experts(model)):
        one = replace(term, count=1)
        merged[one] = merged.get(one, 0) + term.count
    return tuple(replace(term, count=count) for term, count in merged.items() if count)


def parameters(model: Model) -> int:
    """Elements of the weights that the operators imply; a tied head counts once."""
    implied = sum(term.count * term.weights for term in terms(model))
    return implied - model.tied * model.vocabulary * model.hidden


def calls(model: Model, shape: StepShape) -> dict[Workload, int]:
    """What one step computes: each call with its count. Nothing of zero size is called."""
    found: dict[Workload, int] = {}
    for term in terms(model):
        for sizes in _sizes(term.per, shape):
            workload = term.at(*sizes)
            found[workload] = found.get(workload, 0) + term.count
    return found


def _sizes(per: Per, shape: StepShape) -> list[tuple[int, ...]]:
    """The sizes of the calls that a step makes of a term; see Term.at."""
    match per:
        case "tokens":
            return [(shape.tokens,)] if shape.tokens else []
        case "logits":
            return [(shape.logits,)] if shape.logits else []
        case "prefill":
            return list(shape.prefills)
        case "decodes":
            return [(shape.decodes, shape.decode_kv_tokens)] if shape.decodes else []


def _term(model: Model, op: str, count: int, axes: dict[str, int], per: Per = "tokens") -> Term:
    return Term(op=op, axes=tuple(sorted(axes.items())), dtype=model.dtype, count=count, per=per)


def _gemm(model: Model, count: int, k: int, n: int) -> Term:
    return _term(model, "gemm", count, {"k": k, "n": n})


def _outer(model: Model) -> Iterator[Term]:
    """Embedding, head, and the norms: all but the first add the residual, as vLLM fuses them."""
    hidden = model.hidden
    yield _term(model, "embedding", 1, {"hidden": hidden, "vocabulary": model.vocabulary})
    yield _term(model, "rms_norm", 1, {"hidden": hidden})
    yield _term(model, "add_rms_norm", 2 * model.layers, {"hidden": hidden})
    yield _term(model, "gemm", 1, {"k": hidden, "n": model.vocabulary}, "logits")


def _attention(model: Model) -> Iterator[Term]:
    layers, heads, kv_heads, dim = model.layers, model.heads, model.kv_heads, model.head_dim
    yield _gemm(model, layers, model.hidden, (heads + 2 * kv_heads) * dim)
    if model.qk_norm:
        for rows in (heads, kv_heads):
            yield Term(
                op="rms_norm", axes=(("hidden", dim),), dtype=model.dtype, count=layers, factor=rows
            )
    yield _term(model, "rope", layers, {"head_dim": dim, "heads": heads + kv_heads})
    axes = {"head_dim": dim, "heads": heads, "kv_heads": kv_heads}
    yield _term(model, "context_attention", layers, axes, "prefill")
    yield _term(model, "generation_attention", layers, axes, "decodes")
    yield _gemm(model, layers, heads * dim, model.hidden)


def _mlp(model: Model, count: int, intermediate: int) -> Iterator[Term]:
    yield _gemm(model, count, model.hidden, 2 * intermediate)
    yield _term(model, "silu_and_mul", count, {"intermediate": intermediate})
    yield _gemm(model, count, intermediate, model.hidden)


def _dense_mlp(model: Model) -> Iterator[Term]:
    if model.dense_layers:
        yield from _mlp(model, model.dense_layers, model.intermediate)


def _experts(model: Model) -> Iterator[Term]:
    """Router, the choice, the experts, and beside them the shared expert where there is one."""
    moe = model.moe
    if moe is None:
        return
    choice = {"experts": moe.experts, "top_k": moe.top_k}
    yield _gemm(model, moe.layers, model.hidden, moe.experts)
    yield _term(model, "moe_route", moe.layers, choice)
    yield _term(
        model,
        "moe_experts",
        moe.layers,
        {**choice, "hidden": model.hidden, "intermediate": moe.intermediate},
    )
    if moe.shared_intermediate:
        yield from _mlp(model, moe.layers, moe.shared_intermediate)
        yield _term(model, "add", moe.layers, {"hidden": model.hidden})
