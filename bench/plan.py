"""`bitgate run --plan`: what would happen, what is missing, what would be recorded."""

from collections.abc import Callable
from dataclasses import dataclass

from bitgate.bench.effect import NULL_ROUNDS
from bitgate.bench.resolve import baselines
from bitgate.bench.session import WARM_ROUNDS
from bitgate.kernels import catalogue
from bitgate.kernels.devices import device
from bitgate.kernels.spec import Kernel
from bitgate.parity.bundle import Bundle
from bitgate.parity.gates.resolve import constants, identify, require_tiles, workloads
from bitgate.records.candidate_file import CandidateFile
from bitgate.records.errors import BitgateError, UsageError
from bitgate.records.lanes import current_baseline, lane_id
from bitgate.records.ledger import Ledger
from bitgate.records.ops import bytes_of
from bitgate.records.stats import median_ns
from bitgate.records.types import Workload

# Seconds as measured on two cores of a server: a fresh process with torch, and what a request to
# it costs beside the call itself (inputs, reference, comparison).
_START_S = 3.0
_REQUEST_S = 0.03
_PROCESS_BYTES = 500 << 20
# Inputs of a round, their copies for both sides, the outputs, and what is kept alive.
_COPIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One stage: what it does and about how long it takes."""

    name: str
    does: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The whole plan. `missing` is empty where the run could start now."""

    stages: tuple[PlannedStage, ...]
    workloads: tuple[str, ...]
    missing: tuple[str, ...]
    memory_bytes: int
    records: tuple[str, ...]

    @property
    def minutes(self) -> str:
        """The estimated duration in minutes, with one decimal."""
        return f"{sum(stage.seconds for stage in self.stages) / 60:.1f}"


def plan_run(file: CandidateFile, ledger: Ledger, *, open_lane: bool) -> PlanReport:
    """Look at everything that a run needs, without running any of it.

    Raises:
        UsageError: the operator or its workloads are unknown, so that nothing can be planned.
    """
    kernel = catalogue.kernel(file.candidate.op)
    points = workloads(file.workloads, kernel)
    lanes = [lane_id(file.candidate.device, one) for one in points]
    call_s = max((_call_s(ledger, lane) for lane in lanes), default=0.0)
    return PlanReport(
        stages=(
            _boundary(file, len(points), call_s),
            _micro(file, len(points), call_s),
            PlannedStage(name="served", does="not-run: not configured", seconds=0),
            PlannedStage(name="promote or reject", does=_promotion(file, open_lane), seconds=10),
        ),
        workloads=tuple(one.key for one in points),
        missing=tuple(_missing(file, ledger, kernel, points)),
        memory_bytes=_memory_bytes(file, points),
        records=tuple(f"one record in lane {lane}" for lane in lanes),
    )


def require_rounds(file: CandidateFile) -> None:
    """Raise UsageError where some processes would give no sample: that would be invalid."""
    settings = file.bench
    if settings.rounds < settings.processes:
        raise UsageError(
            f"{file.path}: [bench] rounds: expected at least one for each of {settings.processes} "
            f"processes, got {settings.rounds}; raise rounds or lower processes"
        )


def _boundary(file: CandidateFile, count: int, call_s: float) -> PlannedStage:
    settings = file.gates
    calls = count * settings.cases * (settings.repeats + 1) + count * settings.processes * 8
    return PlannedStage(
        name="boundary",
        does=f"gates over {count} workloads: {settings.cases} changed inputs, {settings.repeats} "
        f"repeats, {settings.processes} fresh processes, and every captured tensor",
        seconds=round((settings.processes + 4) * _START_S + calls * (_REQUEST_S + call_s)),
    )


def _micro(file: CandidateFile, count: int, call_s: float) -> PlannedStage:
    settings = file.bench
    rounds = settings.rounds + NULL_ROUNDS + WARM_ROUNDS
    return PlannedStage(
        name="micro",
        does=f"{settings.rounds} coin-flipped pairs per workload in {settings.processes} "
        f"processes ({settings.regime}, margin {settings.margin}), and the baseline against itself",
        seconds=round(settings.processes * _START_S + count * rounds * (_REQUEST_S + 4 * call_s)),
    )


def _promotion(file: CandidateFile, open_lane: bool) -> str:  # noqa: FBT001 - the option itself
    if open_lane:
        return "opens the lanes, without a claim of speed"
    if file.baseline is None:
        return "records only; --open-lane would open the lanes"
    return "promotes what is FASTER, as the policy allows"


def _missing(
    file: CandidateFile, ledger: Ledger, kernel: Kernel, points: tuple[Workload, ...]
) -> list[str]:
    """Every obstacle, each found on its own, so that one look shows them all."""
    checks: list[Callable[[], object]] = [
        lambda: require_rounds(file),
        lambda: catalogue.contract(file.candidate.contract),
        lambda: device(file.candidate.device),
        lambda: constants(kernel, file.candidate.config),
        lambda: require_tiles(identify(file.candidate).candidate, points),
        lambda: baselines(file, ledger, identify(file.candidate), points),
    ]
    found = []
    for check in checks:
        try:
            check()
        except BitgateError as error:
            found.append(str(error))
    return found + _missing_bundle(file, kernel)


def _missing_bundle(file: CandidateFile, kernel: Kernel) -> list[str]:
    path = file.workloads.bundle
    if path is None:
        return ["no bundle: G9 will block; write one with `bitgate capture` and name it"]
    try:
        bundle = Bundle.open(path)
    except BitgateError as error:
        return [str(error)]
    if not any(frame.op == kernel.op and frame.kept for frame in bundle.frames()):
        return [f"bundle {path}: it keeps no tensor of {kernel.op}; G9 will block"]
    return []


def _call_s(ledger: Ledger, lane: str) -> float:
    """A call's duration as the lane's baseline was measured; 0 where nothing is known."""
    record = current_baseline(ledger, lane) if ledger.root.is_dir() else None
    if record is None or record.measurement is None:
        return 0.0
    return median_ns(record.measurement.candidate_ns) / 1e9


def _memory_bytes(file: CandidateFile, points: tuple[Workload, ...]) -> int:
    processes = file.bench.processes + 2
    return processes * (_PROCESS_BYTES + _COPIES * max(bytes_of(one) for one in points))
