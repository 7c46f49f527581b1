"""From compared cases to a gate's result, with its evidence stored."""

from collections.abc import Sequence

from bitgate.parity.bounds import percent
from bitgate.parity.gates.classify import classify
from bitgate.parity.gates.evidence import MEDIA, Case, Control, Document, blind
from bitgate.parity.gates.session import Session
from bitgate.parity.gates.sweep import Step, Sweep
from bitgate.records.types import GateOutcome, GateResult

BOUNDARY_UNITS = frozenset({"boundary execution", "captured boundary"})


def document(
    session: Session,
    gate: tuple[str, int],
    *,
    unit: str | None,
    expected: int,
    cases: tuple[Case, ...],
    controls: tuple[Control, ...] = (),
) -> Document:
    """The evidence of one gate, named by its id and version, about this session's subject.

    Bounds are scaled to tokens where the unit is a boundary's execution.
    """
    subject = session.subject
    return Document(
        gate=gate[0],
        version=gate[1],
        subject={
            "candidate": subject.candidate.digest,
            "op": subject.kernel.op,
            "contract": subject.candidate.contract,
            "reference": subject.reference.name,
            "workloads": [workload.key for workload in session.workloads],
            "bundle": None if session.bundle is None else session.bundle.sha256,
        },
        expected=expected,
        confidence=session.budget.confidence,
        boundaries=session.budget.boundaries if unit in BOUNDARY_UNITS else None,
        unit=unit,
        cases=cases,
        controls=controls,
    )


def conclude(session: Session, proof: Document, swept: Sweep, steps: Sequence[Step]) -> GateResult:
    """Fail with the kind of the first failure, or what `clean` says.

    Raises:
        WorkerTimeout: a replay that should tell the kind did not answer.
    """
    failure = swept.failure
    if failure is None:
        return clean(session, proof)
    kind, why = classify(session, steps, swept.observed, failure)
    return GateResult(
        gate=proof.gate,
        version=proof.version,
        outcome="fail",
        reason=f"{failure.kind}: {failure.text}; {why}",
        compared=len(proof.cases),
        expected=proof.expected,
        finding=kind,
        culprit=failure.text,
        mismatch=failure.mismatch,
        evidence=session.put(proof.encode(), MEDIA),
    )


def clean(session: Session, proof: Document) -> GateResult:
    """Pass with the proven bounds, unless the comparison was blind or incomplete."""
    missed = blind(proof)
    if missed:
        reason = (
            f"these wrong answers look right on the data: {', '.join(missed)}; "
            "choose workloads whose results vary"
        )
        return without_answer(proof.gate, proof.version, "inconclusive", reason, proof)
    if not proof.cases or len(proof.cases) != proof.expected:
        reason = f"compared {len(proof.cases)} of {proof.expected} cases; nothing passes by absence"
        return without_answer(proof.gate, proof.version, "inconclusive", reason, proof)
    bounds = proof.bounds()
    proven = "".join(
        f"; at most {percent(bound)} per {bound.unit} at {bound.confidence}" for bound in bounds
    )
    return GateResult(
        gate=proof.gate,
        version=proof.version,
        outcome="pass",
        reason=f"{len(proof.cases)} of {proof.expected} cases equal{proven}",
        compared=len(proof.cases),
        expected=proof.expected,
        bounds=bounds,
        evidence=session.put(proof.encode(), MEDIA),
    )


def without_answer(
    gate: str, version: int, outcome: GateOutcome, reason: str, proof: Document | None = None
) -> GateResult:
    """A result that decides nothing, with the reason."""
    return GateResult(
        gate=gate,
        version=version,
        outcome=outcome,
        reason=reason,
        compared=0 if proof is None else len(proof.cases),
        expected=0 if proof is None else proof.expected,
        finding="not-run" if outcome == "not-run" else "inconclusive",
    )
