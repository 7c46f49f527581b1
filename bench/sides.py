"""The two sides of a contest, and how they come into timing processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitgate.bench.process import Child
from bitgate.bench.witness import verify_settings
from bitgate.kernels.moe import tiles
from bitgate.kernels.spec import Tensors
from bitgate.parity.gates.base import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is timed against what.

    `subject` is the candidate with its reference, constants and conditions; the baseline is
    `baseline_target`, module:function below `baseline_root` (None: in this package), with
    `baseline_tiles`. `rival` is the baseline's own subject, where its truth is another one: tiles
    may change the order of additions, and so the bits.
    """

    subject: Subject
    baseline_target: str
    baseline_root: Path | None
    baseline_tiles: str = ""
    rival: Subject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A timing process with its sides loaded, and the facts that it reported then."""

    child: Child
    facts: dict[str, Any]


def started(children: list[Child], contest: Contest, sides: str, *, cold: bool) -> list[Process]:
    """Load the sides, "B" and "C" or one of them, in every child, all at once.

    Raises:
        TimingRefused: importing them changed settings of the whole process.
        ChildFailed: one cannot be imported.
    """
    subject = contest.subject
    targets = {
        "B": _target(contest.baseline_target, contest.baseline_root, contest.baseline_tiles),
        "C": _target(
            subject.candidate.implementation,
            subject.root,
            tiles.of_config(subject.candidate.config),
        ),
    }
    header = {
        "op": subject.kernel.op,
        "device": subject.candidate.device,
        "threads": subject.threads,
        "cold": cold,
        "sides": {side: targets[side] for side in sides},
    }
    for child in children:
        child.send(header, {})
    found = [Process(child=child, facts=child.receive()[0]["facts"]) for child in children]
    for process in found:
        verify_settings(process.facts["before"], process.facts["after"], "importing the two sides")
    return found


def _target(target: str, root: Path | None, packed: str) -> dict[str, str | None]:
    return {"target": target, "root": None if root is None else str(root), "tiles": packed}


def flattened(inputs: list[list[Tensors]]) -> Tensors:
    """The slots' calls in one dictionary; its tensors are contiguous and share no memory."""
    flat: Tensors = {}
    used: set[int] = set()
    for slot, calls in enumerate(inputs):
        for call, given in enumerate(calls):
            for name, tensor in given.items():
                storage = tensor.untyped_storage().data_ptr()
                whole = tensor.is_contiguous() and storage not in used
                flat[f"{slot}/{call}/{name}"] = tensor if whole else tensor.contiguous().clone()
                used.add(storage)
    return flat
