"""Values to canonical JSON and back: one form for every writer, and nothing silently dropped.

Canonical JSON is RFC 8785. Hashed numbers are integers below 2**53 or decimal strings; a binary
float anywhere is refused, because writers disagree about its digits. Reading is strict: a field
that the vocabulary does not know is an error, and so is a number where text was meant.

Format history
    1   the first format: rows `lane`, `record` and `decision`
    2   rows `simulation`

A later format adds its line here, raises SCHEMA, and appends to UPGRADES what lifts the plain JSON
of each changed kind of row from the format before; rows keep the bytes that they were written with.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from bitgate.records.base import InvariantError, Value
from bitgate.records.errors import UsageError

SCHEMA: int = 2

T = TypeVar("T", bound=Value)
Plain = dict[str, Any]
# What lifts the plain JSON of a row by one format, for each kind of row that has changed.
Upgrade = dict[str, Callable[[Plain], Plain]]

_LARGEST_INTEGER = 2**53 - 1
# With every digit as 0 and whatever a number can follow as a colon, a number that may be too large
# is a plain text to search for: far quicker than a regular expression, which stops at each hash.
_DIGITS_ALIKE = bytes.maketrans(b"123456789,[- \t\r\n", b"000000000:::::::")
_LONG_NUMBER = b":" + b"0" * 16


class FormatError(UsageError):
    """JSON that is not a value of the expected kind; the message names the place and the cure."""


def _not_in_format_1(plain: Plain) -> Plain:  # noqa: ARG001 - a row of this kind is none
    raise FormatError("Simulation: format 1 has no such row; the line was edited")


# UPGRADES[i] leads from format i + 1 to format i + 2.
UPGRADES: tuple[Upgrade, ...] = ({"simulation": _not_in_format_1},)


def canonical(value: Value) -> bytes:
    """The RFC 8785 JSON of `value`, with every field written out.

    Raises:
        InvariantError: something in it has no exact JSON form, such as a float.
    """
    plain = _plain(value, (None, type(value).__name__))
    try:
        # Without floats, and with ASCII keys in order, this is RFC 8785 byte for byte (a test
        # compares the two), in a fraction of the time that the general encoder takes.
        return to_json(plain)
    except ValueError as error:
        raise InvariantError(
            f"{type(value).__name__}: text that UTF-8 cannot hold: {error}"
        ) from None


def content_id(value: Value) -> str:
    """The SHA-256, in hex, of the canonical JSON; a record's identity."""
    return hashlib.sha256(canonical(value)).hexdigest()


def decode(
    kind: type[T],
    data: bytes,
    *,
    schema: int = SCHEMA,
    upgrades: tuple[Upgrade, ...] = UPGRADES,
    repeats: bool = False,
) -> T:
    """The value of type `kind` that `data`, JSON written in format `schema`, holds.

    With `repeats`, parts that were read before are not read again: records of one run share their
    verdict, candidate and environment.

    Raises:
        FormatError: unknown format or field, a key that occurs twice, wrong type, an integer that
            JSON readers round, or a value that the vocabulary forbids.
    """
    newest = len(upgrades) + 1
    adapter: TypeAdapter[T] = _adapter(cast("Any", kind))
    if not 1 <= schema <= newest:
        raise FormatError(
            f"{kind.__name__}: written in format {schema}; this version reads 1 to {newest}. "
            "Use the version of bitgate that wrote it, or a newer one"
        )
    name = kind.__name__.lower()
    steps = [upgrade[name] for upgrade in upgrades[schema - 1 :] if name in upgrade]
    lifted = data
    try:
        if steps:
            plain = from_json(data)
            for step in steps:
                plain = step(plain)
            lifted = to_json(plain)
        value = _from_parts(kind, data) if repeats and not steps else None
        if value is None:
            value = adapter.validate_json(lifted)
            _refuse_ambiguous(data)
    except ValidationError as error:
        raise FormatError(_explain(kind, error.errors(include_url=False)[0])) from None
    except ValueError as error:
        raise FormatError(f"{kind.__name__}: not clear JSON: {error}") from None
    return value


def _from_parts(kind: type[T], data: bytes) -> T | None:
    """A value from its parts, those that were read before from memory; None where anything is odd.

    What is odd is left to the plain way, which says why, or reads it all the same.
    """
    if _LONG_NUMBER in data.translate(_DIGITS_ALIKE):
        return None
    try:
        parts = {name: to_json(part) for name, part in from_json(data).items()}
        # Compact JSON that comes back byte for byte has no key twice.
        if b"{%b}" % b",".join(b'"%b":%b' % (n.encode(), p) for n, p in parts.items()) != data:
            return None
        return kind(**{name: _part(cast("Any", kind), name, part) for name, part in parts.items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@lru_cache(maxsize=1024)
def _part(kind: Any, name: str, data: bytes) -> Any:
    """The value of one field."""
    return _adapter(_types(kind)[name]).validate_json(data, strict=True)


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _refuse_ambiguous(data: bytes) -> None:
    """Raise ValueError where readers of this JSON would disagree about what it says."""
    long = _LONG_NUMBER in data.translate(_DIGITS_ALIKE)
    # Compact JSON that comes back byte for byte has no key twice; this is the fast way to know.
    if long or to_json(from_json(data)) != data:
        json.loads(data, object_pairs_hook=_once, parse_int=_exact_integer)


def _once(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")


def _exact_integer(text: str) -> None:
    if len(text) > 17 or abs(int(text)) > _LARGEST_INTEGER:
        raise ValueError(f"{text:.40} is beyond 2**53; write a decimal string")


def is_json(data: bytes) -> bool:
    """Whether the bytes are one JSON text."""
    try:
        from_json(data)
    except ValueError:
        return False
    return True


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one ledger line; see also records/schema/."""
    from bitgate.records.rows import Decision, Lane, Record, Simulation

    kinds = {"lane": Lane, "record": Record, "decision": Decision, "simulation": Simulation}
    _, schema = TypeAdapter.json_schemas(
        [(name, "validation", _adapter(kind)) for name, kind in kinds.items()]
    )
    sha256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    header = {
        "created_at": {"type": "string"},
        "prev": sha256,
        "schema": {"const": SCHEMA},
        "seq": {"type": "integer", "minimum": 1},
        "writer": {"type": "string"},
    }
    names = sorted([*header, "body", "kind"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"bitgate-{SCHEMA}.schema.json",
        "title": "One line of a bitgate ledger",
        "oneOf": [
            {
                "type": "object",
                "properties": header
                | {"kind": {"const": name}, "body": {"$ref": f"#/$defs/{kind.__name__}"}},
                "required": names,
                "additionalProperties": False,
            }
            for name, kind in kinds.items()
        ],
        "$defs": schema["$defs"],
    }


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# A place inside a value: the place around it, and the name or the number there.
_Place = tuple["_Place | None", str | int]


def _plain(item: object, place: _Place) -> Any:
    """Plain JSON of a value; `place` is named where something has no JSON form."""
    kind = type(item)
    if item is None or kind is str or kind is bool:
        return item
    if kind is int:
        return _exact(cast("int", item), place)
    if isinstance(item, tuple):
        return [_plain(part, (place, index)) for index, part in enumerate(item)]
    names = _field_names(cast("Any", kind))
    if names is not None:
        return {name: _plain(getattr(item, name), (place, name)) for name in names}
    raise InvariantError(
        f"{_words(place)}: {item!r} is a {kind.__name__}; rows hold str, int, bool, None, tuples "
        "and values. Write a decimal number as a string"
    )


def _exact(number: int, place: _Place) -> int:
    if abs(number) > _LARGEST_INTEGER:
        raise InvariantError(
            f"{_words(place)}: {number} is beyond 2**53, which JSON readers round; use a decimal "
            "string"
        )
    return number


def _words(place: _Place) -> str:
    """Value.field[index], from the outermost to the innermost."""
    around, here = place
    if around is None:
        return str(here)
    return f"{_words(around)}[{here}]" if isinstance(here, int) else f"{_words(around)}.{here}"


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """The names of a dataclass's fields in the order of JSON; None where the type is none."""
    return tuple(sorted(field.name for field in fields(kind))) if is_dataclass(kind) else None


def _explain(kind: type, detail: ErrorDetails) -> str:
    """One sentence with the place, what was expected, and what came."""
    path = list(detail["loc"])
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    where = f"{kind.__name__}{place}"
    if detail["type"] == "unexpected_keyword_argument":
        *parents, key = path
        known = ", ".join(_known_keys(kind, parents))
        owner = where.removesuffix(f".{key}")
        return f"{owner}: unknown key {key!r}; the known keys are {known}"
    if detail["type"] == "missing":
        return f"{where}: the key is missing"
    if detail["type"] == "value_error":
        return f"{where}: {detail['ctx']['error']}"
    if detail["type"] == "json_invalid":
        return f"{where}: not valid JSON: {detail['ctx']['error']}"
    return f"{where}: {detail['msg']}, got {detail['input']!r:.80}"


def _known_keys(kind: Any, path: list[int | str]) -> list[str]:
    """The field names of the value that lies at `path` below `kind`."""
    for part in path:
        kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[part]
        if get_origin(kind) in {Union, UnionType}:
            kind = next(option for option in get_args(kind) if option is not type(None))
    return sorted(field.name for field in fields(kind))
