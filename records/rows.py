"""The nouns of the ledger: who ran what where, how long it took, and what was decided."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal, get_args

from bitgate.records.base import Value, require, require_decimal, require_sha256, require_utc
from bitgate.records.proof import Evidence, Pairs, Tier, Verdict, Workload

Effect = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE", "INVALID"]
Regime = Literal["cold", "warm", "in_graph"]
Outcome = Literal["passed", "rejected", "inconclusive", "invalid", "reported"]
DecisionKind = Literal["opening-baseline", "promoted", "rejected"]

# How a price was had, from a measurement that fits to none at all.
PriceSource = Literal["exact", "interpolated", "extrapolated", "assumed"]
PRICE_SOURCES: Final[tuple[PriceSource, ...]] = get_args(PriceSource)


# --- who, what and where -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness(Value):
    """The measuring side: this project's own version, revision and state."""

    version: str
    commit: str | None
    dirty: bool
    source_sha256: str

    def __post_init__(self) -> None:
        require_sha256(self.source_sha256, "Harness.source_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Value):
    """The node on which something ran. Pairs are (name, value) in name order."""

    device: str
    device_name: str
    device_count: int
    node: str
    os: str
    python: str
    threads: int
    packages: Pairs
    libraries: Pairs
    switches: Pairs
    probes: Pairs
    missing: Pairs = ()

    def __post_init__(self) -> None:
        for what in ("packages", "libraries", "switches", "probes", "missing"):
            names = [name for name, _ in getattr(self, what)]
            require(len(set(names)) == len(names), f"Environment.{what}: a name occurs twice")

    @property
    def comparability(self) -> Pairs:
        """The facts that must agree before two measurements may be compared."""
        fixed = (
            ("device", self.device),
            ("device_name", self.device_name),
            ("device_count", str(self.device_count)),
            ("node", self.node),
            ("python", self.python),
            ("threads", str(self.threads)),
        )
        packages = tuple((f"package:{name}", version) for name, version in self.packages)
        switches = tuple((f"switch:{name}", value) for name, value in self.switches)
        return fixed + packages + switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Value):
    """An implementation under test (or a baseline). `digest` is its identity.

    `implementation` is module:function; `sources` are (path, SHA-256) of its import closure below
    its root; `config` holds the resolved arguments; `switches` the environment switches it sees.
    `digest` is the SHA-256 over everything here except the name.
    """

    name: str
    op: str
    contract: str
    tier: Tier
    device: str
    implementation: str
    sources: Pairs
    config: Pairs
    switches: Pairs
    digest: str

    def __post_init__(self) -> None:
        require_sha256(self.digest, f"Candidate {self.name}: digest")
        require(bool(self.sources), f"Candidate {self.name}: no source file; nothing identifies it")


# --- how long does it take? ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Value):
    """What a timing run declared before it began."""

    regime: Regime
    rounds: int
    processes: int
    calls_per_sample: int
    margin: str
    alpha: str
    order_seed: int

    def __post_init__(self) -> None:
        require(self.rounds > 0 and self.processes > 0, "Plan: rounds and processes are positive")
        require(self.calls_per_sample > 0, "Plan: calls_per_sample is positive")
        require(require_decimal(self.margin, "Plan.margin") >= 0, "Plan.margin is at least 0")
        alpha = require_decimal(self.alpha, "Plan.alpha")
        require(0 < alpha < 1, f"Plan.alpha: expected between 0 and 1, got {self.alpha}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(Value):
    """A round that was taken and is not counted, with its times and the reason."""

    round: int
    baseline_ns: int
    candidate_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Value):
    """Raw paired samples in nanoseconds per call; every statistic is derived from them.

    Round i took `baseline_ns[i]` and `candidate_ns[i]`, baseline first where `order[i]` is 'B',
    candidate first where it is 'C', in child process `process[i]`. `verified_outputs` counts the
    timed outputs whose digest equalled the verdict's reference.
    """

    plan: Plan
    timer: str
    resolution_ns: int
    baseline_ns: tuple[int, ...]
    candidate_ns: tuple[int, ...]
    order: str
    process: tuple[int, ...]
    verified_outputs: int
    discards: tuple[Discard, ...] = ()
    null_baseline_ns: tuple[int, ...] = ()
    null_candidate_ns: tuple[int, ...] = ()
    null_order: str = ""

    def __post_init__(self) -> None:
        rounds = len(self.baseline_ns)
        require(rounds > 0, "Measurement: no sample; a measurement holds raw nanoseconds")
        require(
            rounds == len(self.candidate_ns) == len(self.order) == len(self.process),
            "Measurement: samples, order and process must have one entry per round",
        )
        require(
            min(self.baseline_ns) > 0 and min(self.candidate_ns) > 0,
            "Measurement: a time of zero or less is a broken timer, not a sample",
        )
        require(
            set(self.order) <= {"B", "C"}, f"Measurement: order holds B and C, got {self.order}"
        )
        require(
            self.verified_outputs == 2 * (rounds + len(self.discards)) * self.plan.calls_per_sample,
            f"Measurement: every timed output is verified; {self.verified_outputs} were",
        )
        require(
            len(self.null_baseline_ns) == len(self.null_candidate_ns) == len(self.null_order),
            "Measurement: the A/A run has one entry per round",
        )


# --- the ledger's rows ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane(Value):
    """A named kind of headline number on one node type, declared before a run counts in it.

    `target` and `kill_criterion` are decimal strings in `unit`: the number to reach, and the least
    saving per call over the lane's baseline for which a candidate is worth pursuing.
    """

    id: str
    op: str
    workload: Workload
    device: str
    metric: str
    unit: str
    statistic: str
    higher_is_better: bool
    target: str | None = None
    kill_criterion: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.id), "Lane: the id is empty")
        require(self.op == self.workload.op, f"Lane {self.id}: op and workload disagree")
        for name in ("target", "kill_criterion"):
            text = getattr(self, name)
            if text is not None:
                require_decimal(text, f"Lane {self.id}: {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Value):
    """One run of one candidate on one workload: identity, verdict, measurement, outcome."""

    created_at: str
    lane: str
    candidate: Candidate
    baseline: Candidate | None
    workload: Workload
    bundle_sha256: str | None
    environment: Environment
    harness: Harness
    verdict: Verdict
    outcome: Outcome
    reason: str
    measurement: Measurement | None = None
    effect: Effect | None = None
    reopen_requires: tuple[str, ...] = ()
    supersedes: str | None = None
    notes: Pairs = ()

    def __post_init__(self) -> None:
        where = f"Record {self.candidate.name} on {self.workload.key}"
        require_utc(self.created_at, f"{where}: created_at")
        require(bool(self.reason), f"{where}: every outcome gives a reason")
        require(self.candidate.op == self.workload.op, f"{where}: candidate and workload disagree")
        if self.measurement is not None:
            require(
                self.verdict.passed, f"{where}: no time without truth; its verdict did not pass"
            )
            require(self.effect is not None, f"{where}: a measurement has an effect")
        else:
            require(self.effect is None, f"{where}: an effect needs a measurement")
        if self.outcome == "passed":
            require(self.verdict.passed, f"{where}: outcome passed, verdict {self.verdict.kind}")
        if self.baseline is not None and self.measurement is not None:
            require(
                self.baseline.contract == self.candidate.contract,
                f"{where}: a claim never spans two contracts: {self.candidate.contract} against "
                f"{self.baseline.contract}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver(Value):
    """A requirement of the policy that somebody answers for, until a date."""

    requirement: str
    author: str
    reason: str
    expires: str

    def __post_init__(self) -> None:
        require_utc(self.expires, "Waiver.expires")
        for name in ("requirement", "author", "reason"):
            require(bool(getattr(self, name).strip()), f"Waiver: {name} is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Value):
    """What the promotion policy made of a record in its lane."""

    created_at: str
    kind: DecisionKind
    lane: str
    record_id: str
    policy: int
    author: str
    reason: str
    waivers: tuple[Waiver, ...] = ()

    def __post_init__(self) -> None:
        require_utc(self.created_at, "Decision.created_at")
        require_sha256(self.record_id, "Decision.record_id")
        require(bool(self.reason.strip()), "Decision: every decision gives a reason")
        require(bool(self.author.strip()), "Decision: somebody answers for it; author is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(Value):
    """What the simulator made of the ledger's timings for one model on one workload.

    `device` and `node` say whose timings were used, `summary` is the simulator's whole answer as
    JSON, `record_ids` name every record that a price came from. `coverage` tells how the simulated
    time was priced: (how, share) with how one of PRICE_SOURCES and the shares decimal strings that
    add up to exactly 1.
    """

    created_at: str
    name: str
    device: str
    node: str
    model: str
    summary: Evidence
    record_ids: tuple[str, ...]
    coverage: Pairs
    notes: Pairs = ()

    def __post_init__(self) -> None:
        where = f"Simulation {self.name}"
        require_utc(self.created_at, f"{where}: created_at")
        for what in ("name", "device", "node", "model"):
            require(bool(getattr(self, what).strip()), f"{where}: {what} is empty")
        for identity in self.record_ids:
            require_sha256(identity, f"{where}: record_ids")
        require(
            len(set(self.record_ids)) == len(self.record_ids), f"{where}: a record is named twice"
        )
        shares = self._shares(where)
        require(
            bool(self.record_ids) or shares.get("assumed") == 1,
            f"{where}: no record is named, and not everything is assumed; name the records that "
            "the prices come from",
        )

    def _shares(self, where: str) -> dict[str, Decimal]:
        shares: dict[str, Decimal] = {}
        for how, text in self.coverage:
            require(
                how in PRICE_SOURCES and how not in shares,
                f"{where}: coverage names each of {', '.join(PRICE_SOURCES)} at most once, "
                f"got {[name for name, _ in self.coverage]}",
            )
            shares[how] = require_decimal(text, f"{where}: coverage {how}")
            require(shares[how] >= 0, f"{where}: coverage {how} is {text}; expected 0 to 1")
        total = sum(map(Fraction, shares.values()), Fraction())
        require(total == 1, f"{where}: the coverage adds up to {total}; expected exactly 1")
        return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Value):
    """A duration with its sources, as the simulator reads it from the ledger."""

    ns: int
    basis: Literal["exact"]
    record_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        require(self.ns > 0, f"Timing: expected a positive duration, got {self.ns} ns")
        require(bool(self.record_ids), "Timing: every derived number names its sources")
