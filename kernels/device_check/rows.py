"""What a device check says, as plain JSON rows, and the files that hold them.

Three kinds: a `Check` compared bits (or an error with its proved bound), a `Sampled` holds the raw
times of two sides whose outputs were checked, an `Answer` states a fact that has no right or wrong.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bitgate.records.base import Value, require
from bitgate.records.errors import UsageError
from bitgate.records.types import Pairs, Regime, Tier, Workload

FORMAT = "bitgate-device-check/1"
# Declared before anything is timed: a smaller gain is none, and the share of false claims.
MARGIN, ALPHA = "0.01", "0.05"
# What one borrowed machine hands back: few files of moderate size.
MAX_FILE_BYTES = 15 << 20

CheckOutcome = Literal["pass", "fail", "not-run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(Value):
    """One implementation as it ran here; `config` holds its resolved arguments."""

    name: str
    op: str
    contract: str
    tier: Tier
    target: str
    config: Pairs = ()


def _require_op(side: Side, workload: Workload | None) -> None:
    require(
        workload is None or workload.op == side.op,
        f"{side.name}: expected a workload of {side.op}, got {workload}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Value):
    """One comparison of `side` on one workload or fixture with what `against` says.

    `compared` and `differing` count elements; `first` is the tensor and flat index that differs
    first, with both values as hexadecimal bits. A check of an error has `claim` "bounded", and its
    `worst` is the largest error as a share of the bound.
    """

    section: str
    side: Side
    against: str
    claim: Literal["bitwise", "bounded"]
    workload: Workload | None
    case: str
    outcome: CheckOutcome
    reason: str
    compared: int
    differing: int
    first: str = ""
    worst: str = ""

    def __post_init__(self) -> None:
        require(
            0 <= self.differing <= self.compared,
            f"{self.side.name}: expected differing of 0 to compared, got {self.differing} of "
            f"{self.compared}",
        )
        require(
            self.outcome != "pass" or (self.compared > 0 and self.differing == 0),
            f"{self.side.name}: expected a pass to compare something and differ nowhere, got "
            f"{self.differing} of {self.compared}",
        )
        _require_op(self.side, self.workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Value):
    """Raw nanoseconds per call of a baseline and a candidate, taken in coin-flipped pairs.

    As `records.types.Measurement` states them. `verified_outputs` counts timed outputs that were
    bit-equal to the first output of their side's check. `published` are figures of others for the
    same shape with their source, in microseconds.
    """

    section: str
    baseline: Side
    candidate: Side
    workload: Workload
    regime: Regime
    timer: str
    resolution_ns: int
    order_seed: int
    order: str
    baseline_ns: tuple[int, ...]
    candidate_ns: tuple[int, ...]
    null_order: str
    null_baseline_ns: tuple[int, ...]
    null_candidate_ns: tuple[int, ...]
    verified_outputs: int
    outcome: CheckOutcome
    reason: str
    published: Pairs = ()

    def __post_init__(self) -> None:
        _require_op(self.candidate, self.workload)
        _require_op(self.baseline, self.workload)
        for order, *sides in (
            (self.order, self.baseline_ns, self.candidate_ns),
            (self.null_order, self.null_baseline_ns, self.null_candidate_ns),
        ):
            complete = len(order) > 0 and all(len(order) == len(one) for one in sides)
            require(
                self.outcome != "pass" or (complete and all(min(one) > 0 for one in sides)),
                f"{self.candidate.name}: expected a pass to have a positive time of both sides for "
                f"each of its rounds, got {len(order)} rounds and {[len(one) for one in sides]} "
                "times",
            )
        require(
            self.outcome != "pass" or self.verified_outputs == 2 * len(self.order),
            f"{self.candidate.name}: expected a pass to have verified both outputs of each round, "
            f"got {self.verified_outputs} of {2 * len(self.order)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Value):
    """One fact about the device, such as which configurations give equal accumulators."""

    section: str
    question: str
    answer: str


Row = Check | Sampled | Answer


def plain(row: Row) -> dict[str, Any]:
    """The row as JSON values, with its kind."""
    return {"kind": type(row).__name__.lower()} | asdict(row)


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Write one result file.

    Raises:
        UsageError: it would be larger than what a machine hands back.
    """
    fields = ({"format": FORMAT} | content).items()
    text = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in fields)
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(
            f"{name}: expected at most {MAX_FILE_BYTES} bytes, got {len(text)}; run fewer sections "
            "with --only"
        )
    path = folder / name
    path.write_text(f"{{{text}}}\n")
    return path


def _lines(value: Any) -> str:
    """A list with a line for each entry: a file of rows can be read and compared."""
    if not isinstance(value, list):
        return json.dumps(value, allow_nan=False)
    return "[" + ",\n".join(json.dumps(entry, allow_nan=False) for entry in value) + "]"
