"""The stages of `bitgate run`: boundary, micro, served, promote or reject.

No stage runs after a failure. Every workload of a run ends as one record, whatever happened; a lane
changes only through the promotion policy, which judges what was stored.
"""

import time
from dataclasses import dataclass
from typing import Literal, cast

from bitgate.bench.effect import EffectReport
from bitgate.bench.findings import (
    Finding,
    StageOutcome,
    fail_all,
    judge,
    micro_answer,
    stop,
)
from bitgate.bench.plan import require_rounds
from bitgate.bench.process import ChildFailed
from bitgate.bench.recheck import recheck
from bitgate.bench.resolve import Job, resolve
from bitgate.bench.resume import RunState
from bitgate.bench.rounds import findings_of, time_all
from bitgate.bench.rows import declare, store
from bitgate.bench.witness import TimingRefused
from bitgate.parity import gates
from bitgate.parity.gates.base import Progress
from bitgate.parity.gates.resolve import resolve as gates_of
from bitgate.records.candidate_file import CandidateFile
from bitgate.records.chain import Entry
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.lanes import current_baseline
from bitgate.records.ledger import Ledger
from bitgate.records.policy import PromotionRefused, promote
from bitgate.records.types import (
    Candidate,
    Decision,
    GateResult,
    Record,
    Verdict,
    Workload,
)
from bitgate.records.writer import Writer

Ending = Literal["promoted", "opened", "passed", "rejected", "inconclusive", "invalid"]

_EXIT = {"pass": 0, "not-run": 0, "fail": 1, "inconclusive": 3, "unfit": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage's answer."""

    name: str
    outcome: StageOutcome
    reason: str
    seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one workload ended: its record, and what the policy made of it.

    `refused` says that it could have stood in its lane and the policy found something missing.
    """

    workload: Workload
    entry: Entry[Record]
    effect: EffectReport | None
    ending: Ending
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run; `rows` has one entry per workload."""

    candidate: Candidate
    verdict: Verdict
    stages: tuple[Stage, ...]
    rows: tuple[Row, ...]
    reused: tuple[str, ...]

    @property
    def entries(self) -> list[Entry[Record]]:
        """The ledger's entries of this run."""
        return [row.entry for row in self.rows]

    @property
    def exit_code(self) -> int:
        """0 unless a stage did not pass: 1 failed, 3 inconclusive, 4 unfit."""
        return next((_EXIT[one.outcome] for one in self.stages if _EXIT[one.outcome]), 0)


def run_candidate(
    file: CandidateFile,
    ledger: Ledger,
    *,
    author: str,
    progress: Progress,
    resume: bool = False,
    open_lane: bool = False,
) -> RunReport:
    """Take a candidate through its stages and append one record per workload.

    Args:
        file: what to run.
        ledger: where records, evidence and decisions go; beside it lies what `resume` reads.
        author: who answers for the decisions.
        progress: told (what, done, total) as the work goes on.
        resume: use passed gates of an earlier run with the same identity again.
        open_lane: without a baseline, make this candidate the first of its lanes.

    Raises:
        UsageError: the file names what is not there, or a retry lacks what its rejection asked for.
        EnvironmentUnfit: this node cannot run it.
    """
    if open_lane and file.baseline is not None:
        raise UsageError(
            "--open-lane makes the candidate its lanes' first baseline: remove the baseline "
            "from the file, or leave the option out"
        )
    require_rounds(file)
    job = resolve(file, ledger)
    _require_reopening(job, ledger)
    if open_lane:
        _require_closed_lane(job, ledger)
    writer = ledger.writer()
    if open_lane:
        declare(job, writer)
    stages: list[Stage] = []
    verdict, reused = _boundary(job, ledger, stages, resume=resume, progress=progress)
    findings = findings_of(job)
    if verdict.passed:
        _micro(job, ledger, findings, stages, progress)
        stages.append(Stage(name="served", outcome="not-run", reason="not configured"))
    else:
        fail_all(findings, verdict)
        stages.append(Stage(name="micro", outcome="not-run", reason="stopped at boundary"))
        stages.append(Stage(name="served", outcome="not-run", reason="stopped at boundary"))
    entries = store(job, verdict, findings, writer)
    rows = tuple(
        _decide(finding, entry, writer, author=author, open_lane=open_lane)
        for finding, entry in zip(findings, entries, strict=True)
    )
    stages.append(_promotion(rows))
    return RunReport(
        candidate=job.subject.candidate,
        verdict=verdict,
        stages=tuple(stages),
        rows=rows,
        reused=reused,
    )


def judge_candidate(file: CandidateFile, ledger: Ledger, *, progress: Progress) -> Verdict:
    """Run a candidate's gates alone; `run_candidate` with `resume` uses what passed again.

    Nothing is timed, so several may be judged at once. Arguments and errors as there.
    """
    task = gates_of(file)
    return gates.run(
        task.subject,
        workloads=task.workloads,
        bundle=task.bundle,
        budget=task.budget,
        put=ledger.put,
        progress=progress,
        keep=RunState(ledger, task.subject.candidate.digest).keep,
    )


# --- boundary ------------------------------------------------------------------------------------


def _require_closed_lane(job: Job, ledger: Ledger) -> None:
    """A lane is opened once: with all of them open there is nothing that the run could do."""
    if ledger.root.is_dir() and all(current_baseline(ledger, lane) for lane in job.lanes):
        raise UsageError(
            f"--open-lane: these lanes are open already: {'; '.join(job.lanes)}. Compare with "
            'their baseline instead: baseline = "promoted", without --open-lane'
        )


def _require_reopening(job: Job, ledger: Ledger) -> None:
    """A rejection that named what a retry needs is not overruled by trying again without it."""
    if job.bundle is not None or not ledger.root.is_dir():
        return
    for entry in ledger.records():
        record = entry.body
        same = record.candidate.digest == job.subject.candidate.digest
        if same and record.outcome == "rejected" and "G9" in record.reopen_requires:
            raise UsageError(
                f"record {entry.id[:12]} rejected this candidate ({record.reason}); a retry needs "
                "G9 on captured tensors: name a bundle in [workloads]"
            )


def _boundary(
    job: Job, ledger: Ledger, stages: list[Stage], *, resume: bool, progress: Progress
) -> tuple[Verdict, tuple[str, ...]]:
    started = time.monotonic()
    state = RunState(ledger, job.subject.candidate.digest)
    done = state.load() if resume else {}
    asked: list[str] = []

    def keep(key: str, result: GateResult) -> None:
        asked.append(result.gate)
        state.keep(key, result)

    verdict = gates.run(
        job.subject,
        workloads=job.workloads,
        bundle=job.bundle,
        budget=job.budget,
        put=ledger.put,
        progress=progress,
        done=done,
        keep=keep,
    )
    passed = [result.gate for result in verdict.results if result.outcome == "pass"]
    reused = tuple(gate for gate in passed if gate not in asked)
    stages.append(_boundary_stage(verdict, reused, _seconds(started)))
    return verdict, reused


def _boundary_stage(verdict: Verdict, reused: tuple[str, ...], seconds: int) -> Stage:
    failure = verdict.first_failure
    if verdict.passed:
        again = f"; used again from an earlier run: {', '.join(reused)}" if reused else ""
        return Stage(
            name="boundary", outcome="pass", reason=f"{verdict.kind}{again}", seconds=seconds
        )
    failed = failure is not None and failure.outcome == "fail"
    reason = "no gate gave an answer" if failure is None else f"{failure.gate}: {failure.reason}"
    outcome: StageOutcome = "fail" if failed else "inconclusive"
    return Stage(name="boundary", outcome=outcome, reason=reason, seconds=seconds)


# --- micro ---------------------------------------------------------------------------------------


def _micro(
    job: Job, ledger: Ledger, findings: list[Finding], stages: list[Stage], progress: Progress
) -> None:
    started = time.monotonic()
    try:
        time_all(job, findings, progress)
    except TimingRefused as error:
        mine = error.side == "C"
        stop(findings, "rejected" if mine else "inconclusive", str(error))
        outcome: StageOutcome = "fail" if mine else "inconclusive"
        reason = str(error)
    except (ChildFailed, Inconclusive) as error:
        stop(findings, "inconclusive", str(error))
        outcome, reason = "inconclusive", str(error)
    else:
        for finding in findings:
            judge(finding, job, ledger)
        outcome, reason = micro_answer(findings)
    stages.append(Stage(name="micro", outcome=outcome, reason=reason, seconds=_seconds(started)))


# --- decisions ----------------------------------------------------------------------------------


def _decide(
    finding: Finding, entry: Entry[Record], writer: Writer, *, author: str, open_lane: bool
) -> Row:
    ending: Ending = cast("Ending", finding.outcome)
    reason = finding.reason
    refused = False
    wins = finding.effect is not None and finding.effect.effect == "FASTER"
    if finding.outcome == "passed" and (open_lane or (wins and finding.baseline is not None)):
        try:
            made = promote(writer, entry.id, recheck=recheck(), author=author, first=open_lane)
            ending, reason = _ending(made), f"{finding.reason}; {made.reason}"
        except PromotionRefused as error:
            refused = True
            reason = f"{finding.reason}; not promoted, missing: {'; '.join(error.missing)}"
    return Row(
        workload=finding.workload,
        entry=entry,
        effect=finding.effect,
        ending=ending,
        reason=reason,
        refused=refused,
    )


def _ending(decision: Decision) -> Ending:
    return "opened" if decision.kind == "opening-baseline" else "promoted"


def _promotion(rows: tuple[Row, ...]) -> Stage:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.ending] = counts.get(row.ending, 0) + 1
    summary = ", ".join(f"{count} {ending}" for ending, count in counts.items())
    changed = any(row.ending in {"promoted", "opened"} for row in rows)
    refused = next((row.reason for row in rows if row.refused), None)
    return Stage(
        name="promote" if changed else "no promotion",
        outcome="pass" if refused is None else "fail",
        reason=summary if refused is None else f"{summary}; refused: {refused}",
    )


def _seconds(started: float) -> int:
    return round(time.monotonic() - started)
