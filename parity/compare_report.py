"""What a comparison of two bundles found."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from bitgate.parity.bundle_format import Step
from bitgate.records.base import Value, require
from bitgate.records.types import Boundary, BoundaryClass, Mismatch, Pairs, Role

ReportVerdict = Literal["equal", "differs", "incomparable"]
ORIGINS: frozenset[BoundaryClass] = frozenset({"culprit", "state-suspect"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference(Value):
    """A fact on which the two bundles disagree."""

    field: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference(Value):
    """A tensor that differs; None stands for a tensor, or values, that are not there.

    `hints` and `numbers` (largest absolute and relative difference, cosine) explain. They never
    decide.
    """

    name: str
    role: Role
    expected_digest: str | None
    actual_digest: str | None
    mismatch: Mismatch | None
    hints: tuple[str, ...] = ()
    numbers: Pairs = ()

    @property
    def text(self) -> str:
        """What differs, in one line."""
        detail = (
            self.mismatch.detail
            if self.mismatch
            else (
                f"digest {self.expected_digest} became {self.actual_digest} (values were not kept)"
            )
        )
        hints = self.hints + (self.mismatch.hints if self.mismatch else ())
        return f"{self.role} {self.name}: {detail}" + "".join(f"; {hint}" for hint in hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Value):
    """One boundary in one step.

    culprit: inputs, weights and state are equal, outputs differ. victim: an input differs already.
    state-suspect: equal inputs, but the state differs or was not captured. missing: in one bundle
    only. incomparable: another operator, contract or constant, or nothing that holds an element.
    """

    step: Step
    boundary: Boundary
    kind: BoundaryClass
    compared: int
    differences: tuple[TensorDifference, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        require(
            self.kind != "equal" or (self.compared > 0 and not self.differences),
            f"Row {self.boundary.key}: equal, but {self.compared} tensors were compared",
        )

    @property
    def where(self) -> str:
        """Boundary and step, in one line."""
        return f"{self.boundary.key} at request {self.step.request}, token {self.step.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Value):
    """The comparison of an actual bundle against an expected one, in capture order.

    `refused` names the facts of provenance that forbid a comparison, `noted` those that may differ
    (environment, implementation), `answers` the requests whose tokens or probabilities differ.
    """

    verdict: ReportVerdict
    expected_sha256: str
    actual_sha256: str
    refused: tuple[FieldDifference, ...]
    noted: tuple[FieldDifference, ...]
    answers: tuple[FieldDifference, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if self.verdict == "equal":
            unequal = [row.where for row in self.rows if row.kind != "equal"]
            require(bool(self.rows), "Report: equal, but nothing was compared")
            require(not unequal, f"Report: equal, but these rows are not: {unequal[:3]}")
            require(not self.refused and not self.answers, "Report: equal, but facts differ")

    @property
    def compared(self) -> int:
        """How many tensors that hold elements were compared."""
        return sum(row.compared for row in self.rows)

    @property
    def counts(self) -> dict[BoundaryClass, int]:
        """How many rows there are of each class."""
        return dict(Counter(row.kind for row in self.rows))

    @property
    def first_by_rank(self) -> dict[int, Row]:
        """The first culprit or state-suspect of each rank, in capture order."""
        first: dict[int, Row] = {}
        for row in self.rows:
            if row.kind in ORIGINS:
                first.setdefault(row.boundary.rank, row)
        return first

    @property
    def earliest(self) -> Row | None:
        """The first culprit or state-suspect of all ranks."""
        return next((row for row in self.rows if row.kind in ORIGINS), None)

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, in one line."""
        if self.refused:
            fields = ", ".join(item.field for item in self.refused)
            return f"provenance differs in {fields}; capture both from the same model and prompts"
        row = next((row for row in self.rows if row.kind != "equal"), None)
        if row is not None:
            texts = "; ".join(filter(None, [*(item.text for item in row.differences), row.note]))
            outside = ", which arose between captured boundaries" if row.kind == "victim" else ""
            return f"first difference{outside}: {row.kind} {row.where}: {texts}"
        if self.answers:
            return f"every boundary is equal, but {self.answers[0].field} differs"
        return f"{self.compared} tensors of {len(self.rows)} frames are equal, bit for bit"
