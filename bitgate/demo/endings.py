"""How a candidate of the demo ended, and whether that is how it should."""

from dataclasses import dataclass

from bitgate.bench.stages import Row, RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """How a candidate of the demo ends: with promotions, or with one of these findings."""

    file: str
    findings: tuple[str, ...]
    promoted_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one candidate ended; `endings` are (workload, effect, ending).

    `unsettled` gives the reason of each workload whose timing proved nothing.
    """

    candidate: str
    finding: str
    endings: tuple[tuple[str, str, str], ...]
    reason: str
    unsettled: tuple[tuple[str, str], ...]
    evidence: tuple[tuple[str, str], ...]
    as_expected: bool


def ended(report: RunReport, expected: Expectation) -> Ended:
    """What became of the candidate in each of its workloads."""
    promoted = {row.workload.axis("tokens") for row in report.rows if row.ending == "promoted"}
    failure = report.verdict.first_failure
    reason = report.rows[-1].reason if failure is None else f"{failure.gate}: {failure.reason}"
    return Ended(
        candidate=report.candidate.name,
        finding=report.verdict.kind,
        endings=tuple((row.workload.key, _effect(row), row.ending) for row in report.rows),
        reason=reason,
        unsettled=tuple(
            (row.workload.key, row.reason)
            for row in report.rows
            if report.verdict.passed and row.ending in {"inconclusive", "invalid"}
        ),
        evidence=tuple(
            (result.gate, result.evidence.sha256)
            for result in report.verdict.results
            if result.evidence is not None
        ),
        as_expected=report.verdict.kind in expected.findings
        and promoted == set(expected.promoted_tokens)
        # Rejected for the bits that it gave, not because it could not run.
        and (failure is None or failure.mismatch is not None),
    )


def _effect(row: Row) -> str:
    if row.effect is None:
        return "not timed"
    if row.ending == "opened":
        return f"timed against itself, {row.effect.speedup[:4]}x"
    return f"{row.effect.effect}, {row.effect.speedup[:4]}x"
