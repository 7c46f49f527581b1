"""From the files of a device check to records: comparisons as a verdict, times as raw samples.

A record stands for one implementation on one workload. Each section of the check that concerned it
is a gate of the record's verdict, named `device:SECTION`; the rows are its evidence. These gates
are none that the promotion policy asks for, so nothing is promoted by an import: outcome and reason
say what was found, on which machine.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from bitgate.bench.effect import effect
from bitgate.kernels.device_check.rows import ALPHA, FORMAT, MARGIN, Check, Sampled, Side
from bitgate.parity.bounds import bound
from bitgate.records.base import Value, require, require_sha256
from bitgate.records.clock import utc_now
from bitgate.records.codec import FormatError, canonical, decode
from bitgate.records.errors import UsageError
from bitgate.records.identity import candidate_digest
from bitgate.records.lanes import lane_id, make_lane
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.types import (
    Candidate,
    Environment,
    Evidence,
    GateResult,
    Harness,
    Measurement,
    Outcome,
    Pairs,
    Plan,
    Record,
    Verdict,
    Workload,
)

T = TypeVar("T", bound=Value)
R = TypeVar("R", Check, Sampled)

VERSION = 1
_MEDIA = "application/json"
_FILES = ("device.json", "checks.json", "timings.json")
_UNSET = "0" * 64
_STARTED = "device-check-started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A device check as it was read."""

    environment: Environment
    harness: Harness
    started_at: str
    unfinished: tuple[str, ...]
    sources: dict[str, Pairs]
    checks: tuple[Check, ...]
    timings: tuple[Sampled, ...]


def import_device_check(folder: Path, ledger: Ledger) -> list[Entry[Record]]:
    """Append a record for each implementation and workload of a device check, or none at all.

    Args:
        folder: what `scripts/device_check.py --out` wrote.
        ledger: where records, their lanes and the rows as evidence go.

    Raises:
        UsageError: a file is missing or is no device check, it checked nothing, or the ledger has
            it already: the same evidence twice would look like two.
    """
    found = read(folder)
    _refuse_twice(found, ledger, folder)
    subjects = _subjects(found)
    if not subjects:
        raise UsageError(f"{folder}: expected rows about implementations and workloads, got none")
    writer = ledger.writer()
    now = utc_now()
    rows = [_record(found, side, point, ledger, now) for side, point in subjects]
    known = {entry.body.id for entry in ledger.lanes()}
    lanes = {row.lane: make_lane(row.candidate.device, row.workload) for row in rows}
    writer.append_many([lane for name, lane in lanes.items() if name not in known])
    return [cast("Entry[Record]", entry) for entry in writer.append_many(list(rows))]


def read(folder: Path) -> Found:
    """The rows of a device check's folder. Raises UsageError that names the file and the row."""
    plain = {name: _plain(folder / name) for name in _FILES}
    place, about = folder / "device.json", plain["device.json"]
    return Found(
        environment=_decoded(Environment, _field(about, "environment", place), f"{place}"),
        harness=_decoded(Harness, _field(about, "harness", place), f"{place}"),
        started_at=str(_field(about, "started_at", place)),
        unfinished=_unfinished(_field(about, "sections", place), place),
        sources=_sources(_field(about, "sources", place), place),
        checks=tuple(_rows(plain, folder / "checks.json", Check)),
        timings=tuple(_rows(plain, folder / "timings.json", Sampled)),
    )


def _refuse_twice(found: Found, ledger: Ledger, folder: Path) -> None:
    mark = (_STARTED, found.started_at)
    records = ledger.records() if ledger.root.is_dir() else ()
    for entry in records:
        if mark in entry.body.notes and entry.body.environment == found.environment:
            raise UsageError(
                f"{folder}: this device check, started at {found.started_at}, is in the ledger "
                f"already as {entry.id[:12]} and others; run the check again for new evidence"
            )


def _unfinished(sections: Any, place: Path) -> tuple[str, ...]:
    """The sections that did not come to their end."""
    try:
        return tuple(name for name, ending in sections if ending.startswith("stopped"))
    except (AttributeError, TypeError, ValueError):
        raise UsageError(
            f"{place}: sections: expected pairs of name and ending, got {sections!r:.80}"
        ) from None


def _plain(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: expected a result file of scripts/device_check.py, got {error}; name the "
            "folder of its --out"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        got = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise UsageError(f"{path}: expected format {FORMAT}, got {got!r}")
    return content


def _field(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise UsageError(f"{path}: expected the field {key!r}, got none")
    return content[key]


def _decoded(kind: type[T], plain: Any, place: str) -> T:
    try:
        return decode(kind, json.dumps(plain).encode())
    except FormatError as error:
        raise UsageError(f"{place}: {error}") from None


def _sources(plain: Any, path: Path) -> dict[str, Pairs]:
    """(path, SHA-256) of the files of each module."""
    try:
        found = {module: tuple((name, sha) for name, sha in it) for module, it in plain.items()}
        for module, pairs in found.items():
            for name, sha in pairs:
                require(isinstance(name, str), f"{module}: expected paths, got {name!r:.80}")
                require_sha256(sha, f"{module}: {name}")
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: sources: expected pairs of path and SHA-256 by module, got {error}"
        ) from None
    return found


def _rows(plain: dict[str, Any], path: Path, kind: type[R]) -> Iterator[R]:
    """The rows of a file; each thing is compared once, and timed once."""
    rows, name = _field(plain[path.name], "rows", path), kind.__name__.lower()
    if not isinstance(rows, list):
        raise UsageError(f"{path}: expected a list of rows, got {rows!r:.80}")
    seen: dict[Any, int] = {}
    for number, row in enumerate(rows):
        place = f"{path}: row {number}"
        if not isinstance(row, dict) or row.get("kind") != name:
            raise UsageError(f"{place}: expected kind {name!r}, got {row!r:.80}")
        content = {key: value for key, value in row.items() if key != "kind"}
        found = _decoded(kind, content, place)
        earlier = seen.setdefault(_subject(found), number)
        if earlier != number:
            raise UsageError(f"{place}: expected each comparison once, got that of row {earlier}")
        yield found


def _subject(row: Check | Sampled) -> tuple[Any, ...]:
    if isinstance(row, Sampled):
        return row.candidate, row.workload
    return row.section, row.side, row.against, row.claim, row.workload, row.case


def _subjects(found: Found) -> list[tuple[Side, Workload]]:
    """Every implementation with every workload that a row gives it, in the order of the rows."""
    pairs = [(row.side, row.workload) for row in found.checks if row.workload is not None]
    pairs += [(row.candidate, row.workload) for row in found.timings]
    return list(dict.fromkeys(pairs))


def _record(found: Found, side: Side, point: Workload, ledger: Ledger, now: str) -> Record:
    timed = next(
        (row for row in found.timings if row.candidate == side and row.workload == point), None
    )
    verdict = _verdict(found, side, point, timed, ledger)
    candidate = _candidate(found, side)
    measurement = _measurement(timed) if timed is not None and verdict.passed else None
    outcome: Outcome = "reported" if verdict.passed else "rejected"
    reason = verdict.results[0].reason
    failure = verdict.first_failure
    if failure is not None:
        reason = f"{failure.gate}: {failure.reason}"
        outcome = "rejected" if failure.outcome == "fail" else "inconclusive"
    report = None if measurement is None else effect(measurement)
    if report is not None:
        reason = f"device check: {report.summary}"
    return Record(
        created_at=now,
        lane=lane_id(found.environment.device, point),
        candidate=candidate,
        baseline=_candidate(found, timed.baseline) if timed and measurement else None,
        workload=point,
        bundle_sha256=None,
        environment=found.environment,
        harness=found.harness,
        verdict=verdict,
        outcome=outcome,
        reason=reason,
        measurement=measurement,
        effect=None if report is None else report.effect,
        notes=tuple(
            sorted(((_STARTED, found.started_at), *(timed.published if timed is not None else ())))
        ),
    )


def _candidate(found: Found, side: Side) -> Candidate:
    module = side.target.partition(":")[0]
    if not found.sources.get(module):
        raise UsageError(
            f"device.json: expected the sources of {module}, which {side.name} needs to be "
            "identified, got none"
        )
    draft = Candidate(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        device=found.environment.device,
        implementation=side.target,
        sources=found.sources[module],
        config=side.config,
        switches=found.environment.switches,
        digest=_UNSET,
    )
    return replace(draft, digest=candidate_digest(draft))


def _verdict(
    found: Found, side: Side, point: Workload, timed: Sampled | None, ledger: Ledger
) -> Verdict:
    """One gate for each section that spoke of the implementation on this workload, or on all."""
    sections: dict[str, list[Check | Sampled]] = {}
    for row in found.checks:
        # A configuration belongs to a timing; fixtures have no workload and speak for all of them.
        if row.side.name == side.name and row.workload in (None, point):
            sections.setdefault(row.section, []).append(row)
    if timed is not None:
        sections.setdefault(timed.section, []).append(timed)
    results = tuple(_gate(name, rows, ledger) for name, rows in sections.items())
    passed = all(result.outcome == "pass" for result in results)
    failed = any(result.outcome == "fail" for result in results)
    trials = sum(result.compared for result in results)
    return Verdict(
        kind="exact" if passed else "deterministic-mismatch" if failed else "inconclusive",
        required=tuple(result.gate for result in results),
        results=results,
        bound=bound(0, trials, "comparison of a device check") if passed else None,
        coverage=(
            f"device check on {found.environment.device_name}: {', '.join(sorted(sections))}; "
            "synthetic inputs, no captured tensors, one process"
            + (
                f"; stopped before their end: {', '.join(found.unfinished)}"
                * bool(found.unfinished)
            )
        ),
    )


def _gate(section: str, rows: Sequence[Check | Sampled], ledger: Ledger) -> GateResult:
    passed = [row for row in rows if row.outcome == "pass"]
    wrong = next((row for row in rows if row.outcome == "fail"), None)
    absent = next((row for row in rows if row.outcome == "not-run"), None)
    first = wrong or absent
    reason = f"{len(passed)} of {len(rows)} comparisons passed"
    if first is not None:
        place = f" ({first.first})" if isinstance(first, Check) and first.first else ""
        reason = f"{first.reason}{place}"
    return GateResult(
        gate=f"device:{section}",
        version=VERSION,
        outcome="fail" if wrong else "not-run" if absent else "pass",
        reason=reason,
        compared=len(passed),
        expected=len(rows),
        finding=None if first is None else "deterministic-mismatch" if wrong else "not-run",
        evidence=_evidence(rows, ledger),
    )


def _evidence(rows: Sequence[Check | Sampled], ledger: Ledger) -> Evidence:
    lines = b"\n".join(canonical(row) for row in rows)
    return ledger.put(b"[" + lines.replace(b"\n", b",\n") + b"]\n", _MEDIA)


def _measurement(row: Sampled) -> Measurement:
    return Measurement(
        plan=Plan(
            regime=row.regime,
            rounds=len(row.order),
            processes=1,
            calls_per_sample=1,
            margin=MARGIN,
            alpha=ALPHA,
            order_seed=row.order_seed,
        ),
        timer=row.timer,
        resolution_ns=row.resolution_ns,
        baseline_ns=row.baseline_ns,
        candidate_ns=row.candidate_ns,
        order=row.order,
        process=(0,) * len(row.order),
        verified_outputs=row.verified_outputs,
        null_baseline_ns=row.null_baseline_ns,
        null_candidate_ns=row.null_candidate_ns,
        null_order=row.null_order,
    )
