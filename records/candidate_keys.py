"""The keys of a candidate file, by section: what each value may be."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, get_args

from bitgate.records.base import InvariantError, require_decimal
from bitgate.records.types import Pairs, Tier

Check = Callable[[Any], Any]


class WrongValueError(ValueError):
    """A value of the wrong type or range; the text says what was expected."""


def _text(value: Any) -> str:
    if not _is_text(value):
        raise WrongValueError("a non-empty string of one line without control characters")
    return str(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number that rows can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 53


def _count(value: Any) -> int:
    if not _is_whole(value, 1):
        raise WrongValueError("a whole number of at least 1, below 2**53")
    return int(value)


def _at_least_two(value: Any) -> int:
    if not _is_whole(value, 2):
        raise WrongValueError("a whole number of at least 2, below 2**53")
    return int(value)


def _whole(value: Any) -> int:
    if not _is_whole(value, 0):
        raise WrongValueError("a whole number from 0 to 2**53 - 1, which is what rows can hold")
    return int(value)


def _fraction(value: Any) -> str:
    """A number in [0, 1) as the decimal text that was written."""
    try:
        number = require_decimal(str(value), "a number")
    except InvariantError:
        number = Decimal(-1)
    if isinstance(value, bool) or not 0 <= number < 1 or number.is_signed():
        raise WrongValueError("a number from 0 up to, but not including, 1, such as 0.01")
    return str(value)


def _probability(value: Any) -> str:
    text = _fraction(value)
    if Decimal(text) == 0:
        raise WrongValueError("a number above 0 and below 1, such as 0.05")
    return text


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices:
            raise WrongValueError(f"one of {', '.join(map(repr, choices))}")
        return str(value)

    return check


def _target(value: Any) -> str:
    module, colon, function = _text(value).partition(":")
    if not (module and colon and function):
        raise WrongValueError("module:function, such as 'my_kernels.experts:run'")
    return str(value)


def _pairs(value: Any) -> Pairs:
    if not isinstance(value, dict) or not all(map(_is_setting, value.items())):
        raise WrongValueError("a table of strings or finite numbers, by names without '='")
    return tuple(sorted((name, str(entry)) for name, entry in value.items()))


def _is_setting(item: tuple[str, Any]) -> bool:
    """Whether a name and its value can be a constant or a variable of the environment."""
    name, value = item
    if not _is_text(name) or "=" in name or isinstance(value, bool):
        return False
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or (isinstance(value, str) and "\0" not in value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_text, value)):
        raise WrongValueError("a non-empty array of strings")
    if len(set(value)) != len(value):
        raise WrongValueError("each string once")
    return tuple(value)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_whole(one, 1) for one in value):
        raise WrongValueError("a non-empty array of whole numbers of at least 1, below 2**53")
    if len(set(value)) != len(value):
        raise WrongValueError("each number once")
    return tuple(value)


def _shapes(value: Any) -> tuple[tuple[tuple[str, int], ...], ...]:
    expected = "a non-empty array of tables of extents, such as [{tokens = 16, hidden = 64}]"
    if not isinstance(value, list) or not value:
        raise WrongValueError(expected)
    for shape in value:
        if not isinstance(shape, dict) or not shape:
            raise WrongValueError(expected)
        if not all(map(_is_text, shape)) or not all(_is_whole(n, 0) for n in shape.values()):
            raise WrongValueError(expected)
    shapes = tuple(tuple(sorted(shape.items())) for shape in value)
    if len(set(shapes)) != len(shapes):
        raise WrongValueError("each shape once")
    return shapes


SIDE: Mapping[str, Check] = {
    "name": _text,
    "op": _text,
    "contract": _text,
    "tier": _one_of(*get_args(Tier)),
    "device": _text,
    "impl": _target,
    "root": _text,
    "tiles": _text,
    "config": _pairs,
    "env": _pairs,
}
SIDE_REQUIRED = ("name", "op", "contract", "tier", "device", "impl")
WORKLOADS: Mapping[str, Check] = {
    "bundle": _text,
    "suite": _text,
    "shapes": _shapes,
    "models": _texts,
    "tokens": _counts,
    "dtype": _text,
    "cases": _texts,
}
GATES: Mapping[str, Check] = {
    "cases": _at_least_two,
    "repeats": _at_least_two,
    "processes": _at_least_two,
    "boundaries": _count,
    "timeout_s": _count,
    "confidence": _probability,
    "max_p": _probability,
}
BENCH: Mapping[str, Check] = {
    # in_graph needs a device with graphs; no stage times one yet.
    "regime": _one_of("cold", "warm"),
    "margin": _fraction,
    "rounds": _count,
    "processes": _count,
    "alpha": _probability,
    "kill_below_saving_ns": _whole,
    "order_seed": _whole,
    "timeout_s": _count,
}
SECTIONS = ("candidate", "baseline", "workloads", "gates", "bench", "serve")
LATER_FORMS = ("command", "outputs")
