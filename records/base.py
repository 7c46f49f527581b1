"""What all values share: the checks that constructors use, and the base that the codec reads."""

import re
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar


class InvariantError(ValueError):
    """A value that the vocabulary forbids: what was expected, what came, what to do."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - the condition is the point
    """Raise InvariantError with `message` unless `condition` holds."""
    if not condition:
        raise InvariantError(message)


_HEX64 = re.compile(r"[0-9a-f]{64}")
_UTC = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
# Three digits of exponent: 1e-999999999 would be a small text and, as a fraction, a huge number.
_DECIMAL = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")


def require_sha256(value: str, what: str) -> None:
    """Raise InvariantError unless `value` is 64 lower-case hexadecimal digits."""
    if not _HEX64.fullmatch(value):
        raise InvariantError(f"{what}: expected a SHA-256 in hex, got {value!r}")


def require_utc(value: str, what: str) -> None:
    """Raise InvariantError unless `value` is a UTC time such as 2026-01-31T23:59:59Z."""
    if not _is_utc(value):
        raise InvariantError(f"{what}: expected a UTC time ending in Z, got {value!r}")


def require_decimal(value: str, what: str) -> Decimal:
    """Return the finite number that the decimal string holds, or raise InvariantError."""
    number = _decimal(value) if type(value) is str else None
    if number is None:
        raise InvariantError(f"{what}: expected a decimal string such as '0.05', got {value!r:.80}")
    return number


@lru_cache(maxsize=1024)
def _decimal(text: str) -> Decimal | None:
    """The number that the text is, if it is one; rows repeat the same few."""
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


@lru_cache(maxsize=1024)
def _is_utc(value: str) -> bool:
    """Whether the text has the form of a UTC time, and is one: no thirteenth month."""
    if not _UTC.fullmatch(value):
        return False
    seconds, _, fraction = value.removesuffix("Z").partition(".")
    try:
        datetime.fromisoformat(f"{seconds}.{fraction:0<6}")
    except ValueError:
        return False
    return True


class Value:
    """Base of all values; tells the codec to refuse unknown fields and silent conversions."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}
