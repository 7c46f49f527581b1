"""The nouns of the gates: who is judged, with how much effort, and what a gate is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from bitgate.kernels import catalogue
from bitgate.kernels.spec import Constants, Contract, Implementation, Kernel, Tensors
from bitgate.parity.bounds import CONFIDENCE, DECODE_BOUNDARIES
from bitgate.parity.instance import Placement
from bitgate.parity.worker import CALL_TIMEOUT_S, START_TIMEOUT_S, Facts, Launch, Reply
from bitgate.records.base import require
from bitgate.records.closure import PACKAGE_ROOT
from bitgate.records.types import Candidate, Evidence, GateResult

if TYPE_CHECKING:
    from bitgate.parity.gates.session import Session

Put = Callable[[bytes, str], Evidence]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A candidate, and the implementation whose bits are the truth for it.

    `reference` is the baseline, or the kernel's own reference of the contract; it is loaded from
    `reference_root`, the candidate from `root` (None: an implementation of this package).
    `constants` are passed to both, `threads` is the number of CPU threads that each may use.
    The tiles of the candidate are its own; the reference has those of `reference_tiles`, by default
    the ones that it was written with.
    `contract` may be given for contracts outside of the catalogue.
    """

    kernel: Kernel
    candidate: Candidate
    root: Path | None
    reference: Implementation
    constants: Constants
    reference_root: Path | None = None
    reference_tiles: str = ""
    contract: Contract | None = None
    threads: int = 1

    @property
    def claims(self) -> Contract:
        """The candidate's contract with what it claims. Raises UsageError for unknown names."""
        return self.contract or catalogue.contract(self.candidate.contract)

    @property
    def source_root(self) -> Path:
        """The directory that the candidate's source paths are relative to."""
        return self.root or PACKAGE_ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the gates must run.

    `cases` changed inputs per workload, each `repeats` times, `processes` fresh processes. With
    `max_p`, a budget that cannot prove this failure probability per execution is inconclusive.
    `boundaries` per decode token scale the bounds.
    """

    cases: int = 40
    repeats: int = 2
    processes: int = 5
    confidence: str = CONFIDENCE
    max_p: str | None = None
    boundaries: int = DECODE_BOUNDARIES
    call_timeout_s: float = CALL_TIMEOUT_S
    start_timeout_s: float = START_TIMEOUT_S

    def __post_init__(self) -> None:
        require(self.cases >= 2, f"Budget: expected at least 2 changed inputs, got {self.cases}")
        require(
            self.repeats >= 2,
            f"Budget: {self.repeats} repeats cannot tell a fixed change from a random one; use 2",
        )
        require(self.processes >= 2, f"Budget: expected 2 processes, got {self.processes}")


class Runner(Protocol):
    """What the gates need of a worker: one implementation in a process of its own."""

    @property
    def facts(self) -> Facts:
        """What was loaded, and where."""

    def send(
        self,
        inputs: Tensors,
        constants: Constants,
        *,
        placement: Placement = "same",
        poison: int = 0xFF,
    ) -> None:
        """Begin a call."""

    def receive(self) -> Reply:
        """End it."""

    def close(self) -> None:
        """End the process; may be called again."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """End the process."""


Launcher = Callable[[Launch], Runner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One question about a subject. `version` changes whenever the question does."""

    id: str
    title: str
    version: int
    check: Callable[["Session"], GateResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A gate that has a name and a place in the order, and that this version does not run."""

    id: str
    title: str
    reason: str


Done = Mapping[str, GateResult]
