"""What a gate stores as proof, and what follows from it alone.

    {"schema": 1, "gate": "G9", "version": 1,
     "subject": {"candidate", "contract", "op", "reference", "workloads", "bundle"},
     "expected": planned cases, "confidence": "0.95", "boundaries": 87 or null,
     "unit": what one trial is or null,
     "cases": [{"subject", "step": [request, token] or null, "class", "process": number or null,
                "input": digest or null, "tensors": [{"name", "expected", "actual"}]}],
     "controls": [{"subject", "mutant", "seen"}]}

A case is one call (or one fact); its digests are those of `parity.digests`. A control is a wrong
answer that the comparison was shown and had to see. Bounds are computed from this document, by the
gate and again at promotion, so that they cannot say more than the cases do.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import rfc8785

from bitgate.parity.bounds import bound, clustered, scaled
from bitgate.records.types import Bound

SCHEMA = 1
MEDIA = "application/vnd.bitgate.gate+json"
EQUAL = "equal"
PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One output's (or fact's) name with the expected and the actual digest (or text)."""

    name: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One compared call or fact. `kind` is "equal", or how it differs."""

    subject: str
    kind: str
    tensors: tuple[Pair, ...]
    step: tuple[int, int] | None = None
    process: int | None = None
    input: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A wrong answer, and whether the comparison saw it."""

    subject: str
    mutant: str
    seen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One gate's evidence.

    `unit` is what one trial of its bounds is (None: it has no bound), `boundaries` how many of them
    make a decode token (None: a trial is no part of one).
    """

    gate: str
    version: int
    subject: dict[str, Any]
    expected: int
    confidence: str
    boundaries: int | None
    unit: str | None
    cases: tuple[Case, ...]
    controls: tuple[Control, ...] = ()

    def encode(self) -> bytes:
        """Canonical JSON."""
        cases = [
            {("class" if key == "kind" else key): value for key, value in asdict(case).items()}
            for case in self.cases
        ]
        plain = {name: getattr(self, name) for name in _SCALARS}
        controls = [asdict(control) for control in self.controls]
        return rfc8785.dumps({"schema": SCHEMA, **plain, "cases": cases, "controls": controls})

    def bounds(self) -> tuple[Bound, ...]:
        """What the cases prove; empty without cases or without a unit."""
        failures = [int(case.kind != EQUAL) for case in self.cases]
        if self.unit is None or not failures:
            return ()
        if self.unit == PROCESS:
            return (clustered(self._by_process(failures), self.confidence),)
        single = bound(sum(failures), len(failures), self.unit, self.confidence)
        return (single,) if self.boundaries is None else scaled(single, self.boundaries)

    def _by_process(self, failures: list[int]) -> list[int]:
        totals: dict[int | None, int] = {}
        for case, failed in zip(self.cases, failures, strict=True):
            totals[case.process] = totals.get(case.process, 0) + failed
        return list(totals.values())


_SCALARS = ("gate", "version", "subject", "expected", "confidence", "boundaries", "unit")


def decode(data: bytes) -> Document:
    """The document that `encode` wrote; ValueError when it is something else."""
    try:
        plain = json.loads(data)
        if plain.pop("schema") != SCHEMA:
            raise ValueError("another format of evidence; use the version that wrote it")
        cases = tuple(_case(case) for case in plain.pop("cases"))
        controls = tuple(Control(**control) for control in plain.pop("controls"))
        document = Document(cases=cases, controls=controls, **plain)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a gate's evidence: {error}") from error
    if document.encode() != data:
        raise ValueError("not in the canonical form in which gates write")
    return document


def _case(plain: dict[str, Any]) -> Case:
    step = plain.pop("step")
    return Case(
        kind=plain.pop("class"),
        tensors=tuple(Pair(**pair) for pair in plain.pop("tensors")),
        step=None if step is None else (step[0], step[1]),
        **plain,
    )


def blind(document: Document) -> tuple[str, ...]:
    """Controls that show the comparison to be blind.

    A wrong answer must be seen on every workload of random data; on special data (all zeros, say)
    it may be right by nature, but some workload must still see each kind of wrong answer.
    """
    missed = [control for control in document.controls if not control.seen]
    seen = {control.mutant for control in document.controls if control.seen}
    return tuple(
        f"{control.mutant} on {control.subject}"
        for control in missed
        if control.mutant not in seen or control.subject.endswith("/random")
    )
