"""What all values share: the checks that constructors use, and the base that the codec reads."""

import re
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar


class InvariantError(ValueError):
    """A value that the vocabulary forbids: what was expected, what came, what to do."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - the condition is the point
    """Raise InvariantError with `message` unless `condition` holds."""
    if not condition:
        raise InvariantError(message)


_HEX64 = re.compile(r"[0-9a-f]{64}")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def require_sha256(value: str, what: str) -> None:
    """Raise InvariantError unless `value` is 64 lower-case hexadecimal digits."""
    require(bool(_HEX64.fullmatch(value)), f"{what}: expected a SHA-256 in hex, got {value!r}")


def require_utc(value: str, what: str) -> None:
    """Raise InvariantError unless `value` is a UTC time such as 2026-01-31T23:59:59Z."""
    require(bool(_UTC.fullmatch(value)), f"{what}: expected a UTC time ending in Z, got {value!r}")


def require_decimal(value: str, what: str) -> Decimal:
    """Return the finite number that the decimal string holds, or raise InvariantError."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("NaN")
    require(number.is_finite(), f"{what}: expected a decimal string such as '0.05', got {value!r}")
    return number


class Value:
    """Base of all values; tells the codec to refuse unknown fields and silent conversions."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}
