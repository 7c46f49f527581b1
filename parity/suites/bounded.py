"""Cases whose claim is a bound: how far each side may be from the value in float64."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bitgate.parity.suites.cases import Case, make
from bitgate.parity.suites.composition import Inputs
from bitgate.parity.suites.judge import shapes
from bitgate.parity.suites.results import CaseResult, Checked, agree


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An implementation of the experts, and what to call it."""

    name: str
    call: Callable[[Inputs], Tensor]


def bounded(
    case: Case,
    device: str,
    sides: tuple[Side, Side],
    claim: str,
    oracle: Callable[[Inputs], tuple[Tensor, Tensor]],
) -> CaseResult:
    """Compare ours and theirs with value and bound of `oracle`, and each with itself, again."""
    checked: list[Checked] = []
    for number, inputs in enumerate(make(case, device), 1):
        prefix = f"call {number}: " if case.calls > 1 else ""
        value, bound = oracle(inputs)
        for side in sides:
            out = side.call(inputs)
            checked.append(within(f"{prefix}{side.name}, out", out, value, bound))
            again = f"{prefix}{side.name}, called again"
            checked.append(Checked.bits(again, out, side.call(inputs)))
    return CaseResult(
        name=case.name,
        asks=case.asks,
        status="within bound" if agree(checked) else "outside bound",
        claim=claim,
        sides=(sides[0].name, sides[1].name),
        shapes=shapes(case),
        checked=tuple(checked),
    )


def within(boundary: str, out: Tensor, value: Tensor, bound: Tensor) -> Checked:
    """Whether every element of `out` is as near to `value` as `bound` allows."""
    error = (out.cpu().double() - value).abs()
    # A NaN is never within: the comparison is false for it.
    outside = ~(error <= bound)
    difference = None
    if bool(outside.any()):
        worst = float((error / bound)[outside].max())
        first = outside.nonzero()[0].tolist()
        difference = (
            f"{int(outside.sum())} of {outside.numel()} elements outside the bound, the first at "
            f"{first}; the worst error is {worst:.3g} of its bound"
        )
    return Checked(boundary=boundary, compared=out.numel(), difference=difference)
