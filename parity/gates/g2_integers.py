"""G2: on integers every correct order of additions is exact, so the plumbing must be too."""

from collections.abc import Callable

from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.parity.gates.base import Gate
from bitgate.parity.gates.result import conclude, document, without_answer
from bitgate.parity.gates.session import Session
from bitgate.parity.gates.sweep import Step, sweep
from bitgate.records.types import GateResult

ID, VERSION = "G2", 1


def _check(session: Session) -> GateResult:
    kernel = session.subject.kernel
    cases = kernel.integer_cases()
    if not cases:
        reason = f"{kernel.op} has no integer-exact case; add one to the kernel's fixtures"
        return without_answer(ID, VERSION, "blocked", reason)
    named = {f"{kernel.op}#integer/{case.name}": case for case in cases}
    # A case that is right once and wrong on return would be missed by one pass.
    steps = [
        Step(subject=key, inputs=_given(case), constants=case.constants, placement=placement)
        for placement in ("same", "moved")
        for key, case in named.items()
    ]
    swept = sweep(
        session, ID, steps, lambda step, _: named[step.subject].expected, to_the_end=False
    )
    proof = document(
        session,
        (ID, VERSION),
        unit="integer execution",
        expected=len(steps),
        cases=swept.cases,
    )
    return conclude(session, proof, swept, steps)


def _given(case: IntegerCase) -> Callable[[], Tensors]:
    return lambda: case.inputs


INTEGERS = Gate(id=ID, title="integer-exact plumbing", version=VERSION, check=_check)
