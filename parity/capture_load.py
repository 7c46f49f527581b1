"""Loading a Hugging Face checkpoint directory, offline, computing in the declared order."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bitgate.parity.taps import taps_for
from bitgate.records.errors import EnvironmentUnfit, UsageError

EAGER = "eager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded model with its tokenizer (None: prompts are token ids) and what to call it."""

    name: str
    model: Any
    tokenizer: Any | None


def transformers() -> ModuleType:
    """The package transformers, or EnvironmentUnfit with how to install it."""
    try:
        import transformers as package
    except ModuleNotFoundError as error:
        raise EnvironmentUnfit(
            f"capturing a checkpoint needs {error.name or 'transformers'}, which is not installed; "
            "do: pip install -c constraints.txt -e '.[transformers]'"
        ) from None
    return package


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the notices and progress bars of transformers inside the block."""
    logging = transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def model_type_of(folder: Path) -> str:
    """The model type of a checkpoint directory whose boundaries are declared.

    Raises:
        UsageError: not a checkpoint directory, or a model type without declared boundaries.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: expected a Hugging Face checkpoint directory, found none; name a local "
            "directory with --model (nothing is downloaded), or use --tiny deepseek-v4"
        )
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"{path}: the file is missing; a checkpoint directory holds one")
    try:
        model_type = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: expected a JSON object with a model_type: {error!r}") from None
    return taps_for(str(model_type)).model_type


def load_model(folder: Path, device: str) -> Any:
    """The model of a checkpoint directory, in its own dtypes, on `device`, computing eagerly.

    Attention and experts are set to the plain implementation of transformers, whose order the
    contracts name.

    Raises:
        UsageError: the directory does not hold a whole checkpoint of a known model type.
        EnvironmentUnfit: transformers cannot run the plain implementations, or lacks a package.
    """
    model_type_of(folder)
    factory = transformers().AutoModelForCausalLM
    with quiet():
        try:
            model, report = factory.from_pretrained(
                folder,
                local_files_only=True,
                dtype="auto",
                attn_implementation=EAGER,
                experts_implementation=EAGER,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the others that are lacking
            )
        except ImportError as error:
            raise EnvironmentUnfit(f"{folder}: this checkpoint needs more: {error}") from None
        except (OSError, ValueError, RuntimeError, _shard_error()) as error:
            raise UsageError(f"{folder}: cannot load the checkpoint: {error}") from None
    lacking = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if lacking:
        raise UsageError(
            f"{folder}: {len(lacking)} weights are missing or have another shape, such as "
            f"{lacking[0]}; they would be random. Copy the whole checkpoint"
        )
    check_eager(model)
    return model.eval().to(device)


def check_eager(model: Any) -> None:
    """Raise EnvironmentUnfit unless attention and experts run their plain implementation."""
    for attribute in ("_attn_implementation", "_experts_implementation"):
        actual = getattr(model.config, attribute, None)
        if actual != EAGER:
            raise EnvironmentUnfit(
                f"{type(model).__name__}.config.{attribute}: expected {EAGER!r}, got {actual!r}; "
                "the captured order would not be the one that the contract names"
            )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint directory.

    Raises:
        UsageError: it has none, or a broken one; prompts may be given as token ids instead.
    """
    hint = "add its tokenizer files, or give prompt_token_ids in a .jsonl file of prompts"
    names = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if not any((folder / name).is_file() for name in names):
        raise UsageError(f"{folder}: no tokenizer: none of {', '.join(names)} is there; {hint}")
    with quiet():
        try:
            return transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise UsageError(f"{folder}: cannot load the tokenizer: {error}; {hint}") from None


def _shard_error() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError
