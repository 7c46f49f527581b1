"""The parity map: the class of each captured boundary at each step, from a gate's evidence."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What is drawn on one page; the evidence always holds all.
_MOST_STEPS = 64

_LETTERS = {
    "equal": "=",
    "culprit": "C",
    "victim": "V",
    "state-suspect": "S",
    "missing": "M",
    "incomparable": "I",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCell:
    """One boundary at one step: its class, the letter for it, and its name in words."""

    kind: str
    letter: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityMap:
    """Steps across, boundaries down. `shown` of `steps` steps are drawn."""

    steps: tuple[str, ...]
    rows: tuple[tuple[str, tuple[ClassCell | None, ...]], ...]
    counts: tuple[tuple[str, int], ...]
    shown: int
    total_steps: int


def read_cases(data: bytes) -> list[dict[str, Any]]:
    """The cases of a gate's evidence; ValueError where the bytes hold none."""
    document = json.loads(data)
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list):
        raise ValueError("it lists no cases")  # noqa: TRY004 - a fault of the file, not of a caller
    return [case for case in cases if isinstance(case, dict)]


def class_counts(cases: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """How many cases there are of each class, the most frequent first."""
    return tuple(Counter(str(case.get("class", "unknown")) for case in cases).most_common())


def parity_map(cases: list[dict[str, Any]]) -> ParityMap | None:
    """The map of the cases that belong to a captured step; None where there is none."""
    placed = [case for case in cases if isinstance(case.get("step"), list)]
    if not placed:
        return None
    steps = sorted({tuple(case["step"]) for case in placed})
    drawn = steps[:_MOST_STEPS]
    cells: dict[tuple[str, tuple[int, ...]], ClassCell] = {}
    for case in placed:
        name, step = _boundary(case), tuple(case["step"])
        cells[name, step] = _worse(cells.get((name, step)), _cell(case, name, step))
    names = list(dict.fromkeys(_boundary(case) for case in placed))
    return ParityMap(
        steps=tuple(_step_label(step) for step in drawn),
        rows=tuple((name, tuple(cells.get((name, step)) for step in drawn)) for name in names),
        counts=class_counts(placed),
        shown=len(drawn),
        total_steps=len(steps),
    )


def letters() -> Mapping[str, str]:
    """The letter of each class, for the legend."""
    return dict(_LETTERS)


def _boundary(case: Mapping[str, Any]) -> str:
    """The boundary's key: a subject may begin with its step and a colon."""
    subject = str(case.get("subject", "unnamed"))
    step = case["step"]
    return subject.removeprefix(f"r{step[0]}t{step[-1]}:")


def _cell(case: Mapping[str, Any], name: str, step: tuple[int, ...]) -> ClassCell:
    kind = str(case.get("class", "unknown"))
    return ClassCell(
        kind=kind if kind in _LETTERS else "other",
        letter=_LETTERS.get(kind, "?"),
        label=f"{name}, {_step_label(step)}: {kind}",
    )


def _worse(one: ClassCell | None, other: ClassCell) -> ClassCell:
    """Where two cases share a place, the one that is not equal is shown."""
    return other if one is None or one.kind == "equal" else one


def _step_label(step: tuple[int, ...]) -> str:
    return f"request {step[0]}, token {step[-1]}"
