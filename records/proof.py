"""The nouns of proof: what is computed and where, what was compared, and what that proves."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from bitgate.records.base import InvariantError, Value, require, require_decimal, require_sha256

Pairs = tuple[tuple[str, str], ...]
Role = Literal["in", "param", "state", "out"]
Tier = Literal["canonical", "native", "foreign"]
Phase = Literal["prefill", "decode"]
MismatchKind = Literal["missing", "unexpected", "dtype", "shape", "bits"]
BoundaryClass = Literal["equal", "culprit", "victim", "state-suspect", "missing", "incomparable"]
GateOutcome = Literal["pass", "fail", "inconclusive", "blocked", "not-run"]
VerdictKind = Literal[
    "exact",
    "exact-order-mapped",
    "tolerance-only",
    "nondeterministic",
    "deterministic-mismatch",
    "observer-dependent",
    "history-dependent",
    "inconclusive",
    "not-run",
]

PASSING_VERDICTS: frozenset[VerdictKind] = frozenset({"exact", "exact-order-mapped"})


# --- what is computed, and where it was captured -------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Value):
    """One concrete point of a definition: the operator, its axes, its dtype and its kind of data.

    `axes` are (name, extent) pairs in the order of their names; `case` names the data generator.
    """

    op: str
    axes: tuple[tuple[str, int], ...]
    dtype: str
    case: str = "random"

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        require(bool(self.op), "Workload: op is empty; name an operator of records.ops")
        require(
            names == sorted(set(names)),
            f"Workload {self.op}: axes must be unique and in name order, got {names}",
        )
        for name, extent in self.axes:
            require(extent >= 0, f"Workload {self.op}: axis {name} is {extent}; expected >= 0")

    @property
    def key(self) -> str:
        """The same text for the same point: op[axis=extent,...]/dtype/case."""
        axes = ",".join(f"{name}={extent}" for name, extent in self.axes)
        return f"{self.op}[{axes}]/{self.dtype}/{self.case}"

    def axis(self, name: str) -> int:
        """The extent of one axis; InvariantError lists the known axes."""
        found = dict(self.axes)
        require(name in found, f"{self.key}: no axis {name!r}; it has {sorted(found)}")
        return found[name]

    def seed(self, index: int) -> int:
        """A 63-bit seed that depends only on this workload and on the index of the sample."""
        digest = hashlib.sha256(f"{self.key}#{index}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary(Value):
    """A place in a model where tensors are captured."""

    name: str
    layer: int
    ordinal: int
    phase: Phase
    rank: int = 0

    @property
    def key(self) -> str:
        """The same text for the same place: name/layer/ordinal/phase/rank."""
        return f"{self.name}/L{self.layer}/c{self.ordinal}/{self.phase}/r{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta(Value):
    """A tensor without its values. `digest` is the hex of parity.digests over the raw bytes."""

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str

    def __post_init__(self) -> None:
        require(
            len(self.shape) == len(self.stride),
            f"TensorMeta {self.name}: shape {self.shape} and stride {self.stride} differ in rank",
        )


# --- is it the same, bit for bit? ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch(Value):
    """How one tensor differs. Bit patterns are hexadecimal, `max_ulp` is None where undefined."""

    tensor: str
    kind: MismatchKind
    detail: str
    first_index: tuple[int, ...] | None = None
    expected_bits: str | None = None
    actual_bits: str | None = None
    differing: int = 0
    total: int = 0
    max_ulp: int | None = None
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "bits":
            require(
                self.first_index is not None and 0 < self.differing <= self.total,
                f"Mismatch {self.tensor}: a bits mismatch names its first index and its count",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Value):
    """Expected against actual tensors of one subject (a boundary, a case)."""

    subject: str
    compared: int
    expected: int
    mismatches: tuple[Mismatch, ...] = ()

    def __post_init__(self) -> None:
        require(
            0 <= self.compared <= self.expected or bool(self.mismatches),
            f"Comparison {self.subject}: compared {self.compared} of {self.expected} expected",
        )

    @property
    def equal(self) -> bool:
        """True only if something was compared, all that was expected, and nothing differed."""
        return 0 < self.compared == self.expected and not self.mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Value):
    """What a number of clean trials proves: failure probability <= `upper` per `unit`."""

    unit: str
    trials: int
    failures: int
    confidence: str
    upper: str

    def __post_init__(self) -> None:
        if not 0 <= self.failures <= self.trials:
            raise InvariantError(f"Bound: {self.failures} of {self.trials} fail")
        require(self.trials > 0, "Bound: zero trials prove nothing; run at least one")
        for name, text in (("Bound.confidence", self.confidence), ("Bound.upper", self.upper)):
            if not 0 <= require_decimal(text, name) <= 1:
                raise InvariantError(f"{name}: expected 0 to 1, got {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Value):
    """A file of evidence, by content; the ledger keeps it under this digest."""

    sha256: str
    size_bytes: int
    media: str

    def __post_init__(self) -> None:
        require_sha256(self.sha256, "Evidence.sha256")
        require(self.size_bytes > 0, "Evidence: an empty file is no evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult(Value):
    """One gate's answer, with how much it compared and what that proves."""

    gate: str
    version: int
    outcome: GateOutcome
    reason: str
    compared: int
    expected: int
    bounds: tuple[Bound, ...] = ()
    finding: VerdictKind | None = None
    culprit: str | None = None
    mismatch: Mismatch | None = None
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        # A row holds a dozen of these: only a fault is put into words.
        fault = self._unproven() if self.outcome == "pass" else None
        if not self.reason:
            fault = "every outcome gives a reason"
        if fault is not None:
            raise InvariantError(f"GateResult {self.gate}: {fault}")

    def _unproven(self) -> str | None:
        if not 0 < self.compared == self.expected:
            return f"a pass compares all it expected, got {self.compared} of {self.expected}"
        if self.evidence is None:
            return "a pass without evidence"
        if self.mismatch is not None or self.culprit is not None:
            return "pass with mismatch"
        if self.finding is not None and self.finding not in PASSING_VERDICTS:
            return f"a pass that finds {self.finding}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Value):
    """The gates' answer. Only a verdict whose every required gate passed may be a passing kind."""

    kind: VerdictKind
    required: tuple[str, ...]
    results: tuple[GateResult, ...]
    bound: Bound | None
    coverage: str

    def __post_init__(self) -> None:
        names = [result.gate for result in self.results]
        require(len(set(names)) == len(names), f"Verdict: a gate answers once, got {names}")
        require(bool(self.required), "Verdict: no gate is required; that would pass by absence")
        if self.kind in PASSING_VERDICTS:
            passed = {result.gate for result in self.results if result.outcome == "pass"}
            lacking = [gate for gate in self.required if gate not in passed]
            require(
                not lacking, f"Verdict {self.kind}: these required gates did not pass: {lacking}"
            )
            require(self.bound is not None, f"Verdict {self.kind}: the bound it proved is missing")
            require(bool(self.coverage.strip()), f"Verdict {self.kind}: its coverage is missing")
            failed = [result.gate for result in self.results if result.outcome == "fail"]
            require(not failed, f"Verdict {self.kind}: these gates failed: {failed}")

    @property
    def passed(self) -> bool:
        """Whether every required gate passed."""
        return self.kind in PASSING_VERDICTS

    def gate_passed(self, gate: str) -> bool:
        """Whether the named gate is among the results with outcome pass."""
        return any(result.gate == gate and result.outcome == "pass" for result in self.results)

    @property
    def first_failure(self) -> GateResult | None:
        """The first result that is not a pass and not a tolerated not-run."""
        for result in self.results:
            if result.outcome in {"fail", "inconclusive", "blocked"}:
                return result
        return None
