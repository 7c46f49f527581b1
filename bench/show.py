"""How runs and plans are shown: the verdict first, then what it rests on. Torch-free."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from bitgate.records.codec import canonical
from bitgate.records.console import console, print_json, table

if TYPE_CHECKING:
    from bitgate.bench.plan import PlanReport
    from bitgate.bench.stages import RunReport
    from bitgate.records.types import GateResult, Mismatch


def plan(report: "PlanReport", *, as_json: bool) -> None:
    """Print what a run would do."""
    if as_json:
        facts = {
            "stages": [
                {"name": stage.name, "does": stage.does, "seconds": stage.seconds}
                for stage in report.stages
            ],
            "workloads": list(report.workloads),
            "missing": list(report.missing),
            "memory_bytes": report.memory_bytes,
            "records": list(report.records),
        }
        print_json(facts)
        return
    out = console()
    shown = table("plan; nothing was run", "stage", "what it does", "about")
    for stage in report.stages:
        shown.add_row(stage.name, escape(stage.does), f"{stage.seconds} s")
    out.print(shown)
    out.print(
        f"about {report.minutes} minutes, {report.memory_bytes / (1 << 30):.1f} GiB of memory"
    )
    out.print("would be recorded:")
    for record in report.records:
        out.print(f"  {escape(record)}")
    if not report.missing:
        out.print("nothing is missing")
        return
    out.print("missing:")
    for item in report.missing:
        out.print(f"  - {escape(item)}")


def run(report: "RunReport", again: str, ledger: Path, *, as_json: bool) -> None:
    """Print a run: how each workload ended, what was compared, where the evidence lies."""
    if as_json:
        print_json(_facts(report))
        return
    out = console()
    candidate = report.candidate
    ends = table(
        f"{escape(candidate.name)} ({candidate.digest[:12]}), {candidate.op}, {candidate.contract}",
        "workload",
        "ending",
        "record",
        "reason",
    )
    for row in report.rows:
        ends.add_row(
            escape(row.workload.key), row.ending, row.entry.id[:12], escape(_first_line(row.reason))
        )
    out.print(ends)
    stages = table("stages", "stage", "outcome", "seconds", "reason")
    for stage in report.stages:
        stages.add_row(
            stage.name, stage.outcome, str(stage.seconds), escape(_first_line(stage.reason))
        )
    out.print(stages)
    gates = table("gates", "gate", "outcome", "compared", "reason")
    for result in report.verdict.results:
        gates.add_row(
            result.gate,
            result.outcome,
            f"{result.compared} of {result.expected}",
            escape(_first_line(result.reason)),
        )
    out.print(gates)
    out.print(f"coverage: {escape(report.verdict.coverage)}")
    failure = report.verdict.first_failure
    if failure is not None:
        _failure(failure)
    for result in report.verdict.results:
        if result.evidence is not None:
            _whole(f"evidence of {result.gate}: {_object(ledger, result)}")
    _whole(f"again: {again}")


def _failure(failure: "GateResult") -> None:
    _whole(f"first failure: {failure.gate}: {failure.reason}")
    if failure.culprit:
        _whole(f"culprit: {failure.culprit}")
    if failure.mismatch is not None:
        _whole(f"first mismatch: {mismatch_line(failure.mismatch)}")


def _whole(text: str) -> None:
    """Print a line that one may want to copy, so without folding it."""
    console().print(text, markup=False, soft_wrap=True)


def mismatch_line(mismatch: "Mismatch") -> str:
    """Tensor, index, both bit patterns, ULPs and counts of one mismatch."""
    if mismatch.first_index is None:
        return f"{mismatch.tensor}: {mismatch.kind}: {mismatch.detail}"
    hints = f"; {', '.join(mismatch.hints)}" if mismatch.hints else ""
    return (
        f"{mismatch.tensor}{list(mismatch.first_index)}: expected {mismatch.expected_bits}, got "
        f"{mismatch.actual_bits}, max {mismatch.max_ulp} ULP, {mismatch.differing} of "
        f"{mismatch.total} differ{hints}"
    )


def _facts(report: "RunReport") -> dict[str, Any]:
    return {
        "candidate": {"name": report.candidate.name, "digest": report.candidate.digest},
        "verdict": json.loads(canonical(report.verdict)),
        "stages": [
            {
                "name": stage.name,
                "outcome": stage.outcome,
                "reason": stage.reason,
                "seconds": stage.seconds,
            }
            for stage in report.stages
        ],
        "rows": [
            {
                "workload": row.workload.key,
                "lane": row.entry.body.lane,
                "record": row.entry.id,
                "ending": row.ending,
                "reason": row.reason,
                "effect": None if row.effect is None else row.effect.effect,
            }
            for row in report.rows
        ],
        "reused": list(report.reused),
        "exit_code": report.exit_code,
    }


def _object(ledger: Path, result: "GateResult") -> Path:
    """Where the ledger keeps a piece of evidence."""
    sha256 = result.evidence.sha256 if result.evidence else ""
    return ledger / "objects" / sha256[:2] / sha256


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
