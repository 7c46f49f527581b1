"""All gates in their order, stopping at the first that does not pass."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import rfc8785
import torch

from bitgate.parity.bundle import Bundle
from bitgate.parity.gates.base import (
    Budget,
    Done,
    Gate,
    Launcher,
    Planned,
    Progress,
    Put,
    Subject,
)
from bitgate.parity.gates.catalogue import GATES, ORDER, PLANNED
from bitgate.parity.gates.g0_identity import changed_sources
from bitgate.parity.gates.g9_captured import uncompared_frames
from bitgate.parity.gates.result import without_answer
from bitgate.parity.gates.session import ReferenceUnfit, Session
from bitgate.parity.worker import Worker, WorkerError, WorkerTimeout
from bitgate.records.provenance import harness, source_closure
from bitgate.records.types import GateResult, Verdict, VerdictKind, Workload

Keep = Callable[[str, GateResult], None]


def _quiet(gate: str, done: int, total: int) -> None:
    """Report nothing."""


def run(  # noqa: PLR0913 - one keyword for each independent input
    subject: Subject,
    *,
    workloads: tuple[Workload, ...],
    bundle: Bundle | None,
    budget: Budget,
    put: Put,
    progress: Progress = _quiet,
    done: Done | None = None,
    keep: Keep | None = None,
    launcher: Launcher = Worker,
) -> Verdict:
    """Judge a candidate.

    Args:
        subject: the candidate and the implementation whose bits are its truth.
        workloads: the points that the gates G4 and G12 sample.
        bundle: the captured tensors for G9; without them the verdict cannot pass.
        budget: how much is run.
        put: stores evidence, such as `Ledger.put`.
        progress: told (gate, done, total) as the work goes on.
        done: passed results of earlier runs by `identity_key`; they are not run again.
        keep: told the `identity_key` and the result of each gate that was run, at once.
        launcher: starts a process with an implementation.

    Raises:
        EnvironmentUnfit: this node cannot run the candidate's device, or lacks torch.
    """
    results: dict[str, GateResult] = {}
    stopped: str | None = None
    session = Session(
        subject=subject,
        workloads=workloads,
        bundle=bundle,
        budget=budget,
        put=put,
        progress=progress,
        launcher=launcher,
    )
    with session:
        for gate in GATES:
            if stopped is not None:
                reason = f"stopped at {stopped}"
                results[gate.id] = without_answer(gate.id, gate.version, "not-run", reason)
                continue
            key = identity_key(gate, subject, workloads=workloads, bundle=bundle, budget=budget)
            earlier = _usable(gate, (done or {}).get(key))
            results[gate.id] = earlier or _ask(session, gate)
            if keep is not None and earlier is None:
                keep(key, results[gate.id])
            if results[gate.id].outcome != "pass":
                stopped = gate.id
    return _verdict(session, results)


def identity_key(
    gate: Gate,
    subject: Subject,
    *,
    workloads: tuple[Workload, ...],
    bundle: Bundle | None,
    budget: Budget,
) -> str:
    """SHA-256 over all that a gate's answer depends on; equal keys may share a passed result."""
    plain: dict[str, Any] = {
        "gate": [gate.id, gate.version],
        "candidate": subject.candidate.digest,
        "reference": [
            subject.reference.name,
            subject.reference.target,
            _reference_sources(subject),
        ],
        "contract": asdict(subject.claims),
        "constants": {name: repr(value) for name, value in subject.constants.items()},
        "threads": subject.threads,
        "workloads": [workload.key for workload in workloads],
        "bundle": None if bundle is None else bundle.sha256,
        "budget": {name: repr(value) for name, value in asdict(budget).items()},
        "torch": torch.__version__,
        "harness": harness().source_sha256,
    }
    return hashlib.sha256(rfc8785.dumps(plain)).hexdigest()


def _reference_sources(subject: Subject) -> list[list[str]]:
    """Its files; those of this package are covered by the harness's own digest."""
    if subject.reference_root is None:
        return []
    module = subject.reference.target.partition(":")[0]
    return [list(pair) for pair in source_closure(subject.reference_root, module)]


def _usable(gate: Gate, earlier: GateResult | None) -> GateResult | None:
    """An earlier result of this gate, if it passed."""
    if earlier is None or earlier.outcome != "pass":
        return None
    return earlier if (earlier.gate, earlier.version) == (gate.id, gate.version) else None


def _ask(session: Session, gate: Gate) -> GateResult:
    """One gate's answer; what is no answer becomes a result that decides nothing."""
    try:
        result = gate.check(session)
        changed = changed_sources(session.subject) if result.outcome == "pass" else None
        if changed is None:
            return result
        reason = f"{changed} changed while the gates ran; identify the candidate again"
        return _broken(gate, reason)
    except ReferenceUnfit as error:
        return without_answer(gate.id, gate.version, "inconclusive", str(error))
    except WorkerTimeout as error:
        return without_answer(gate.id, gate.version, "inconclusive", str(error))
    except WorkerError as error:
        # G0 has loaded it; a process in which it does not load is a failure of the candidate.
        return _broken(gate, str(error))


def _broken(gate: Gate, reason: str) -> GateResult:
    decided = without_answer(gate.id, gate.version, "inconclusive", reason)
    return replace(decided, outcome="fail")


def _verdict(session: Session, results: dict[str, GateResult]) -> Verdict:
    planned = {gate.id: _not_run(gate) for gate in PLANNED}
    ordered = tuple((results | planned)[name] for name in ORDER)
    proven = [result for result in ordered if result.outcome == "pass" and result.bounds]
    by_gate = {result.gate: result.bounds[0] for result in proven}
    return Verdict(
        kind=_kind(ordered, tuple(results)),
        required=tuple(results),
        results=ordered,
        bound=by_gate.get("G4", next(iter(by_gate.values()), None)),
        coverage=_coverage(session, ordered),
    )


def _kind(ordered: tuple[GateResult, ...], required: tuple[str, ...]) -> VerdictKind:
    mine = [result for result in ordered if result.gate in required]
    if all(result.outcome == "pass" for result in mine):
        return "exact"
    stop = next(result for result in mine if result.outcome != "pass")
    return stop.finding or "inconclusive"


def _coverage(session: Session, ordered: tuple[GateResult, ...]) -> str:
    passed = [result for result in ordered if result.outcome == "pass"]
    counts = ", ".join(f"{result.gate} {result.compared}" for result in passed) or "none"
    absent = ", ".join(result.gate for result in ordered if result.outcome == "not-run") or "none"
    bundle, op = session.bundle, session.subject.kernel.op
    uncompared = "" if bundle is None else uncompared_frames(bundle, op)
    return (
        f"{len(passed)} of {len(ordered)} gates passed over {len(session.workloads)} workloads "
        f"(cases: {counts}){uncompared}; not run: {absent}; the bounds hold for the sampled "
        "conditions only"
    )


def _not_run(gate: Planned) -> GateResult:
    return without_answer(gate.id, 1, "not-run", f"{gate.title}: {gate.reason}")
