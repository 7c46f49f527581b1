"""Small real architectures with seeded weights, saved as ordinary checkpoint directories."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

SPECIAL = ("<pad>", "<eos>", "<unk>")
_GRAIN = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A model that is built here; `config` makes its configuration for a vocabulary size."""

    name: str
    config: Callable[[int], Any]
    seed: int


def sentences() -> tuple[str, ...]:
    """The lines of the text that the tiny models read; the declaration of 1776."""
    text = files("bitgate.parity.tiny").joinpath("declaration.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def vocabulary() -> tuple[str, ...]:
    """The special tokens, then the words and marks of the text in order of appearance."""
    found = re.findall(r"\w+|[^\w\s]+", " ".join(sentences()))
    return (*SPECIAL, *dict.fromkeys(found))


def build(model: TinyModel, folder: Path) -> None:
    """Write the checkpoint directory: configuration, weights, tokenizer.

    Weights come from integers of a generator seeded with `model.seed`, so that they have the same
    bits on every machine. They are bfloat16, except where the architecture keeps float32.
    """
    from transformers import AutoModelForCausalLM

    size = -(-len(vocabulary()) // 64) * 64
    factory: Any = AutoModelForCausalLM
    network = factory.from_config(model.config(size), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(model.seed)
    with torch.no_grad():
        for name, tensor in sorted(network.state_dict().items()):
            tensor.copy_(_values(name, tensor, generator, experts=network.config.num_local_experts))
    network.save_pretrained(folder)
    _write_tokenizer(folder)


def _values(
    name: str, tensor: torch.Tensor, generator: torch.Generator, *, experts: int
) -> torch.Tensor:
    """Values for one weight: around one for norms and scales, spread around zero elsewhere."""
    if name.endswith("tid2eid"):
        return _routes(tensor, generator, experts)
    whole = torch.randint(-_GRAIN, _GRAIN, tensor.shape, generator=generator)
    uniform = whole.to(torch.float64) / _GRAIN
    if name.endswith(("norm.weight", "scale")):
        return 1 + uniform / 4
    if name.endswith("fn"):  # the normalised streams are wide: larger weights saturate the mixes
        return uniform / 8
    return uniform * 0.35


def _routes(tensor: torch.Tensor, generator: torch.Generator, experts: int) -> torch.Tensor:
    """[vocabulary, top_k] expert ids; the ids of one token are distinct."""
    order = torch.randint(0, 1 << 30, (tensor.shape[0], experts), generator=generator)
    return order.argsort(dim=1, stable=True)[:, : tensor.shape[1]]


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(vocabulary())}
    plain = Tokenizer(models.WordLevel(words, unk_token=SPECIAL[2]))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    factory: Any = PreTrainedTokenizerFast
    tokenizer = factory(
        tokenizer_object=plain, pad_token=SPECIAL[0], eos_token=SPECIAL[1], unk_token=SPECIAL[2]
    )
    tokenizer.save_pretrained(folder)


def prompts() -> tuple[str, ...]:
    """The beginnings of sentences that the tiny models are asked to continue."""
    return tuple(" ".join(line.split()[:12]) for line in sentences()[:3])
