"""Which rounds are timed: a workload against its lane's baseline, those of one baseline at once."""

from collections.abc import Iterator
from dataclasses import replace

from bitgate.bench.effect import effect
from bitgate.bench.findings import Finding
from bitgate.bench.plan import require_rounds
from bitgate.bench.resolve import Job, resolve
from bitgate.bench.session import Timed, measure
from bitgate.bench.sides import Contest
from bitgate.kernels.moe.tiles import of_config
from bitgate.parity.gates.base import Progress
from bitgate.parity.gates.resolve import tile_notes
from bitgate.records.candidate_file import CandidateFile
from bitgate.records.ledger import Ledger
from bitgate.records.types import Workload


def findings_of(job: Job) -> list[Finding]:
    """What is known of each workload before anything was asked: its lane, baseline and tiles."""
    return [
        Finding(
            workload=one,
            lane=lane,
            baseline=baseline,
            outcome="passed",
            reason="",
            notes=list(tile_notes(job.subject.candidate, one)),
        )
        for one, lane, baseline in zip(job.workloads, job.lanes, job.baselines, strict=True)
    ]


def time_all(job: Job, findings: list[Finding], progress: Progress) -> None:
    """Time every workload and note its measurement, effect and notes in its finding.

    Raises:
        TimingRefused: a timed output was wrong, or a side tampered with the process.
        ChildFailed: a child raised, died or was late.
        Inconclusive: no round could be kept, or a call is too short to be timed.
    """
    for group in _by_baseline(findings):
        _time_group(job, group, progress)


def time_only(
    file: CandidateFile, ledger: Ledger, *, progress: Progress
) -> list[tuple[Workload, Timed]]:
    """Time without gates and without a record; every timed output is still verified.

    The notes are those that a record would have.
    """
    require_rounds(file)
    job = resolve(file, ledger)
    findings = findings_of(job)
    time_all(job, findings, progress)
    return [
        (one.workload, replace(one.timed, notes=tuple(one.notes)))
        for one in findings
        if one.timed is not None
    ]


def _by_baseline(findings: list[Finding]) -> Iterator[list[Finding]]:
    """Workloads with one baseline are timed in the same processes."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        digest = "" if finding.baseline is None else finding.baseline.candidate.digest
        groups.setdefault(digest, []).append(finding)
    yield from groups.values()


def _time_group(job: Job, group: list[Finding], progress: Progress) -> None:
    subject, rival = job.subject, group[0].baseline
    contest = Contest(
        subject=subject,
        baseline_target=(rival.candidate if rival else subject.candidate).implementation,
        baseline_root=rival.root if rival else subject.root,
        baseline_tiles=of_config((rival.candidate if rival else subject.candidate).config),
    )
    timed = measure(
        contest,
        [finding.workload for finding in group],
        job.plan,
        timeout_s=job.file.bench.timeout_s,
        progress=progress,
    )
    for finding, (_, result) in zip(group, timed, strict=True):
        finding.timed = result
        finding.effect = effect(result.measurement)
        finding.notes += result.notes
