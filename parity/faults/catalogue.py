"""Every area of faults by name; add yours here."""

from collections.abc import Callable, Mapping
from typing import Final

from bitgate.parity.faults import (
    act,
    address,
    align,
    combine,
    config,
    experts,
    fp8,
    gemm,
    parallel,
    quant,
    routing,
)
from bitgate.parity.faults.base import Area
from bitgate.records.errors import UsageError

AREAS: Final[Mapping[str, Callable[[], Area]]] = {
    "routing": routing.area,
    "align": align.area,
    "gemm": gemm.area,
    "act": act.area,
    "combine": combine.area,
    "experts": experts.area,
    "quant": quant.area,
    "fp8": fp8.area,
    "config": config.area,
    "parallel": parallel.area,
    "address": address.area,
}


def areas(names: tuple[str, ...] = ()) -> tuple[Area, ...]:
    """Some areas, or all. Raises UsageError that lists the known ones."""
    if unknown := set(names) - AREAS.keys():
        raise UsageError(f"unknown areas {sorted(unknown)}; known: {', '.join(AREAS)}")
    return tuple(make() for name, make in AREAS.items() if not names or name in names)
