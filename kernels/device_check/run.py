"""Runs the sections within a budget, prints a line for each, and writes the result files.

What a section does not use is left to the next ones. A section that its time cuts short says so: it
is never counted as passed.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from bitgate.kernels.device_check.context import Context
from bitgate.kernels.device_check.rows import Answer, Check, Row, Sampled, plain, write
from bitgate.kernels.device_check.sections import SECTIONS, Section
from bitgate.kernels.devices import Device
from bitgate.records.clock import utc_now
from bitgate.records.closure import PACKAGE_ROOT, source_closure
from bitgate.records.errors import UsageError
from bitgate.records.provenance import environment, harness
from bitgate.records.types import Pairs

FULL_SECONDS = 480
QUICK_SECONDS = 180

Say = Callable[[str], object]


@dataclass(kw_only=True)
class Result:
    """What came out: rows, how each section ended as (name, words), and the sources by module."""

    rows: list[Row] = field(default_factory=list)
    sections: list[tuple[str, str]] = field(default_factory=list)
    sources: dict[str, Pairs] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """1 if anything failed, 3 if nothing was checked or something was not run, else 0."""
        if self._count("fail"):
            return 1
        return 0 if self._count("pass") and not self._count("not-run") and not self._stopped else 3

    @property
    def summary(self) -> str:
        """What came out in one line, and why it is not all that was asked for."""
        counts = ", ".join(f"{self._count(name)} {name}" for name in ("pass", "fail", "not-run"))
        why = "" if self._count("pass") else "; nothing was compared"
        if self._stopped:
            why += f"; stopped early: {', '.join(self._stopped)} (more time: --seconds)"
        return f"{counts}{why}"

    @property
    def _stopped(self) -> list[str]:
        return [name for name, ending in self.sections if ending.startswith("stopped")]

    def _count(self, outcome: str) -> int:
        return sum(row.outcome == outcome for row in self.rows if not isinstance(row, Answer))


def run(
    device: Device,
    out: Path,
    *,
    quick: bool,
    only: Iterable[str] = (),
    seconds: int | None = None,
    say: Say = print,
) -> Result:
    """Check one device and write what was found.

    Args:
        device: usable, see `kernels.devices.device`.
        out: a folder that does not exist yet, or is empty.
        quick: the short selection, in less than half the time.
        only: names of sections; empty for all.
        seconds: the budget, where it is not that of the selection.
        say: told a line as each section ends.

    Returns:
        The rows and endings; the files are `device.json`, `checks.json`, `timings.json` and
        `answers.json`.

    Raises:
        UsageError: an unknown section, no time, or files in `out`.
    """
    chosen = _chosen(tuple(only))
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: expected an empty folder; name another, or move its files away")
    out.mkdir(parents=True, exist_ok=True)
    started_at, result = utc_now(), Result()
    total_s = (QUICK_SECONDS if quick else FULL_SECONDS) if seconds is None else seconds
    if total_s < 1:
        raise UsageError(f"expected a budget of at least one second, got {total_s}")
    started_ns, used = time.monotonic_ns(), 0
    share = sum(section.share for section in chosen)
    for section in chosen:
        used += section.share
        deadline_ns = started_ns + total_s * 10**9 * used // share
        context = Context(device=device, quick=quick, deadline_ns=deadline_ns)
        ending = _section(section, context, result)
        say(f"{section.name:18} {ending}")
        # After each: a machine that is taken away leaves what was found.
        _write(device, out, result, started_at, quick=quick)
    return result


def _section(section: Section, context: Context, result: Result) -> str:
    began_ns, fault = time.monotonic_ns(), ""
    rows: list[Row] = []
    try:
        for row in section.run(context):
            rows.append(row)  # noqa: PERF402 - those before an exception are kept
    except Exception as error:  # noqa: BLE001 - a borrowed machine's other sections go on
        fault = f"stopped by {type(error).__name__}: {error}; "
    result.rows += rows
    seconds = (time.monotonic_ns() - began_ns) / 1e9
    counts = {"pass": 0, "fail": 0, "not-run": 0, "answers": 0}
    for row in rows:
        counts["answers" if isinstance(row, Answer) else row.outcome] += 1
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no row"
    ending = f"{fault}{words} in {seconds:.1f} s"
    if context.late:
        ending = f"stopped by its time: {ending}"
    result.sections.append((section.name, ending))
    return ending


def _chosen(only: tuple[str, ...]) -> tuple[Section, ...]:
    known = [section.name for section in SECTIONS]
    for name in only:
        if name not in known:
            raise UsageError(f"unknown section {name!r}; known: {', '.join(known)}")
    return tuple(section for section in SECTIONS if not only or section.name in only)


def _sources(result: Result) -> dict[str, Pairs]:
    """(path, SHA-256) of the import closure of every module that a row names, read once."""
    for row in result.rows:
        sides = {Answer: (), Check: ("side",), Sampled: ("baseline", "candidate")}[type(row)]
        for module in (getattr(row, side).target.partition(":")[0] for side in sides):
            if module not in result.sources:
                result.sources[module] = source_closure(PACKAGE_ROOT, module)
    return result.sources


def _write(device: Device, out: Path, result: Result, started_at: str, *, quick: bool) -> None:
    facts, telemetry = device.probe(), device.telemetry()
    answers = [row for row in result.rows if isinstance(row, Answer)]
    node = environment(
        device=device.name,
        device_name=facts.device_name,
        device_count=facts.count,
        threads=torch.get_num_threads(),
        probes=tuple((row.question, row.answer) for row in answers if row.section == "arithmetic"),
        libraries=facts.libraries,
        missing=tuple(sorted({*facts.missing, *telemetry.missing})),
    )
    about = {
        "started_at": started_at,
        "written_at": utc_now(),
        "quick": quick,
        "environment": asdict(node),
        "harness": asdict(harness()),
        "device": {**asdict(facts), "telemetry": asdict(telemetry)},
        "sections": result.sections,
        "sources": _sources(result),
    }
    write(out, "device.json", about)
    for name, rows in (
        ("checks.json", [row for row in result.rows if isinstance(row, Check)]),
        ("timings.json", [row for row in result.rows if isinstance(row, Sampled)]),
        ("answers.json", answers),
    ):
        write(out, name, {"rows": [plain(row) for row in rows]})
