"""From the texts of a candidate file to the things that they name, or an error that says which."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from bitgate.bench.effect import NULL_ALPHA
from bitgate.kernels.devices import device
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.roundings import across
from bitgate.parity.bundle import Bundle
from bitgate.parity.gates import Budget, Subject
from bitgate.parity.gates import resolve as gates
from bitgate.parity.gates.resolve import Identified
from bitgate.records import provenance
from bitgate.records.candidate_file import PROMOTED, CandidateFile, Side
from bitgate.records.closure import PACKAGE_ROOT
from bitgate.records.errors import UsageError
from bitgate.records.lanes import current_baseline, lane_id
from bitgate.records.ledger import Ledger
from bitgate.records.types import Candidate, Environment, Pairs, Plan, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a run needs, found and checked; nothing of the candidate has run yet.

    `baselines` holds one baseline per workload, in the same order; None where the run opens lanes.
    """

    file: CandidateFile
    subject: Subject
    workloads: tuple[Workload, ...]
    baselines: tuple[Identified | None, ...]
    bundle: Bundle | None
    budget: Budget
    plan: Plan

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lane of each workload."""
        return tuple(lane_id(self.subject.candidate.device, one) for one in self.workloads)


def resolve(file: CandidateFile, ledger: Ledger) -> Job:
    """Find everything that a candidate file names.

    Raises:
        UsageError: an operator, contract, suite, constant, lane or source file is not there, or
            the promoted baseline's sources have changed.
        EnvironmentUnfit: the device is not usable here.
        BundleError: the bundle does not verify.
    """
    kernel = gates.kernel_of(file.candidate)
    points = gates.workloads(file.workloads, kernel)
    gates.require_extents(gates.constants(kernel, file.candidate.config), points)
    mine = gates.identify(file.candidate)
    gates.require_tiles(mine.candidate, points)
    rivals = baselines(file, ledger, mine, points)
    return Job(
        file=file,
        subject=gates.subject(kernel, mine, rivals[0]),
        workloads=points,
        baselines=rivals,
        bundle=gates.bundle(file.workloads),
        budget=gates.budget(file.gates),
        plan=_plan(file),
    )


def environment_of(subject: Subject, probes: Pairs) -> Environment:
    """This node as the sides' processes see it: their switches, not those of this process."""
    facts = device(subject.candidate.device).require()
    seen = provenance.environment(
        device=facts.name,
        device_name=facts.device_name,
        device_count=facts.count,
        threads=subject.threads,
        probes=probes,
        libraries=facts.libraries,
        missing=facts.missing,
    )
    return replace(seen, switches=subject.candidate.switches)


def baselines(
    file: CandidateFile, ledger: Ledger, mine: Identified, points: tuple[Workload, ...]
) -> tuple[Identified | None, ...]:
    """What each workload is compared with; None where the run opens lanes.

    Raises:
        UsageError: a lane is not open, its baseline has other sources here, or the two sides
            cannot run under the same conditions.
    """
    if file.baseline is None:
        return (None,) * len(points)
    if isinstance(file.baseline, Side):
        rival = gates.identify(file.baseline)
        _require_same_conditions(mine.candidate, rival.candidate)
        return (rival,) * len(points)
    found, closed = [], []
    for workload in points:
        lane = lane_id(file.candidate.device, workload)
        record = current_baseline(ledger, lane) if ledger.root.is_dir() else None
        if record is None:
            closed.append(lane)
        else:
            rival = _again(record.candidate, file.candidate.root, lane)
            _require_same_conditions(mine.candidate, rival.candidate)
            found.append(rival)
    if closed:
        raise UsageError(
            f"baseline = {PROMOTED!r}: these lanes are not open in {ledger.root}: "
            f"{'; '.join(closed)}. Open them first: `bitgate run BASELINE.toml --open-lane` with "
            "the present implementation and without a baseline"
        )
    return tuple(found)


def _again(recorded: Candidate, root: Path, lane: str) -> Identified:
    """The promoted implementation as it lies here now; UsageError where it is another."""
    own = gates.is_own(recorded.implementation)
    place = PACKAGE_ROOT if own else root
    module = recorded.implementation.partition(":")[0]
    present = dict(provenance.source_closure(place, module))
    changed = sorted(
        path
        for path in present.keys() | dict(recorded.sources).keys()
        if present.get(path) != dict(recorded.sources).get(path)
    )
    if changed:
        raise UsageError(
            f"lane {lane}: its baseline {recorded.name} ({recorded.digest[:12]}) has other sources "
            f"here: {', '.join(changed)} below {place}. Restore them, or run the changed baseline "
            "as a candidate of its own"
        )
    return Identified(candidate=recorded, root=None if own else root)


def _require_same_conditions(mine: Candidate, rival: Candidate) -> None:
    """Both sides of a pair run in one process, with one set of constants, and give one's bits."""
    if mine.contract != rival.contract:
        told = across(mine.contract, rival.contract)
        raise UsageError(
            f"the baseline {rival.name} has another contract: {rival.contract}, the candidate: "
            f"{mine.contract}. Give both the same{f'; {told}' if told else ''}"
        )
    for what, here, there in (
        ("config", tiles.without(mine.config), tiles.without(rival.config)),
        ("environment switches", mine.switches, rival.switches),
    ):
        if here != there:
            raise UsageError(
                f"the baseline {rival.name} has another {what}: {there}, the candidate: {here}. "
                "Both sides of a pair run under the same; change one of them"
            )


def _plan(file: CandidateFile) -> Plan:
    settings = file.bench
    seed = settings.order_seed
    return Plan(
        regime=settings.regime,
        rounds=settings.rounds,
        processes=settings.processes,
        calls_per_sample=1,
        margin=settings.margin,
        # Without a baseline the candidate is timed against itself, and a claim would be an alarm.
        alpha=NULL_ALPHA if file.baseline is None else settings.alpha,
        # Rows hold integers below 2**53 only.
        order_seed=secrets.randbits(52) if seed is None else seed,
    )
