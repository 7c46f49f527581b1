"""Prompts: the text or the token ids that a model is asked to continue."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitgate.records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request: `text`, or `token_ids` where the text is None."""

    text: str | None
    token_ids: tuple[int, ...] = ()


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file: one per line, plain text, or JSON objects where it ends in .jsonl.

    A JSON object has the key `prompt` (text) or `prompt_token_ids` (a list of integers).

    Raises:
        UsageError: no such file, no prompt in it, or a malformed line, which is named.
    """
    if not path.is_file():
        raise UsageError(f"{path}: expected a file of prompts, found none")
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: expected UTF-8 text: {error}") from None
    # Only ends of lines separate: a text may hold any other character.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            found.append(_from_json(where, line) if path.suffix == ".jsonl" else Prompt(text=line))
    if not found:
        raise UsageError(f"{path}: expected at least one prompt, one per line; the file is empty")
    return tuple(found)


def _from_json(where: str, line: str) -> Prompt:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not valid JSON: {error}") from None
    known = {"prompt", "prompt_token_ids"}
    if not isinstance(entry, dict) or len(entry) != 1 or not set(entry) <= known:
        raise UsageError(f"{where}: expected an object with one key of {sorted(known)}, got {line}")
    text, ids = entry.get("prompt"), entry.get("prompt_token_ids")
    if isinstance(text, str) and text.strip():
        return Prompt(text=text)
    if isinstance(ids, list) and ids and all(type(item) is int and item >= 0 for item in ids):
        return Prompt(text=None, token_ids=tuple(ids))
    raise UsageError(f"{where}: expected text, or a list of token ids that is not empty")
