"""G0: is it the declared code, under the declared contract, on the declared device?

Every later result is about a candidate's digest, so the files that a process really loads must be
the ones behind that digest.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from bitgate.kernels.moe.roundings import across
from bitgate.parity.gates.base import Gate, Subject
from bitgate.parity.gates.evidence import EQUAL, MEDIA, Case, Pair
from bitgate.parity.gates.result import clean, document
from bitgate.parity.gates.session import Session
from bitgate.parity.worker import Facts, WorkerError
from bitgate.records.errors import UsageError
from bitgate.records.provenance import candidate_digest, harness, source_closure
from bitgate.records.types import GateResult

ID, VERSION = "G0", 1

OLDEST_TORCH = (2, 8)
_MISSING = "missing"


def _check(session: Session) -> GateResult:
    checks = list(_declared(session.subject))
    if all(case.kind == EQUAL for case in checks):
        # Nothing of the candidate runs before its files are the declared ones.
        checks += _loaded(session)
    wrong = [case for case in checks if case.kind != EQUAL]
    proof = document(session, (ID, VERSION), unit=None, expected=len(checks), cases=tuple(checks))
    if not wrong:
        return clean(session, proof)
    first = wrong[0].tensors[0]
    text = f"{wrong[0].subject}: expected {first.expected}, got {first.actual}; {first.name}"
    return GateResult(
        gate=ID,
        version=VERSION,
        outcome="fail",
        reason=text,
        compared=len(checks),
        expected=len(checks),
        finding="inconclusive",
        culprit=text,
        evidence=session.put(proof.encode(), MEDIA),
    )


def changed_sources(subject: Subject) -> str | None:
    """The first source file that is no longer what the candidate's digest was made of, or None."""
    for case in _sources(subject):
        if case.kind != EQUAL:
            return case.subject
    return None


def _fact(subject: str, expected: str, actual: str, advice: str) -> Case:
    """One check as a case; the pair's name says what to do when the two differ."""
    return Case(
        subject=subject,
        kind=EQUAL if expected == actual else "differs",
        tensors=(Pair(name=advice, expected=expected, actual=actual),),
    )


def _declared(subject: Subject) -> Iterator[Case]:
    """What can be checked without running anything."""
    candidate, reference, kernel = subject.candidate, subject.reference, subject.kernel
    yield _fact("operator", kernel.op, candidate.op, "name a candidate of this operator")
    yield _fact("reference operator", kernel.op, reference.op, "name a reference of this operator")
    known = candidate.contract in kernel.references or candidate.contract == reference.contract
    yield _fact(
        "contract known",
        candidate.contract if known else f"one of {', '.join(sorted(kernel.references))}",
        candidate.contract,
        "name a contract of the operator",
    )
    yield _fact("contract claims", candidate.contract, subject.claims.name, "give its own contract")
    offer = kernel.references.get(candidate.contract)
    told = across(candidate.contract, reference.contract)
    advice = f"a claim never spans two contracts: compare with {offer or 'a baseline of its own'}"
    advice = f"{advice}; {told}" if told else advice
    yield _fact("contract of the reference", candidate.contract, reference.contract, advice)
    yield from _sources(subject)
    yield _fact(
        "digest",
        candidate.digest,
        candidate_digest(candidate),
        "identify the candidate again; its fields were edited",
    )
    # Without the digest of its own sources the harness could not be named in a record.
    yield _fact("harness", "known", "known" if harness().source_sha256 else "unknown", "reinstall")


def _sources(subject: Subject) -> Iterator[Case]:
    """Recorded against present digests, over the files of both sides."""
    candidate = subject.candidate
    module = candidate.implementation.partition(":")[0]
    recorded = dict(candidate.sources)
    try:
        present = dict(source_closure(subject.source_root, module))
    except UsageError:
        present = {}
    for path in sorted(recorded.keys() | present.keys()):
        yield _fact(
            f"source {path}",
            recorded.get(path, _MISSING),
            present.get(path, _MISSING),
            "the sources changed after the candidate was identified: identify it again",
        )


def _loaded(session: Session) -> Iterator[Case]:
    """What a fresh process with the candidate reports."""
    subject = session.subject
    try:
        with session.candidate() as worker:
            facts = worker.facts
    except WorkerError as error:
        yield _fact("loads", "loaded", str(error), "make it importable in a fresh process")
        return
    yield _fact("loads", "loaded", "loaded", "")
    yield _module_file(subject, facts)
    device = torch.device(subject.candidate.device).type
    yield _fact("device", device, facts.device, "never fall back to another device")
    yield _fact("torch", torch.__version__, facts.torch, "use one environment for all processes")
    oldest = ".".join(map(str, OLDEST_TORCH))
    version = tuple(int(part) for part in facts.torch.split("+")[0].split(".")[:2])
    found = f"{oldest} or newer" if version >= OLDEST_TORCH else facts.torch
    yield _fact("torch is supported", f"{oldest} or newer", found, "install a newer torch")
    threads = str(subject.threads)
    yield _fact("threads", threads, facts.before["threads"], "lower the number of threads")
    for name, before in sorted(facts.before.items()):
        yield _fact(
            f"{name} after the import", before, facts.after[name], "do not change it in the module"
        )


def _module_file(subject: Subject, facts: Facts) -> Case:
    files = {
        str((subject.source_root / path).resolve()): path for path, _ in subject.candidate.sources
    }
    module = subject.candidate.implementation.partition(":")[0]
    path = files.get(facts.file, Path(facts.file).name + " outside of the recorded sources")
    base = module.replace(".", "/")
    expected = path if path in {f"{base}.py", f"{base}/__init__.py"} else f"{base}.py"
    return _fact("module file", expected, path, "another module of that name was loaded: rename")


IDENTITY = Gate(id=ID, title="identity and environment", version=VERSION, check=_check)
