"""Capturing a transformers model while it continues prompts greedily, one request at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bitgate.parity.bundle_format import TokensLine
from bitgate.parity.capture import Plan, capture
from bitgate.parity.capture_hooks import Passes, hooked
from bitgate.parity.capture_load import EAGER, Checkpoint, check_eager, quiet, transformers
from bitgate.parity.capture_origin import origin_of
from bitgate.parity.capture_prompts import Prompt
from bitgate.parity.taps import taps_for
from bitgate.records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How far each prompt is continued, and of how many last steps the tensors are kept."""

    tokens: int = 16
    keep_steps: int | None = 64

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"tokens: expected at least 1, got {self.tokens}")


def capture_transformers(
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    out: Path,
    *,
    generation: Generation,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Write the bundle `out` of everything that the model computed at its declared boundaries.

    A first pass of one token is a warm-up: its frames are dropped and counted. Then every prompt is
    continued greedily; its tokens and log-probabilities are stored beside the frames. `progress`
    is called after each request.

    Raises:
        UsageError: unknown model type, `out` in use, no prompt, or text without a tokenizer.
        EnvironmentUnfit: the model does not run eagerly, or the disk is full.
        CaptureIncomplete: a declared boundary is missing; nothing is written.
    """
    model = checkpoint.model
    taps = taps_for(model.config.model_type)
    check_eager(model)
    if not prompts:
        raise UsageError("expected at least one prompt, got none")
    encoded = []
    for prompt in prompts:
        given = _encode(checkpoint.tokenizer, prompt)
        _check_fits(model.config, prompt, given, generation.tokens)
        encoded.append(torch.tensor([given], dtype=torch.int64, device=model.device))
    boundaries = taps.boundaries(model.config)
    plan = Plan(
        boundaries=tuple(tap.declared for tap in boundaries),
        origin=origin_of(
            model,
            name=checkpoint.name,
            taps_version=taps.version,
            implementation=(
                ("attention", EAGER),
                ("engine", f"transformers {transformers().__version__}"),
                ("experts", EAGER),
            ),
        ),
        keep_steps=generation.keep_steps,
    )
    passes = Passes()
    with capture(plan, out) as session, hooked(model, boundaries, session, passes), quiet():
        _continue(model, encoded[0], 1)
        for request, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            passes.start(request)
            answer, logprobs = _continue(model, ids, generation.tokens)
            session.tokens(
                TokensLine(
                    request=request,
                    prompt=prompt.text,
                    prompt_token_ids=tuple(ids[0].tolist()),
                    token_ids=answer,
                    logprobs=logprobs,
                )
            )
            progress()


def _encode(tokenizer: Any | None, prompt: Prompt) -> list[int]:
    """The token ids of a prompt, at least one."""
    ids: Sequence[int] = prompt.token_ids
    if prompt.text is not None:
        if tokenizer is None:
            raise UsageError("a prompt is text, and there is no tokenizer; give prompt_token_ids")
        ids = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise UsageError(f"the prompt {prompt.text!r} has no token")
    return list(ids)


def _check_fits(config: Any, prompt: Prompt, ids: list[int], tokens: int) -> None:
    """Raise UsageError where the model has no such token, or no such position."""
    shown = prompt.text if prompt.text is not None else list(prompt.token_ids)
    largest = max(ids)
    if largest >= config.vocab_size:
        raise UsageError(
            f"the prompt {shown!r:.60} has the token id {largest}; this model has the ids 0 to "
            f"{config.vocab_size - 1}"
        )
    positions = len(ids) + tokens
    if positions > config.max_position_embeddings:
        raise UsageError(
            f"the prompt {shown!r:.60} has {len(ids)} tokens and {tokens} are to follow; this "
            f"model has {config.max_position_embeddings} positions: shorten it, or lower --tokens"
        )


def _continue(
    model: Any, ids: torch.Tensor, tokens: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The greedy answer to [1, tokens] ids, and the log-probability of each of its tokens."""
    own = model.generation_config
    # A fresh configuration: sampling and penalties of the checkpoint have no place in a capture.
    greedy = transformers().GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        use_cache=True,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id if own.pad_token_id is not None else 0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    result = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=greedy
    )
    answer = result.sequences[0, ids.shape[1] :].tolist()
    logprobs = []
    for token, logits in zip(answer, result.logits, strict=True):
        logprobs.append(repr(float(logits[0].float().log_softmax(-1)[token])))
    return tuple(answer), tuple(logprobs)
