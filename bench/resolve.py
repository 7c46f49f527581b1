"""From the texts of a candidate file to the things that they name, or an error that says which."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import bitgate
from bitgate.bench.effect import NULL_ALPHA
from bitgate.kernels import catalogue
from bitgate.kernels.devices import device
from bitgate.kernels.spec import Implementation, Kernel
from bitgate.parity.bundle import Bundle
from bitgate.parity.gates import Budget, Subject
from bitgate.records import provenance
from bitgate.records.candidate_file import PROMOTED, CandidateFile, Side
from bitgate.records.candidate_file import Workloads as WorkloadSettings
from bitgate.records.errors import UsageError
from bitgate.records.lanes import current_baseline, lane_id
from bitgate.records.ledger import Ledger
from bitgate.records.ops import operator
from bitgate.records.types import Candidate, Environment, Pairs, Plan, Workload

_THREADS = "OMP_NUM_THREADS"
_OWN_PREFIX = "bitgate."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A side with its identity; `root` is None for an implementation of this package."""

    candidate: Candidate
    root: Path | None


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
    kernel = catalogue.kernel(file.candidate.op)
    catalogue.contract(file.candidate.contract)
    device(file.candidate.device)
    points = workloads(file.workloads, kernel)
    mine = identify(file.candidate)
    rivals = baselines(file, ledger, mine, points)
    bundle = None if file.workloads.bundle is None else Bundle.open(file.workloads.bundle)
    reference, root = _reference(kernel, file.candidate.contract, rivals[0])
    return Job(
        file=file,
        subject=Subject(
            kernel=kernel,
            candidate=mine.candidate,
            root=mine.root,
            reference=reference,
            reference_root=root,
            constants=constants(kernel, file.candidate.config),
            threads=int(dict(file.candidate.env).get(_THREADS, "1")),
        ),
        workloads=points,
        baselines=rivals,
        bundle=bundle,
        budget=_budget(file),
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


def identify(side: Side) -> Identified:
    """The content identity of one side."""
    root = None if side.impl.startswith(_OWN_PREFIX) else side.root
    candidate = provenance.candidate(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        device=side.device,
        implementation=side.impl,
        root=root or _package_root(),
        config=side.config,
        switches=tuple(sorted((dict(provenance.switches()) | dict(side.env)).items())),
    )
    return Identified(candidate=candidate, root=root)


def workloads(settings: WorkloadSettings, kernel: Kernel) -> tuple[Workload, ...]:
    """The suite's workloads, then the file's own shapes with every kind of data.

    Without either it is the suite called default.
    """
    found: list[Workload] = []
    if settings.suite is not None or not settings.shapes:
        found += _suite(settings.suite or "default", kernel)
    for shape in settings.shapes:
        for case in settings.cases:
            workload = Workload(op=kernel.op, axes=shape, dtype=settings.dtype or "", case=case)
            operator(kernel.op).check(workload)
            _require_kernel_axes(workload, kernel)
            found.append(workload)
    return tuple(dict.fromkeys(found))


def constants(kernel: Kernel, config: Pairs) -> dict[str, float | int]:
    """The operator's constants, with those that the candidate's config changes."""
    known = dict(kernel.constants)
    for name, text in config:
        if name not in known:
            raise UsageError(
                f"[candidate] config: {kernel.op} has no constant {name!r}; "
                f"it has: {', '.join(known) or 'none'}"
            )
        try:
            known[name] = type(known[name])(text)
        except ValueError:
            kind = type(known[name]).__name__
            raise UsageError(
                f"[candidate] config: {name} is of type {kind}, got {text!r}"
            ) from None
    return known


def _suite(name: str, kernel: Kernel) -> tuple[Workload, ...]:
    if name not in kernel.suites:
        known = ", ".join(sorted(kernel.suites))
        raise UsageError(f"{kernel.op} has no suite {name!r}; it has: {known}")
    return kernel.suites[name]


def _require_kernel_axes(workload: Workload, kernel: Kernel) -> None:
    example = kernel.suites["default"][0]
    wanted, got = [name for name, _ in example.axes], [name for name, _ in workload.axes]
    if wanted != got or workload.dtype != example.dtype:
        raise UsageError(
            f"[workloads] shapes: {kernel.op} takes the axes {', '.join(wanted)} in "
            f"{example.dtype}, got {', '.join(got)} in {workload.dtype}"
        )


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
        rival = identify(file.baseline)
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
    own = recorded.implementation.startswith(_OWN_PREFIX)
    place = _package_root() if own else root
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
    """Both sides of a pair run in one process, with one set of constants."""
    for what, here, there in (
        ("contract", mine.contract, rival.contract),
        ("config", mine.config, rival.config),
        ("environment switches", mine.switches, rival.switches),
    ):
        if here != there:
            raise UsageError(
                f"the baseline {rival.name} has another {what}: {there}, the candidate: {here}. "
                "Both sides of a pair run under the same; change one of them"
            )


def _reference(
    kernel: Kernel, contract: str, baseline: Identified | None
) -> tuple[Implementation, Path | None]:
    """The kernel's own truth of the contract, else the baseline."""
    if contract in kernel.references:
        return catalogue.implementation(kernel.references[contract]), None
    if baseline is None:
        known = ", ".join(sorted(kernel.references))
        raise UsageError(
            f"{kernel.op} has no reference for the contract {contract!r} (it has: {known}); "
            "name a [baseline] whose bits are the truth"
        )
    side = baseline.candidate
    stand_in = Implementation(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        devices=(side.device,),
        target=side.implementation,
        summary="the baseline",
    )
    return stand_in, baseline.root


def _budget(file: CandidateFile) -> Budget:
    settings = file.gates
    return Budget(
        cases=settings.cases,
        repeats=settings.repeats,
        processes=settings.processes,
        confidence=settings.confidence,
        max_p=settings.max_p,
        boundaries=settings.boundaries,
        call_timeout_s=settings.timeout_s,
        start_timeout_s=settings.timeout_s,
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


def _package_root() -> Path:
    return Path(bitgate.__file__).parent.parent
