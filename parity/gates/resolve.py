"""From a candidate file to what the gates need, or an error that says what it names wrongly."""

from dataclasses import dataclass
from pathlib import Path

import bitgate
from bitgate.kernels import catalogue
from bitgate.kernels.devices import device
from bitgate.kernels.spec import Implementation, Kernel
from bitgate.parity.bundle import Bundle
from bitgate.parity.gates.base import Budget, Subject
from bitgate.records import provenance
from bitgate.records.candidate_file import CandidateFile, GateSettings, Side, Workloads
from bitgate.records.errors import UsageError
from bitgate.records.ops import operator
from bitgate.records.types import Candidate, Pairs, Workload

_OWN_PREFIX = "bitgate."


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything that `run` is given; nothing of the candidate has run yet."""

    subject: Subject
    workloads: tuple[Workload, ...]
    bundle: Bundle | None
    budget: Budget


def resolve(file: CandidateFile) -> Task:
    """Find what a candidate file names.

    Raises:
        UsageError: an operator, contract, suite, constant or source file is not there.
        EnvironmentUnfit: the device is not usable here.
        BundleError: the bundle does not verify.
    """
    side = file.candidate
    kernel = catalogue.kernel(side.op)
    catalogue.contract(side.contract)
    device(side.device)
    candidate, root = identify(side)
    reference, reference_root = _reference(kernel, file)
    bundle = file.workloads.bundle
    subject = Subject(
        kernel=kernel,
        candidate=candidate,
        root=root,
        reference=reference,
        reference_root=reference_root,
        constants=constants(kernel, side.config),
        threads=int(dict(side.env).get("OMP_NUM_THREADS", "1")),
    )
    return Task(
        subject=subject,
        workloads=workloads(file.workloads, kernel),
        bundle=None if bundle is None else Bundle.open(bundle),
        budget=budget(file.gates),
    )


def identify(side: Side) -> tuple[Candidate, Path | None]:
    """A side's content identity, and its root (None: an implementation of this package)."""
    root = None if side.impl.startswith(_OWN_PREFIX) else side.root
    switches = dict(provenance.switches()) | dict(side.env)
    candidate = provenance.candidate(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        device=side.device,
        implementation=side.impl,
        root=root or Path(bitgate.__file__).parent.parent,
        config=side.config,
        switches=tuple(sorted(switches.items())),
    )
    return candidate, root


def workloads(settings: Workloads, kernel: Kernel) -> tuple[Workload, ...]:
    """The suite's workloads and the file's own shapes; the suite `default` where it names none."""
    found: list[Workload] = []
    if settings.suite is not None or not settings.shapes:
        name = settings.suite or "default"
        if name not in kernel.suites:
            known = ", ".join(sorted(kernel.suites))
            raise UsageError(f"[workloads] suite: {kernel.op} has no {name!r}; it has: {known}")
        found += kernel.suites[name]
    for shape in settings.shapes:
        for case in settings.cases:
            one = Workload(op=kernel.op, axes=shape, dtype=settings.dtype or "", case=case)
            operator(kernel.op).check(one)
            found.append(one)
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
        kind = type(known[name])
        try:
            known[name] = kind(text)
        except ValueError:
            raise UsageError(
                f"[candidate] config: {name} is of type {kind.__name__}, got {text!r}"
            ) from None
    return known


def budget(settings: GateSettings) -> Budget:
    """The budget that the [gates] section describes."""
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


def _reference(kernel: Kernel, file: CandidateFile) -> tuple[Implementation, Path | None]:
    """The kernel's own truth of the contract, else the baseline that the file describes."""
    contract = file.candidate.contract
    if contract in kernel.references:
        return catalogue.implementation(kernel.references[contract]), None
    side = file.baseline
    if not isinstance(side, Side):
        known = ", ".join(sorted(kernel.references))
        raise UsageError(
            f"{kernel.op} has no reference for the contract {contract!r} (it has: {known}); "
            "describe a [baseline] whose bits are the truth"
        )
    stand_in = Implementation(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        devices=(side.device,),
        target=side.impl,
        summary="the baseline",
    )
    return stand_in, None if side.impl.startswith(_OWN_PREFIX) else side.root
