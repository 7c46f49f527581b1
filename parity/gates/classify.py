"""What kind of wrong is it? Replays in fresh processes tell history from chance from arithmetic.

The whole sequence up to the wrong call is replayed under the same conditions, and the call alone is
repeated in two processes under others (hash seed, junk in free memory).

    alone it is as wrong as before, always                     deterministic-mismatch
    (an exception always: it gave no bits that could differ    inconclusive)
    the sequence is wrong again at the same place, and the
    call alone is right                                        history-dependent
    anything else: the same input had two outputs              nondeterministic
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from bitgate.parity.gates.session import Conditions, Session
from bitgate.parity.gates.sweep import NO_ANSWER, SWEEP, Failure, Step, begin, finish, observe
from bitgate.records.types import VerdictKind

_OTHER_PROCESSES = (Conditions(hash_seed=1, junk=0x2A), Conditions(hash_seed=2, junk=0xD3))
_POISONS = (0x7B, 0x00)


def classify(
    session: Session, steps: Sequence[Step], observed: Sequence[str], failure: Failure
) -> tuple[VerdictKind, str]:
    """The kind of the failure and the observation that decided it.

    Args:
        session: launches the fresh processes.
        steps: the whole plan of the sweep that failed.
        observed: what the candidate did in each of its calls.
        failure: the first wrong call.

    Raises:
        WorkerTimeout: a replay did not answer.
    """
    prefix, step = steps[: failure.index + 1], steps[failure.index]
    first, second = (replace(step, poison=poison) for poison in _POISONS)
    with ExitStack() as stack:
        replayer, *others = (
            stack.enter_context(session.candidate(conditions))
            for conditions in (SWEEP, *_OTHER_PROCESSES)
        )
        # A first call may compile for long, so all processes work on theirs at the same time.
        begun = [begin(other, first, first.inputs()) for other in others]
        again = [observe(replayer, step, step.inputs()).bits for step in prefix]
        alone = [
            (finish(other, one).bits, observe(other, second, second.inputs()).bits)
            for other, one in zip(others, begun, strict=True)
        ]
    answers = [answer for process in alone for answer in process]
    always = all(answer == failure.wrong for answer in answers) and again[-1] == failure.wrong
    if always and failure.kind == NO_ANSWER:
        return "inconclusive", f"{len(answers)} repeats in {len(alone)} fresh processes fail too"
    if always:
        return "deterministic-mismatch", (
            f"{len(answers)} repeats in {len(alone)} fresh processes give the same wrong bits"
        )
    same_start = failure.index > 0 or all(process[0] == again[0] for process in alone)
    reproduced = again == list(observed[: failure.index + 1])
    if reproduced and same_start and failure.right in answers:
        return "history-dependent", (
            f"replaying {len(prefix)} calls in a fresh process gives the same wrong bits at the "
            "same call; the call alone is right: something is left over from call to call"
        )
    return "nondeterministic", (
        f"the same input gave {len({*answers, again[-1], failure.wrong})} different results in "
        f"{2 + len(alone)} processes"
    )
