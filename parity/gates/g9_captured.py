"""G9: the candidate on the tensors that the real model captured, boundary by boundary.

Where a boundary was captured under the candidate's own contract, the captured outputs are the
truth, and the reference must reproduce them on this node first. Elsewhere the reference's answer to
the captured inputs is. Every kept frame of the operator is evaluated, also after a difference; the
first culprit in capture order is named.
"""

from collections.abc import Callable
from dataclasses import replace

from bitgate.kernels.spec import Tensors
from bitgate.parity.bundle import Bundle, Frame
from bitgate.parity.compare import compare_tensors
from bitgate.parity.gates.base import Gate
from bitgate.parity.gates.result import conclude, document, without_answer
from bitgate.parity.gates.session import ReferenceUnfit, Session
from bitgate.parity.gates.sweep import Step, describe, sweep
from bitgate.records.types import GateResult

ID, VERSION = "G9", 1
UNIT = "captured boundary"


def _check(session: Session) -> GateResult:
    bundle = session.bundle
    if bundle is None:
        reason = "no bundle was given; capture one with `bitgate capture` and name it"
        return without_answer(ID, VERSION, "blocked", reason)
    obstacle = _obstacle(bundle, session.subject.kernel.op)
    if obstacle is not None:
        return without_answer(ID, VERSION, "blocked", obstacle)
    frames = [frame for frame in _frames(bundle, session.subject.kernel.op) if frame.kept]
    by_key = {frame_key(frame): frame for frame in frames}
    steps = [_step(frame) for frame in frames]
    swept = sweep(session, ID, steps, _expect(session, by_key), to_the_end=True)
    proof = document(session, (ID, VERSION), unit=UNIT, expected=len(frames), cases=swept.cases)
    result = conclude(session, proof, swept, steps)
    truth = _other_truth(session, frames)
    uncompared = uncompared_frames(bundle, session.subject.kernel.op)
    return replace(result, reason=result.reason + truth + uncompared)


def frame_key(frame: Frame) -> str:
    """The frame's place in the capture: request and token, then the boundary's key."""
    return f"r{frame.step.request}t{frame.step.token}:{frame.boundary.key}"


def _frames(bundle: Bundle, op: str) -> list[Frame]:
    return [frame for frame in bundle.frames() if frame.op == op]


def _obstacle(bundle: Bundle, op: str) -> str | None:
    """Why the bundle cannot answer for the operator; None if it can."""
    frames = _frames(bundle, op)
    if not frames:
        ops = sorted({frame.op for frame in bundle.frames() if frame.op})
        return f"the bundle holds no frame of {op}; it holds {', '.join(ops) or 'no operator'}"
    if not any(frame.kept for frame in frames):
        return f"the bundle keeps only digests of {op}; capture it again and keep tensors"
    changing = [frame for frame in frames if frame.kept and frame.mutated]
    if changing:
        return (
            f"{frame_key(changing[0])} changed its inputs {changing[0].mutated} while it was "
            "captured; a call that changes inputs cannot be replayed alone"
        )
    return None


def uncompared_frames(bundle: Bundle, op: str) -> str:
    """How much of the capture could not be replayed, in words; empty if all of it was."""
    frames = _frames(bundle, op)
    digests = sum(not frame.kept for frame in frames)
    if not digests:
        return ""
    return f"; {digests} of {len(frames)} captured frames hold only digests and were not compared"


def _other_truth(session: Session, frames: list[Frame]) -> str:
    """What the candidate was compared with where the capture has another contract, in words."""
    contract = session.subject.candidate.contract
    foreign = [frame for frame in frames if frame.contract != contract]
    if not foreign:
        return ""
    captured = ", ".join(sorted({frame.contract or "no contract" for frame in foreign}))
    return (
        f"; {len(foreign)} of {len(frames)} frames were captured under {captured}: there it is "
        f"compared with the reference of its own contract {contract}, "
        f"{session.subject.reference.name}, on the captured inputs"
    )


def _step(frame: Frame) -> Step:
    return Step(
        subject=frame_key(frame),
        inputs=frame.inputs,
        constants=frame.constants,
        placement="moved" if frame.seq % 2 else "same",
        step=(frame.step.request, frame.step.token),
        place=f"request {frame.step.request}, token {frame.step.token}, {frame.boundary.key}",
    )


def _expect(session: Session, frames: dict[str, Frame]) -> Callable[[Step, Tensors], Tensors]:
    contract = session.subject.candidate.contract

    def expect(step: Step, inputs: Tensors) -> Tensors:
        frame = frames[step.subject]
        expected = session.expected(step.subject, inputs, frame.constants)
        if frame.contract != contract:
            return expected
        captured = frame.outputs()
        same = compare_tensors(
            step.subject, captured, {name: expected[name] for name in captured if name in expected}
        )
        if not same.equal:
            first = same.mismatches[0] if same.mismatches else None
            raise ReferenceUnfit(
                f"{step.place}: on this node the reference {session.subject.reference.name} does "
                f"not reproduce what was captured ({describe(first) if first else 'no elements'}): "
                "host, threads or versions differ from the capture's; capture again here"
            )
        return expected

    return expect


CAPTURED = Gate(id=ID, title="captured-tensor replay", version=VERSION, check=_check)
