"""G12: fresh processes under other conditions give the same bits; the process is the unit.

Some choices are drawn once per process (an autotuned tile, an iteration order, what lies in fresh
memory). Each process has its own hash seed, order of the environment, junk in free memory, order of
the inputs, and, where the contract claims equal bits across devices, number of threads.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from bitgate.kernels.spec import Tensors
from bitgate.parity.gates.base import Gate, Runner
from bitgate.parity.gates.evidence import EQUAL, MEDIA, PROCESS, Case, Document, Pair
from bitgate.parity.gates.result import clean, document, without_answer
from bitgate.parity.gates.session import Conditions, Session
from bitgate.parity.gates.sweep import NO_ANSWER, Step, Wrong, judge, observe
from bitgate.records.types import GateResult, VerdictKind

ID, VERSION = "G12", 1
RUNS = 2

# Bytes whose complement, which is what new memory holds, is a NaN, a huge and a small float.
_JUNK = (0x00, 0x85, 0x2A, 0xFF, 0x01)
_POISONS = (0x7B, 0x00)


def conditions(process: int, session: Session) -> Conditions:
    """What the process with this number runs under; the first is the plainest."""
    threads = session.subject.threads
    if session.subject.claims.cross_device and process % 2:
        threads += 1
    return Conditions(
        hash_seed=process + 1,
        junk=_JUNK[process % len(_JUNK)],
        reverse=bool(process % 2),
        threads=threads,
    )


def _check(session: Session) -> GateResult:
    steps = _steps(session)
    if not steps:
        return without_answer(ID, VERSION, "blocked", "no workload was given; name a suite")
    count = session.budget.processes
    cases: list[Case] = []
    wrong: tuple[int, Wrong] | None = None
    expected = _expected(session, steps)
    with ExitStack() as stack:
        waiting = _launch(session, stack, 0)
        for process in range(count):
            session.progress(ID, process, count)
            worker = waiting
            if process + 1 < count:
                # The next one starts while this one is asked.
                waiting = _launch(session, stack, process + 1)
            found, first = _process(worker, process, steps, expected)
            worker.close()
            cases += found
            if first is not None and wrong is None:
                wrong = (process, first)
    session.progress(ID, count, count)
    proof = document(
        session,
        (ID, VERSION),
        unit=PROCESS,
        expected=count * RUNS * len(steps),
        cases=tuple(cases),
    )
    return clean(session, proof) if wrong is None else _failed(session, proof, *wrong)


def _steps(session: Session) -> list[Step]:
    """One sample of each workload that G4 has not called."""
    make, index = session.subject.kernel.make_inputs, session.budget.cases
    return [
        Step(
            subject=f"{workload.key}#{index}",
            inputs=partial(make, workload, index),
            constants=session.subject.constants,
        )
        for workload in session.workloads
    ]


def _launch(session: Session, stack: ExitStack, process: int) -> Runner:
    worker = session.candidate(conditions(process, session))
    stack.callback(worker.close)
    return worker


def _expected(session: Session, steps: list[Step]) -> dict[str, Tensors]:
    """The reference's answers, asked twice so that one that cannot repeat itself is found out."""
    for step in steps:
        session.expected(step.subject, step.inputs())
    return {step.subject: session.expected(step.subject, step.inputs()) for step in steps}


def _process(
    worker: Runner, process: int, steps: list[Step], expected: dict[str, Tensors]
) -> tuple[list[Case], Wrong | None]:
    """The cases of one process, and how the first wrong one was wrong."""
    turn = process % len(steps)
    cases: list[Case] = []
    first: Wrong | None = None
    settings = worker.facts.before
    for run in range(RUNS):
        for step in steps[turn:] + steps[:turn]:
            inputs = step.inputs()
            seen = observe(worker, replace(step, poison=_POISONS[run]), inputs)
            case, wrong = judge(step, inputs, expected[step.subject], seen, settings)
            cases.append(replace(case, process=process))
            first = first or wrong
            if seen.reply is None:
                return cases, first
    return cases, first


def _failed(session: Session, proof: Document, process: int, wrong: Wrong) -> GateResult:
    actual: dict[str, set[tuple[Pair, ...]]] = {}
    for case in proof.cases:
        actual.setdefault(case.subject, set()).add(case.tensors)
    ran = {case.process for case in proof.cases if case.kind != EQUAL}
    agree = all(len(answers) == 1 for answers in actual.values())
    kind: VerdictKind = "deterministic-mismatch" if agree else "nondeterministic"
    if agree and wrong.kind == NO_ANSWER:
        kind = "inconclusive"
    return GateResult(
        gate=ID,
        version=VERSION,
        outcome="fail",
        reason=(
            f"{wrong.kind} in process {process} ({conditions(process, session)}): {wrong.text}; "
            f"{len(ran)} of {session.budget.processes} processes were wrong"
        ),
        compared=len(proof.cases),
        expected=proof.expected,
        finding=kind,
        culprit=wrong.text,
        mismatch=wrong.mismatch,
        evidence=session.put(proof.encode(), MEDIA),
    )


PROCESSES = Gate(id=ID, title="fresh-process repeat", version=VERSION, check=_check)
