"""The rows of a run: its lanes before anything is measured, one record per workload after it."""

from functools import cache
from typing import cast

from bitgate.bench.findings import Finding, lane_of
from bitgate.bench.resolve import Job, environment_of
from bitgate.kernels import probes
from bitgate.records.chain import Entry
from bitgate.records.clock import utc_now
from bitgate.records.provenance import harness
from bitgate.records.types import Pairs, Record, Verdict
from bitgate.records.writer import Writer


def declare(job: Job, writer: Writer) -> None:
    """Declare the lanes before anything is measured in them."""
    known = {entry.body.id for entry in writer.ledger.lanes()}
    rows = [lane_of(job, one) for one in job.workloads]
    writer.append_many([row for row in rows if row.id not in known])


@cache
def _probed(device: str) -> Pairs:
    """What the device's arithmetic does; it stays so while this process lives."""
    return probes.run(device)


def store(
    job: Job, verdict: Verdict, findings: list[Finding], writer: Writer
) -> list[Entry[Record]]:
    """Append all records of the run, or none."""
    environment = environment_of(job.subject, _probed(job.subject.candidate.device))
    tool, now = harness(), utc_now()
    records = [
        Record(
            created_at=now,
            lane=finding.lane,
            candidate=job.subject.candidate,
            baseline=None if finding.baseline is None else finding.baseline.candidate,
            workload=finding.workload,
            bundle_sha256=None if job.bundle is None else job.bundle.sha256,
            environment=environment,
            harness=tool,
            verdict=verdict,
            outcome=finding.outcome,
            reason=finding.reason,
            measurement=None if finding.timed is None else finding.timed.measurement,
            effect=None if finding.effect is None else finding.effect.effect,
            reopen_requires=finding.reopen_requires,
            notes=tuple(sorted(finding.notes)),
        )
        for finding in findings
    ]
    return [cast("Entry[Record]", entry) for entry in writer.append_many(list(records))]
