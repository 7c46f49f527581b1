"""What clean trials prove: exact upper bounds on a failure probability, always rounded upward.

A bound speaks about the sampled conditions only. Repeats inside one process are correlated; for
faults drawn once per process the process is the unit (`clustered`).
"""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal, localcontext

from bitgate.records.base import require, require_decimal
from bitgate.records.errors import UsageError
from bitgate.records.types import Bound

CONFIDENCE = "0.95"
# One boundary after the embedding, 85 fused ones and the last: a decode token of the served model
# for which the project's bounds are quoted. Callers that know their model pass its own count.
DECODE_BOUNDARIES = 87
RUN_TOKENS = 64

_PRECISION = 60
_SIGNIFICANT_DIGITS = 4


def bound(failures: int, trials: int, unit: str, confidence: str = CONFIDENCE) -> Bound:
    """The one-sided upper bound on the failure probability per `unit`.

    Exact: 1 - alpha^(1/n) without failures, Clopper-Pearson with some.

    Args:
        failures: failing trials, at least 0 and at most `trials`.
        trials: independent trials of the unit, at least 1.
        unit: what one trial was, such as "boundary execution" or "process".
        confidence: decimal string between 0 and 1, both excluded.

    Raises:
        InvariantError: counts that no experiment has; zero trials prove nothing.
        UsageError: a confidence that is not strictly between 0 and 1.
    """
    alpha = 1 - _open_unit(confidence, "confidence")
    require(0 <= failures <= trials, f"bound: {failures} failures of {trials} trials")
    require(trials > 0, "bound: zero trials prove nothing; run at least one")
    if failures == trials:
        upper = Decimal(1)
    elif failures == 0:
        with localcontext(Context(prec=_PRECISION)):
            upper = 1 - (alpha.ln() / trials).exp()
    else:
        upper = _clopper_pearson(failures, trials, float(alpha))
    return _bound(unit, trials, failures, confidence, upper)


def needed(p: str, confidence: str = CONFIDENCE) -> int:
    """The smallest number of clean trials after which `bound` is at most `p`.

    Args:
        p: decimal string between 0 and 1, both excluded.
        confidence: decimal string between 0 and 1, both excluded.

    Raises:
        UsageError: a probability that is not strictly between 0 and 1.
    """
    target = _open_unit(p, "p")
    alpha = 1 - _open_unit(confidence, "confidence")
    with localcontext(Context(prec=_PRECISION)):
        trials = max(1, math.ceil(alpha.ln() / (1 - target).ln()))
    # The printed bound is rounded upward, so the last trial may be one short of the promise.
    while Decimal(bound(0, trials, "trial", confidence).upper) > target:
        trials += 1
    return trials


def clustered(failures_by_process: Sequence[int], confidence: str = CONFIDENCE) -> Bound:
    """The bound with the process as its unit; a process with any failure is one failure."""
    failing = sum(1 for failures in failures_by_process if failures > 0)
    return bound(failing, len(failures_by_process), "process", confidence)


def per_run(single: Bound, executions: int, unit: str) -> Bound:
    """The bound for a run of `executions` units: 1 - (1 - p)^executions, rounded upward.

    The trials and failures stay those that were observed.
    """
    require(executions > 0, f"per_run: expected at least one execution, got {executions}")
    with localcontext(Context(prec=_PRECISION)):
        upper = 1 - (1 - Decimal(single.upper)) ** executions
    return _bound(unit, single.trials, single.failures, single.confidence, upper)


def scaled(
    single: Bound, boundaries: int = DECODE_BOUNDARIES, tokens: int = RUN_TOKENS
) -> tuple[Bound, Bound, Bound]:
    """The bound per boundary, per token of `boundaries`, and per run of `tokens` tokens."""
    token = per_run(single, boundaries, f"token of {boundaries} boundaries")
    run = per_run(
        single, boundaries * tokens, f"{tokens}-token run of {boundaries} boundaries a token"
    )
    return single, token, run


def percent(bound: Bound) -> str:
    """The upper bound as a percentage with at least two digits, rounded upward."""
    return f"{_ceiling(Decimal(bound.upper) * 100, 2):f} %"


def _clopper_pearson(failures: int, trials: int, alpha: float) -> Decimal:
    from scipy.special import betaincinv

    upper = float(betaincinv(failures + 1, trials - failures, 1 - alpha))
    # The inverse is a floating-point iteration; its error must not make the bound too small.
    return Decimal(min(1.0, upper * (1 + 1e-9)))


def _bound(unit: str, trials: int, failures: int, confidence: str, upper: Decimal) -> Bound:
    return Bound(
        unit=unit,
        trials=trials,
        failures=failures,
        confidence=confidence,
        upper=f"{min(_ceiling(upper, _SIGNIFICANT_DIGITS), Decimal(1)):f}",
    )


def _ceiling(value: Decimal, digits: int) -> Decimal:
    if value == 0:
        return value
    for _ in range(2):  # 0.996 becomes 1.00 and then 1.0: a carry adds a digit
        value = value.quantize(Decimal(1).scaleb(value.adjusted() - digits + 1), ROUND_CEILING)
    return value


def _open_unit(text: str, name: str) -> Decimal:
    number = require_decimal(text, name)
    if not 0 < number < 1:
        raise UsageError(
            f"{name}: expected a number between 0 and 1, both excluded, got {text}; "
            "for example 0.95 or 0.01"
        )
    return number
