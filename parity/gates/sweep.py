"""Many calls of a candidate in one process, each compared with what was expected of it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.bits import compare_tensor
from bitgate.parity.compare import compare_tensors
from bitgate.parity.digests import digest
from bitgate.parity.gates.base import Runner
from bitgate.parity.gates.evidence import EQUAL, Case, Pair
from bitgate.parity.gates.session import Conditions, Session
from bitgate.parity.instance import Placement
from bitgate.parity.worker import CallFailed, Reply, WorkerDied, WorkerError
from bitgate.records.types import Mismatch

NOTHING = "none"
NO_ANSWER = "no-answer"

# Free memory holds this byte in the candidate's process and not in the reference's.
SWEEP = Conditions(junk=0x85)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One planned call. `inputs` builds the tensors, `subject` names them in the evidence."""

    subject: str
    inputs: Callable[[], Tensors]
    constants: Constants
    placement: Placement = "same"
    poison: int = 0xFF
    step: tuple[int, int] | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a call did, as one comparable text (`bits`), and in full where it answered."""

    bits: str
    reply: Reply | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first call that was wrong: its position, how, and what was seen and expected."""

    index: int
    kind: str
    text: str
    mismatch: Mismatch | None
    wrong: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All cases that were compared, and what the candidate did in each call."""

    cases: tuple[Case, ...]
    observed: tuple[str, ...]
    failure: Failure | None


Expect = Callable[[Step, Tensors], Tensors]


def observe(worker: Runner, step: Step, inputs: Tensors) -> Observation:
    """One call of the candidate; an exception or a death is an answer too, a timeout is not."""
    return finish(worker, begin(worker, step, inputs))


def begin(worker: Runner, step: Step, inputs: Tensors) -> Observation | None:
    """Start the call; an observation if it failed already."""
    try:
        worker.send(inputs, step.constants, placement=step.placement, poison=step.poison)
    except (CallFailed, WorkerDied) as error:
        return _no_answer(error)
    return None


def finish(worker: Runner, begun: Observation | None) -> Observation:
    """The end of the call for which `begin` gave `begun`."""
    if begun is not None:
        return begun
    try:
        reply = worker.receive()
    except (CallFailed, WorkerDied) as error:
        return _no_answer(error)
    # Their names only: the state of a generator, say, is another one in every process.
    before = worker.facts.before
    left = [key for key, now in reply.settings.items() if before.get(key) != now]
    return Observation(
        bits=_bits(reply.outputs, reply.mutated, [*left, *reply.overwritten]), reply=reply
    )


def _no_answer(error: WorkerError) -> Observation:
    return Observation(bits=type(error).__name__, reply=None, error=str(error))


def sweep(
    session: Session, gate: str, steps: Sequence[Step], expect: Expect, *, to_the_end: bool
) -> Sweep:
    """Run the steps in order in one fresh process; stop after a wrong call unless `to_the_end`.

    Raises:
        WorkerTimeout: the candidate did not answer; that is no result.
        ReferenceUnfit: there is no truth to compare with.
    """
    cases: list[Case] = []
    observed: list[str] = []
    failure: Failure | None = None
    with session.candidate(SWEEP) as worker:
        settings = worker.facts.before
        for index, step in enumerate(steps):
            session.progress(gate, index, len(steps))
            inputs = step.inputs()
            # The reference works while the candidate does, each in its own process.
            begun = begin(worker, step, inputs)
            expected = expect(step, inputs)
            seen = finish(worker, begun)
            case, found = judge(step, inputs, expected, seen, settings)
            cases.append(case)
            observed.append(seen.bits)
            if found is not None and failure is None:
                # A reference that cannot repeat itself must not convict the candidate.
                expected = expect(step, inputs)
                right = _bits(expected, {}, [])
                failure = _placed(found, index, seen.bits, right)
            if failure is not None and (seen.reply is None or not to_the_end):
                break
    session.progress(gate, len(cases), len(steps))
    return Sweep(cases=tuple(cases), observed=tuple(observed), failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """How one call was wrong."""

    kind: str
    text: str
    mismatch: Mismatch | None = None


def judge(
    step: Step, inputs: Tensors, expected: Tensors, seen: Observation, settings: dict[str, str]
) -> tuple[Case, Wrong | None]:
    """The evidence of one call, and what was wrong with it."""
    actual = {} if seen.reply is None else seen.reply.outputs
    wrong = _wrong(step, inputs, expected, seen, settings)
    names = list(dict.fromkeys([*expected, *actual]))
    pairs = tuple(
        Pair(
            name=name,
            expected=digest(expected[name]) if name in expected else NOTHING,
            actual=digest(actual[name]) if name in actual else NOTHING,
        )
        for name in names
    )
    case = Case(
        subject=step.subject,
        kind=EQUAL if wrong is None else wrong.kind,
        tensors=pairs,
        step=step.step,
        input=input_digest(inputs),
    )
    return case, wrong


def input_digest(inputs: Tensors) -> str:
    """32 hex digits over the names and contents of the inputs."""
    text = "/".join(f"{name}={digest(inputs[name])}" for name in sorted(inputs))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _wrong(
    step: Step, inputs: Tensors, expected: Tensors, seen: Observation, settings: dict[str, str]
) -> Wrong | None:
    if seen.reply is None:
        return Wrong(kind=NO_ANSWER, text=f"{step.subject}: {seen.error}")
    left = _left_behind(step, inputs, seen.reply, settings)
    if left is not None:
        return left
    comparison = compare_tensors(step.subject, expected, seen.reply.outputs)
    if comparison.equal:
        return None
    if not comparison.mismatches:
        return Wrong(kind="incomparable", text=f"{step.subject}: all outputs are empty")
    first = comparison.mismatches[0]
    place = "" if step.place is None else f" at {step.place}"
    return Wrong(kind="culprit", text=f"{step.subject}{place}: {describe(first)}", mismatch=first)


def _left_behind(
    step: Step, inputs: Tensors, reply: Reply, settings: dict[str, str]
) -> Wrong | None:
    """What else than its results the call changed."""
    for name, now in reply.mutated.items():
        mismatch = compare_tensor(f"input {name}", inputs[name], now)
        return Wrong(
            kind="input-changed",
            text=f"{step.subject}: the call changed its input {name}; expected inputs to stay",
            mismatch=mismatch,
        )
    if reply.overwritten:
        return Wrong(
            kind="output-overwritten",
            text=f"{step.subject}: {reply.overwritten[0]} changed after it was returned; "
            "expected an output to belong to the caller: return memory that is not used again",
        )
    changed = {key: now for key, now in reply.settings.items() if settings.get(key) != now}
    for key, setting in changed.items():
        return Wrong(
            kind="settings-changed",
            text=f"{step.subject}: the call left {key} at {setting}, expected {settings.get(key)}; "
            "an implementation restores what it sets",
        )
    return None


def describe(mismatch: Mismatch) -> str:
    """One line: tensor, index, both bit patterns, distance and count."""
    if mismatch.kind != "bits":
        return f"{mismatch.tensor}: {mismatch.detail}"
    ulps = "no ULP distance" if mismatch.max_ulp is None else f"up to {mismatch.max_ulp} ULP"
    return (
        f"{mismatch.tensor}{list(mismatch.first_index or ())}: expected {mismatch.expected_bits}, "
        f"got {mismatch.actual_bits}; {mismatch.differing} of {mismatch.total} differ, {ulps}"
    )


def _placed(wrong: Wrong, index: int, seen: str, right: str) -> Failure:
    return Failure(
        index=index,
        kind=wrong.kind,
        text=wrong.text,
        mismatch=wrong.mismatch,
        wrong=seen,
        right=right,
    )


def _bits(outputs: Tensors, mutated: Tensors, left: Sequence[str]) -> str:
    tensors = {**outputs, **{f"changed {name}": value for name, value in mutated.items()}}
    parts = [
        f"{name}:{value.dtype}{list(value.shape)}{digest(value)}" for name, value in tensors.items()
    ]
    parts += sorted(left)
    return hashlib.sha256("/".join(parts).encode()).hexdigest()
