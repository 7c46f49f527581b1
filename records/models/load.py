"""The model files that come with the package, as values."""

import json
import re
import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from bitgate.records.codec import decode
from bitgate.records.errors import UsageError
from bitgate.records.models.types import ModelShape, Split

_SPLIT = re.compile(r"(?!,)(?:ep(?P<ep>[0-9]{1,4})(?=,tp|$))?,?(?:tp(?P<tp>[0-9]{1,4}))?")


def names() -> tuple[str, ...]:
    """The names of all models, file by file."""
    return tuple(_models())


def shape(name: str) -> ModelShape:
    """One model. Raises UsageError that lists the known names."""
    known = _models()
    if name not in known:
        close = get_close_matches(name, known, n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"unknown model {name!r}; known: {', '.join(known)}{hint}")
    return known[name]


def split_shape(name: str) -> Split:
    """A model with its split, such as Qwen3-30B-A3B@ep2, @tp8 or @ep2,tp4; one rank without.

    Raises:
        UsageError: the model is unknown, the split is not of that form, or does not divide.
    """
    model, at, text = name.partition("@")
    found = _SPLIT.fullmatch(text)
    if found is None or bool(at) != bool(text):
        raise UsageError(f"{name}: expected a split such as @ep2, @tp8 or @ep2,tp4, got @{text}")
    return Split(model=shape(model), ep=int(found["ep"] or 1), tp=int(found["tp"] or 1))


@cache
def _models() -> dict[str, ModelShape]:
    folder = files("bitgate.records.models")
    texts = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    found: dict[str, ModelShape] = {}
    for file in sorted(texts, key=lambda one: one.name):
        for model in parse(file.read_text("utf-8")):
            if model.name in found:
                raise UsageError(f"{file.name}: {model.name} is in another file, too")
            found[model.name] = model
    return found


def parse(text: str) -> list[ModelShape]:
    """The models of one file.

    Raises:
        UsageError: a model is like one that does not stand before it, or names no known source.
        FormatError: a field is missing, unknown or of the wrong type or range.
    """
    document = tomllib.loads(text)
    sources: dict[str, str] = document["sources"]
    tables: dict[str, dict[str, Any]] = {}
    for given in document["models"]:
        name, like = given["name"], given.pop("like", None)
        if like is not None and like not in tables:
            raise UsageError(f"model {name}: it is like {like!r}, which does not stand before it")
        tables[name] = ({} if like is None else tables[like]) | given
    return [_shape(table, sources, document.get("unverified", ())) for table in tables.values()]


def _shape(table: dict[str, Any], sources: dict[str, str], doubtful: list[str]) -> ModelShape:
    name, others = table["name"], table.get("other_sources", {})
    for field, source in {"source": table["source"], **others}.items():
        if source not in sources:
            raise UsageError(f"model {name}: {field} is from {source!r}, which is no source here")
    for field in others:
        if field not in table:
            raise UsageError(f"model {name}: {field} has a source of its own and no value")
    told = {
        "source": sources[table["source"]],
        "other_sources": {field: sources[source] for field, source in others.items()},
        "unverified": [field for field, source in others.items() if source in doubtful],
    }
    return decode(ModelShape, json.dumps(table | told).encode())
