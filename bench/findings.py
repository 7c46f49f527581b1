"""What is known about each workload of a run, and what outcome and reason that gives its record."""

from dataclasses import dataclass, field
from typing import Literal

from bitgate.bench.effect import EffectReport
from bitgate.bench.resolve import Job
from bitgate.bench.session import Timed
from bitgate.parity.gates.resolve import Identified
from bitgate.records.lanes import declarations, make_lane, saving_shortfall
from bitgate.records.ledger import Ledger
from bitgate.records.types import Lane, Outcome, Verdict, Workload

StageOutcome = Literal["pass", "fail", "inconclusive", "unfit", "not-run"]

# Synthetic data did not bring these out before; a retry needs what the model really computes.
_NEEDS_CAPTURED = frozenset({"nondeterministic", "history-dependent"})


@dataclass(kw_only=True)
class Finding:
    """What is known about one workload on the way to its record."""

    workload: Workload
    lane: str
    baseline: Identified | None
    outcome: Outcome
    reason: str
    timed: Timed | None = None
    effect: EffectReport | None = None
    reopen_requires: tuple[str, ...] = ()
    notes: list[tuple[str, str]] = field(default_factory=list)


def fail_all(findings: list[Finding], verdict: Verdict) -> None:
    """Give every workload the outcome of a verdict that did not pass."""
    failure = verdict.first_failure
    failed = failure is not None and failure.outcome == "fail"
    reason = f"{verdict.kind}: no gate gave an answer"
    if failure is not None:
        reason = f"{verdict.kind}: {failure.gate}: {failure.reason}"
    for finding in findings:
        finding.outcome = "rejected" if failed else "inconclusive"
        finding.reason = reason
        finding.reopen_requires = ("G9",) if verdict.kind in _NEEDS_CAPTURED else ()


def stop(findings: list[Finding], outcome: Outcome, reason: str) -> None:
    """One workload's failure decides about the candidate; what was timed stays as evidence."""
    for finding in findings:
        finding.outcome, finding.reason = outcome, reason


def judge(finding: Finding, job: Job, ledger: Ledger) -> None:
    """Turn an effect into the record's outcome and reason."""
    report, timed = finding.effect, finding.timed
    if report is None or timed is None:
        raise AssertionError(f"{finding.workload.key} was not timed")
    codes = {code for code, _ in report.reasons}
    if report.effect == "INVALID":
        finding.outcome = "inconclusive" if codes == {"unfit"} else "invalid"
        finding.reason = report.summary
        return
    if finding.baseline is None:
        _judge_opening(finding, report)
        return
    short = _shortfall(finding, job, ledger) if report.effect == "FASTER" else None
    if short is not None:
        finding.outcome, finding.reason = "rejected", f"exact, killed: {short}"
    elif report.effect == "FASTER":
        finding.reason = f"exact and faster: {report.summary}"
    elif report.effect == "SLOWER":
        finding.outcome, finding.reason = "rejected", f"exact, slower: {report.summary}"
    else:
        finding.reason = f"exact, not faster: {report.summary}"


def _judge_opening(finding: Finding, report: EffectReport) -> None:
    """The candidate against itself: a claimed difference says that the session is unfit."""
    if report.effect in {"FASTER", "SLOWER"}:
        finding.outcome = "inconclusive"
        finding.reason = f"timed against itself it claims a difference: {report.summary}"
    else:
        finding.reason = f"exact; timed against itself: {report.summary}"


def _shortfall(finding: Finding, job: Job, ledger: Ledger) -> str | None:
    """Why the saving is below the kill criterion of the file or of the lane; None where not."""
    if finding.timed is None:
        return None
    measurement, wanted = finding.timed.measurement, job.file.bench.kill_below_saving_ns
    declared = [entry.body for entry in declarations(ledger, finding.lane)]
    if wanted is not None:
        declared.append(lane_of(job, finding.workload))
    return next((text for lane in declared if (text := saving_shortfall(lane, measurement))), None)


def micro_answer(findings: list[Finding]) -> tuple[StageOutcome, str]:
    """The stage's answer: it passes where at least one workload can stand in its lane."""
    counts: dict[str, int] = {}
    for finding in findings:
        name = finding.effect.effect if finding.effect else "none"
        counts[name] = counts.get(name, 0) + 1
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    outcomes = {finding.outcome for finding in findings}
    if "passed" in outcomes:
        return "pass", summary
    unfit = next((one for one in findings if one.outcome == "inconclusive"), None)
    if unfit is not None:
        return "unfit", f"{summary}; {unfit.reason}"
    return ("inconclusive" if "invalid" in outcomes else "fail"), summary


def lane_of(job: Job, workload: Workload) -> Lane:
    """The lane of a workload, with the kill criterion of the file."""
    saving = job.file.bench.kill_below_saving_ns
    return make_lane(
        job.subject.candidate.device,
        workload,
        kill_criterion=None if saving is None else str(saving),
    )
