"""What a suite found, case by case, and what may be concluded: nothing from what did not run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from torch import Tensor

from bitgate.parity.bits import compare_tensor
from bitgate.parity.suites.trace import Launch

Status = Literal["equal", "within bound", "differs", "outside bound", "skipped"]
Verdict = Literal["passed", "differs", "inconclusive"]

SHOWN: Final = "bitgate-suite/1"
_GOOD: Final = ("equal", "within bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One boundary of one call: how many elements were compared, and what differs, if anything."""

    boundary: str
    compared: int
    difference: str | None = None
    max_ulp: int | None = None

    @classmethod
    def bits(cls, boundary: str, expected: Tensor, actual: Tensor) -> "Checked":
        """Whether two tensors have the same bits."""
        mismatch = compare_tensor(boundary, expected, actual)
        return cls(
            boundary=boundary,
            compared=expected.numel(),
            difference=None if mismatch is None else mismatch.detail,
            max_ulp=None if mismatch is None else mismatch.max_ulp,
        )

    def in_call(self, prefix: str) -> "Checked":
        """The same, of one of several calls, which the prefix names."""
        return replace(self, boundary=prefix + self.boundary)


def agree(checked: Sequence[Checked]) -> bool:
    """Whether there is something, all of it compared something, and nothing differs."""
    return bool(checked) and all(one.difference is None and one.compared for one in checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case.

    Attributes:
        name: of the case.
        asks: its question.
        status: what was found; `skipped` has a reason.
        claim: what equality means here: bits at the same kernels, or a bound.
        sides: who was compared with whom: ours and theirs.
        shapes: tokens, hidden and so on.
        tiles: of the first and the second product, the constants that reached the kernel.
        checked: every boundary, in the order of the computation.
        reason: why it was skipped.
    """

    name: str
    asks: str
    status: Status
    claim: str
    sides: tuple[str, str]
    shapes: Mapping[str, int]
    tiles: tuple[Launch, ...] = ()
    checked: tuple[Checked, ...] = ()
    reason: str = ""

    @property
    def compared(self) -> int:
        """Elements at all boundaries."""
        return sum(one.compared for one in self.checked)

    @property
    def first(self) -> Checked | None:
        """The first boundary that differs."""
        return next((one for one in self.checked if one.difference is not None), None)

    @property
    def max_ulp(self) -> int | None:
        """The largest distance in units in the last place, at any boundary of floats."""
        found = [abs(one.max_ulp) for one in self.checked if one.max_ulp is not None]
        return max(found, default=None)

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON."""
        first = self.first
        return {
            "name": self.name,
            "asks": self.asks,
            "status": self.status,
            "claim": self.claim,
            "ours": self.sides[0],
            "theirs": self.sides[1],
            "shapes": dict(self.shapes),
            "tiles": [dict(launch) for launch in self.tiles],
            "compared_elements": self.compared,
            "boundaries": [asdict(one) for one in self.checked],
            "first_difference": None if first is None else first.boundary,
            "max_ulp": self.max_ulp,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """A whole run.

    Attributes:
        suite: its name.
        device: cpu, cuda or xpu.
        path: which path of the engine was compared.
        engine: name and version of the engine.
        cases: every required case, run or skipped.
        facts: of the engine's version, what its bits depend on; and of the environment.
        substitutes: what stood in, on both sides alike, for operators that the build lacks.
    """

    suite: str
    device: str
    path: str
    engine: str
    cases: tuple[CaseResult, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    substitutes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Passed only if there are cases, and each compared something and found no difference."""
        if any(case.status in ("differs", "outside bound") for case in self.cases):
            return "differs"
        good = [case.status in _GOOD and case.compared > 0 for case in self.cases]
        return "passed" if good and all(good) else "inconclusive"

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON and for the file of --out."""
        return {
            "schema": SHOWN,
            "suite": self.suite,
            "device": self.device,
            "path": self.path,
            "engine": self.engine,
            "verdict": self.verdict,
            "facts": dict(self.facts),
            "substitutes": list(self.substitutes),
            "cases": [case.plain for case in self.cases],
        }
