"""From a checkpoint directory, or the name of a tiny model, to a bundle."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bitgate.kernels.devices import device
from bitgate.parity.bundle_write import check_free
from bitgate.parity.capture_load import (
    Checkpoint,
    load_model,
    load_tokenizer,
    model_type_of,
    quiet,
)
from bitgate.parity.capture_prompts import Prompt
from bitgate.parity.capture_transformers import Generation, capture_transformers
from bitgate.parity.tiny import build, prompts, tiny


def _silent() -> None:
    """Nobody watches the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How to capture: the device, how far to generate, and what to call after each request."""

    device: str = "cpu"
    generation: Generation = field(default_factory=Generation)
    progress: Callable[[], None] = _silent


def capture_checkpoint(
    folder: Path, asked: Sequence[Prompt], out: Path, job: Job, *, name: str | None = None
) -> None:
    """Load the Hugging Face checkpoint in `folder` and capture it while it continues the prompts.

    Nothing is downloaded. What can be refused is refused before the model is loaded.

    Raises:
        UsageError: not a whole checkpoint of a known model type, no prompt, or `out` in use.
        EnvironmentUnfit: the device, transformers or room on the disk is lacking.
        CaptureIncomplete: a declared boundary is missing; nothing is written.
    """
    model_type_of(folder)
    check_free(out)
    device(job.device)
    text = any(prompt.text is not None for prompt in asked)
    checkpoint = Checkpoint(
        name=name or folder.resolve().name,
        tokenizer=load_tokenizer(folder) if text else None,
        model=load_model(folder, job.device),
    )
    capture_transformers(checkpoint, asked, out, generation=job.generation, progress=job.progress)


def tiny_prompts() -> tuple[Prompt, ...]:
    """The beginnings of sentences of the text from which the tiny models have their vocabulary."""
    return tuple(Prompt(text=text) for text in prompts())


def capture_tiny(name: str, out: Path, job: Job, asked: Sequence[Prompt]) -> None:
    """Build a tiny model as a checkpoint directory, and capture that.

    Raises:
        UsageError: no such tiny model, or `out` in use.
        EnvironmentUnfit: the device, transformers or room on the disk is lacking.
    """
    model = tiny(name)
    check_free(out)
    with tempfile.TemporaryDirectory(prefix="bitgate-tiny-") as scratch:
        folder = Path(scratch)
        with quiet():
            build(model, folder)
        capture_checkpoint(folder, asked, out, job, name=f"tiny {name}")
