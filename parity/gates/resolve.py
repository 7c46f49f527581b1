"""From the texts of a candidate file to what they name, or an error that says which is wrong."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bitgate.kernels import catalogue
from bitgate.kernels.devices import device
from bitgate.kernels.moe import configs, tiles
from bitgate.kernels.moe.tiles import TILES
from bitgate.kernels.spec import Constant, Constants, Implementation, Kernel
from bitgate.parity.bundle import Bundle
from bitgate.parity.gates.base import Budget, Subject
from bitgate.records import provenance
from bitgate.records.candidate_file import CandidateFile, GateSettings, Side, Workloads
from bitgate.records.closure import PACKAGE_ROOT, defined_names
from bitgate.records.errors import UsageError
from bitgate.records.ops import operator
from bitgate.records.types import Candidate, Pairs, Workload

_THREADS = "OMP_NUM_THREADS"
_OWN_PREFIX = "bitgate."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A side with its identity; `root` is None for an implementation of this package."""

    candidate: Candidate
    root: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything that `run` is given; nothing of the candidate has run yet."""

    subject: Subject
    workloads: tuple[Workload, ...]
    bundle: Bundle | None
    budget: Budget


def resolve(file: CandidateFile) -> Task:
    """Find what a candidate file names; of the baseline, only one that the file describes.

    Raises:
        UsageError: an operator, contract, suite, constant or source file is not there.
        EnvironmentUnfit: the device is not usable here.
        BundleError: the bundle does not verify.
    """
    kernel = kernel_of(file.candidate)
    points = workloads(file.workloads, kernel)
    require_extents(constants(kernel, file.candidate.config), points)
    mine = identify(file.candidate)
    require_tiles(mine.candidate, points)
    baseline = identify(file.baseline) if isinstance(file.baseline, Side) else None
    return Task(
        subject=subject(kernel, mine, baseline),
        workloads=points,
        bundle=bundle(file.workloads),
        budget=budget(file.gates),
    )


def kernel_of(side: Side) -> Kernel:
    """The kernel of a side whose contract and device are known too.

    Raises:
        UsageError: there is no such operator, contract or device.
    """
    catalogue.contract(side.contract)
    device(side.device)
    return catalogue.kernel(side.op)


def subject(kernel: Kernel, mine: Identified, baseline: Identified | None) -> Subject:
    """What the gates judge: the candidate, and the implementation whose bits are its truth.

    Raises:
        UsageError: the config changes a constant that is none, the thread count is none, or
            neither the kernel nor a baseline has bits of this contract.
    """
    candidate = mine.candidate
    reference, reference_root = _reference(kernel, candidate.contract, baseline)
    return Subject(
        kernel=kernel,
        candidate=candidate,
        root=mine.root,
        reference=reference,
        reference_root=reference_root,
        constants=constants(kernel, candidate.config),
        threads=_threads(candidate.switches),
    )


def identify(side: Side) -> Identified:
    """The content identity of one side, with the switches that its processes will see.

    Raises:
        UsageError: the module has no such function, its tiles cannot be read, or it takes none.
    """
    root = None if is_own(side.impl) else side.root
    # A process gets as many threads as its side asks for, whatever this process was told.
    switches = dict(provenance.switches()) | {_THREADS: "1"} | dict(side.env)
    candidate = provenance.candidate(
        name=side.name,
        op=side.op,
        contract=side.contract,
        tier=side.tier,
        device=side.device,
        implementation=side.impl,
        root=root or PACKAGE_ROOT,
        config=_config(side),
        switches=tuple(sorted(switches.items())),
    )
    _require_function(root or PACKAGE_ROOT, side.impl)
    return Identified(candidate=candidate, root=root)


def _config(side: Side) -> Pairs:
    """The changed constants, and the tiles where a file is named."""
    if TILES in dict(side.config):
        raise UsageError(
            f"config: {TILES} is no constant; name a file with {TILES} = ... beside config"
        )
    if side.tiles is None:
        return side.config
    own = _own(side.op, side.impl)
    if own is not None and not own.tiled:
        raise UsageError(
            f"{TILES}: {own.name} takes none; `bitgate kernels list --json` says which are tiled"
        )
    return tuple(sorted((*side.config, (TILES, tiles.packed(configs.read(side.tiles))))))


def require_tiles(candidate: Candidate, points: tuple[Workload, ...]) -> None:
    """Raise UsageError unless the candidate's tiles, if it has any, are those of the workloads."""
    text = tiles.of_config(candidate.config)
    for point in points if text else ():
        tiles.resolved(candidate.op, text, point)


def tile_notes(candidate: Candidate, workload: Workload) -> Pairs:
    """What a record says about the tiles; nothing where it is not known whether there are any."""
    text = tiles.of_config(candidate.config)
    if text:
        return tiles.notes(tiles.resolved(candidate.op, text, workload))
    own = _own(candidate.op, candidate.implementation)
    return tiles.default_notes(candidate.op) if own is not None and own.tiled else ()


def _own(op: str, target: str) -> Implementation | None:
    """The catalogue's implementation with this target."""
    return next((one for one in catalogue.kernel(op).implementations if one.target == target), None)


def _require_function(root: Path, implementation: str) -> None:
    """Refuse a misspelt function before anything is recorded about it."""
    module, _, function = implementation.partition(":")
    names = defined_names(root, module)
    wanted = function.partition(".")[0]
    if names is not None and wanted not in names:
        close = get_close_matches(wanted, sorted(names), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"impl = {implementation!r}: module {module} has no {wanted!r}{hint}")


def is_own(implementation: str) -> bool:
    """Whether a "module:function" is this package's own, wherever the candidate file lies."""
    return implementation.startswith(_OWN_PREFIX)


def workloads(settings: Workloads, kernel: Kernel) -> tuple[Workload, ...]:
    """The suite's workloads, then the file's own shapes with every kind of data.

    Without either it is the suite called default.

    Raises:
        UsageError: the kernel has no such suite, or a shape has other axes or another dtype.
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


def constants(kernel: Kernel, config: Pairs) -> dict[str, Constant]:
    """The operator's constants, with those that the candidate's config changes.

    Raises:
        UsageError: the operator has no such constant, or it is of another type.
    """
    known = dict(kernel.constants)
    for name, text in config:
        if name == TILES:
            continue
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


def require_extents(given: Constants, points: tuple[Workload, ...]) -> None:
    """Raise UsageError unless constants that are an axis of the workloads have its extent."""
    for point in points:
        for axis, extent in point.axes:
            if given.get(axis, extent) != extent:
                raise UsageError(
                    f"{point.key}: expected the constant {axis} to be the axis's {extent}, got "
                    f"{given[axis]}; change [candidate] config, or the shapes of [workloads]"
                )


def bundle(settings: Workloads) -> Bundle | None:
    """The bundle that the file names, verified. Raises BundleError where it does not verify."""
    return None if settings.bundle is None else Bundle.open(settings.bundle)


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


def _suite(name: str, kernel: Kernel) -> tuple[Workload, ...]:
    if name not in kernel.suites:
        known = ", ".join(sorted(kernel.suites))
        raise UsageError(f"[workloads] suite: {kernel.op} has no {name!r}; it has: {known}")
    return kernel.suites[name]


def _require_kernel_axes(workload: Workload, kernel: Kernel) -> None:
    example = kernel.suites["default"][0]
    wanted, got = [name for name, _ in example.axes], [name for name, _ in workload.axes]
    if wanted != got or workload.dtype != example.dtype:
        raise UsageError(
            f"[workloads] shapes: {kernel.op} takes the axes {', '.join(wanted)} in "
            f"{example.dtype}, got {', '.join(got)} in {workload.dtype}"
        )


def _threads(switches: Pairs) -> int:
    text = dict(switches).get(_THREADS, "1")
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"[candidate] env: {_THREADS} is the number of threads that each process may use; "
            f"expected a whole number of at least 1, got {text!r}"
        )
    return int(text)


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
            "describe a [baseline] whose bits are the truth"
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
