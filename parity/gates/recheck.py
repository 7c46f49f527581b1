"""The promote-time check: the stored evidence must still carry every passed gate of a record."""

import hashlib
from collections.abc import Callable, Iterator

from bitgate.parity.gates.evidence import EQUAL, MEDIA, Document, blind, decode
from bitgate.records.errors import BitgateError
from bitgate.records.types import GateResult, Record

# The gates whose cases sample the record's workload.
_SAMPLING = frozenset({"G4", "G12"})
_REPLAYING = "G9"


def recheck_evidence(record: Record, get: Callable[[str], bytes]) -> tuple[str, ...]:
    """What is wrong with the evidence of the passed gates; empty when all of it holds.

    Args:
        record: whose verdict's results are checked.
        get: reads evidence by its SHA-256, such as `Ledger.get`.
    """
    passed = [result for result in record.verdict.results if result.outcome == "pass"]
    if not passed:
        return ("no gate passed; there is no evidence to check",)
    return tuple(
        f"{result.gate}: {complaint}"
        for result in passed
        for complaint in _complaints(record, result, get)
    )


def _complaints(record: Record, result: GateResult, get: Callable[[str], bytes]) -> Iterator[str]:
    evidence = result.evidence
    if evidence is None:  # the type forbids it; a checker that trusts types checks nothing
        yield "a pass without evidence"
        return
    try:
        data = get(evidence.sha256)
    except (BitgateError, OSError) as error:
        yield f"the evidence {evidence.sha256} cannot be read: {error}"
        return
    if hashlib.sha256(data).hexdigest() != evidence.sha256 or len(data) != evidence.size_bytes:
        yield f"the evidence is not the file with SHA-256 {evidence.sha256}; it was edited"
        return
    try:
        document = decode(data)
    except ValueError as error:
        yield f"the evidence cannot be understood: {error}"
        return
    yield from _identity(record, result, document)
    yield from _cases(document)
    yield from _counts(result, document)


def _identity(record: Record, result: GateResult, document: Document) -> Iterator[str]:
    subject = document.subject
    wanted = {
        "gate": (result.gate, document.gate),
        "version": (result.version, document.version),
        "media": (MEDIA, result.evidence.media if result.evidence else None),
        "candidate": (record.candidate.digest, subject.get("candidate")),
        "operator": (record.candidate.op, subject.get("op")),
        "contract": (record.candidate.contract, subject.get("contract")),
    }
    if result.gate == _REPLAYING:
        wanted["bundle"] = (record.bundle_sha256, subject.get("bundle"))
    for name, (expected, actual) in wanted.items():
        if expected != actual:
            yield f"its {name} is {actual!r}, expected {expected!r}; it belongs to another run"
    key = record.workload.key
    if result.gate in _SAMPLING and key not in subject.get("workloads", ()):
        yield f"it does not name the workload {key}"
    if result.gate in _SAMPLING and not any(
        case.subject.startswith(f"{key}#") for case in document.cases
    ):
        yield f"it holds no case of the workload {key}"


def _cases(document: Document) -> Iterator[str]:
    for case in document.cases:
        if case.kind != EQUAL:
            yield f"case {case.subject} is {case.kind}, not equal"
        if not case.tensors:
            yield f"case {case.subject} compared nothing"
        for pair in case.tensors:
            if pair.expected != pair.actual:
                yield f"case {case.subject}: digests of {pair.name} differ"
    for missed in blind(document):
        yield f"the comparison did not see a wrong answer: {missed}"


def _counts(result: GateResult, document: Document) -> Iterator[str]:
    counted = len(document.cases)
    if not counted == document.expected == result.compared == result.expected:
        yield (
            f"the counts disagree: {counted} cases for {document.expected} planned, the result "
            f"says {result.compared} of {result.expected}"
        )
    if document.bounds() != result.bounds:
        yield "the bounds recomputed from its cases are not those of the result"
    if result.gate == "G4" and not document.controls:
        yield "it holds no control that shows the comparison to see"
