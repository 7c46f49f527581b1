"""Running the catalogue: every check against every correct implementation and every fault."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from bitgate.parity.compare import compare_tensors
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Open, Run, Target
from bitgate.records.errors import UsageError

Result = Literal["caught", "missed", "idle"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one check said of one fault: `idle` says that it never met the fault's trigger."""

    check: str
    result: Result
    finding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault in one host, what every check said, and what contradicts the catalogue."""

    fault: Fault
    area: str
    host: str
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]

    def checks(self, *results: Result) -> tuple[str, ...]:
        """The checks with one of these results."""
        return tuple(cell.check for cell in self.cells if cell.result in results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A check of a correct implementation; `finding` is empty where it passed, as it must."""

    target: str
    implementation: str
    check: str
    finding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All rows, controls, and what is open; `passed` says that nothing contradicts the catalogue.

    Open faults contradict nothing: they are shown, and they are not caught.
    """

    rows: tuple[Row, ...]
    controls: tuple[Control, ...]
    open: tuple[Open, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Every contradiction, faults first."""
        of_faults = [
            f"{row.fault.id} in {row.host}: {problem}"
            for row in self.rows
            for problem in row.problems
        ]
        of_controls = [
            f"control {one.implementation}: {one.check} refuses what is correct: {one.finding}"
            for one in self.controls
            if one.finding
        ]
        return (*of_faults, *of_controls)

    @property
    def passed(self) -> bool:
        """Whether there was a fault and a control, and no problem."""
        return bool(self.rows) and bool(self.controls) and not self.problems


def run(areas: Sequence[Area], progress: Progress = lambda *_: None) -> Matrix:
    """Judge all faults of some areas, on one thread.

    Raises:
        UsageError: two faults share an id, or a fault names no known target or check.
    """
    _require_consistent(areas)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        controls: list[Control] = []
        rows: list[Row] = []
        for done, area in enumerate(areas):
            progress(area.name, done, len(areas))
            targets = {target.name: target for target in area.targets}
            controls += [one for target in area.targets for one in control(target)]
            rows += [
                row
                for fault in area.faults
                for row in judge(fault, targets[fault.target], area.name)
            ]
        return Matrix(
            rows=tuple(rows),
            controls=tuple(controls),
            open=tuple(one for area in areas for one in area.open),
        )
    finally:
        torch.set_num_threads(before)


def _require_consistent(areas: Iterable[Area]) -> None:
    seen: set[str] = set()
    for area in areas:
        targets = {target.name: target for target in area.targets}
        ids = [fault.id for fault in area.faults] + [one.id for one in area.open]
        if repeated := {name for name in ids if ids.count(name) > 1 or name in seen}:
            raise UsageError(f"faults: expected every id once, got {sorted(repeated)} again")
        seen |= set(ids)
        for fault in area.faults:
            if fault.target not in targets:
                raise UsageError(
                    f"fault {fault.id}: expected a target of area {area.name} "
                    f"({', '.join(targets)}), got {fault.target}"
                )
            known = {check.name for check in targets[fault.target].checks}
            if unknown := set(fault.caught_by) - known:
                raise UsageError(
                    f"fault {fault.id}: unknown checks {sorted(unknown)}; {fault.target} has "
                    f"{sorted(known)}"
                )


def control(target: Target) -> tuple[Control, ...]:
    """Every check of a target on every correct implementation of it."""
    return tuple(
        Control(
            target=target.name,
            implementation=name,
            check=check.name,
            finding=check.look(partial(_itself, run)) or "",
        )
        for name, run in target.correct.items()
        for check in target.checks
    )


def _itself(run: Run) -> Run:
    return run


def judge(fault: Fault, target: Target, area: str) -> tuple[Row, ...]:
    """One fault in every host of its target."""
    return tuple(_judge(fault, target, host, area) for host in target.hosts)


def _judge(fault: Fault, target: Target, host: str, area: str) -> Row:
    correct = target.correct[host]
    problems = _witnessed(fault, correct)
    cells = tuple(_look(fault, correct, check) for check in target.checks)
    for cell in cells:
        if cell.result == "caught" and cell.check not in fault.caught_by:
            problems.append(f"{cell.check} catches it, and is not listed: {cell.finding}")
        if cell.result != "caught" and cell.check in fault.caught_by:
            problems.append(f"{cell.check} is listed, and does not catch it ({cell.result})")
        if cell.result == "caught" and cell.finding.startswith(_IDLE):
            problems.append(f"{cell.check} catches it though it never fired: {cell.finding}")
    return Row(fault=fault, area=area, host=host, cells=cells, problems=tuple(problems))


_IDLE = "without the trigger: "


def _look(fault: Fault, correct: Run, check: Check) -> Cell:
    """One check of one freshly planted fault."""
    fired = Fired()
    finding = check.look(lambda: fault.plant(correct, fired))
    if finding is not None:
        text = finding if fired.count else _IDLE + finding
        return Cell(check=check.name, result="caught", finding=text)
    return Cell(check=check.name, result="missed" if fired.count else "idle", finding="")


def _witnessed(fault: Fault, correct: Run) -> list[str]:
    """What is wrong with the fault itself: it does not act, or it changes nothing."""
    fired = Fired()
    expected, actual = fault.witness(correct), fault.witness(fault.plant(correct, fired))
    problems = []
    if not fired.count:
        problems.append(f"its trigger did not happen: {fault.trigger}")
    if same(expected, actual):
        problems.append("the mutant equals the original where it was to differ")
    if not same(expected, fault.witness(correct)):
        problems.append("the original does not repeat what the witness observed")
    return problems


def same(left: Any, right: Any) -> bool:
    """Whether two observations agree, tensors bit for bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return not compare_tensors("observed", {"it": left}, {"it": right}).mismatches
    return type(left) is type(right) and bool(left == right)
