"""From the raw samples of a measurement to what may be said about them.

Everything here is a pure function of the stored `Measurement`, so that promotion recomputes it from
the ledger instead of trusting what the run printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bitgate.bench.signs import Claim, claim
from bitgate.records.coin import flips
from bitgate.records.stats import median_ns, ratio_median
from bitgate.records.types import Effect, Measurement, Pairs

# A run of a side against itself may raise a false alarm once in 400 workloads: at the 5 % of an
# effect, every fifth session of four workloads would be called unfit by chance.
NULL_ROUNDS = 20
NULL_ALPHA = "0.0025"
RESOLUTION_FACTOR = 10
BOOTSTRAP_SAMPLES = 2000

# A mean of 80 % power at two-sided 5 %, and what a median loses against a mean.
_POWER_FACTOR = 2.8 * 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectReport:
    """The effect with the numbers behind it; every number is a decimal string.

    `speedup` is the median over rounds of baseline / candidate (above 1: the candidate is faster),
    `ci_low` and `ci_high` its 95 % interval, `e_value` the two-sided stake at `rounds_used`,
    `e_same` the stake for equivalence there, `resolvable` the relative difference that this many
    rounds of this noise resolve, `saving_ns` the median saving per call. `reasons` are (code,
    sentence) pairs; INVALID has at least one.
    """

    effect: Effect
    speedup: str
    ci_low: str
    ci_high: str
    e_value: str
    e_same: str
    resolvable: str
    rounds_used: int
    saving_ns: int
    reasons: Pairs = ()

    @property
    def summary(self) -> str:
        """One line: the effect, the ratio with its interval, the stake and the rounds."""
        numbers = (
            f"{self.effect}, {_short(self.speedup)}x "
            f"(95 % CI {_short(self.ci_low)} to {_short(self.ci_high)}), "
            f"e = {self.e_value} after {self.rounds_used} rounds"
        )
        return "; ".join([numbers, *(sentence for _, sentence in self.reasons)])


def effect(measurement: Measurement) -> EffectReport:
    """Judge a measurement: FASTER, SLOWER, SAME, INCONCLUSIVE or INVALID, with the numbers."""
    plan = measurement.plan
    found = claim(
        measurement.baseline_ns,
        measurement.candidate_ns,
        margin=Fraction(plan.margin),
        alpha=Fraction(plan.alpha),
        earliest=_all_processes_seen(measurement.process, plan.processes),
    )
    log_ratios = np.log(np.array(measurement.baseline_ns) / np.array(measurement.candidate_ns))
    low, high = _interval(log_ratios, np.array(measurement.process), plan.order_seed)
    invalid = faults(measurement)
    pairs = (measurement.baseline_ns, measurement.candidate_ns)
    return EffectReport(
        effect="INVALID" if invalid else found.effect,
        speedup=ratio_median(*pairs),
        ci_low=f"{np.exp(low):.6f}",
        ci_high=f"{np.exp(high):.6f}",
        e_value=_stake_text(found.signs.e_value),
        e_same=_stake_text(found.signs.e_same),
        resolvable=_resolvable(log_ratios),
        rounds_used=found.rounds,
        saving_ns=median_ns([old - new for old, new in zip(*pairs, strict=True)]),
        reasons=invalid or _unclaimed(found, plan.rounds),
    )


def faults(measurement: Measurement) -> Pairs:
    """Why the samples carry no claim at all: (code, sentence) pairs; empty where they do.

    `too-short`: a sample is under ten clock ticks. `one-value`: the clock repeats itself.
    `order`: the sides did not run in the order that the declared seed gives. `rounds`: more rounds
    than declared. `discards`: so many discarded that the rest is a selection. `processes`: fewer
    processes than declared. `no-null-run` and `unfit`: the baseline was not, or not successfully,
    timed against itself.
    """
    plan = measurement.plan
    calls = plan.calls_per_sample
    taken, dropped = len(measurement.baseline_ns), len(measurement.discards)
    samples = measurement.baseline_ns + measurement.candidate_ns
    shortest_ns = min(samples) * calls
    needed_ns = RESOLUTION_FACTOR * measurement.resolution_ns
    null_rounds = len(measurement.null_order)
    too_short = (
        f"a sample took {shortest_ns} ns, expected at least {needed_ns} ns "
        f"({RESOLUTION_FACTOR} x the clock's resolution); time more calls per sample"
    )
    checks = (
        (shortest_ns < needed_ns, "too-short", too_short),
        (
            taken >= NULL_ROUNDS and len(set(samples)) == 1,
            "one-value",
            f"all {len(samples)} samples read {samples[0]} ns; no real clock does that",
        ),
        (
            not _order_as_declared(measurement),
            "order",
            f"the order of the sides is not the one that order seed {plan.order_seed} gives",
        ),
        (
            taken + dropped > plan.rounds,
            "rounds",
            f"{taken} rounds and {dropped} discards, but {plan.rounds} were declared",
        ),
        (
            dropped > taken,
            "discards",
            f"{dropped} rounds were discarded and {taken} kept; what is left is a selection",
        ),
        (
            len(set(measurement.process)) < plan.processes,
            "processes",
            f"samples from {len(set(measurement.process))} processes, expected {plan.processes}",
        ),
        (
            null_rounds < NULL_ROUNDS,
            "no-null-run",
            f"{null_rounds} rounds of the baseline against itself, expected {NULL_ROUNDS} or more",
        ),
    )
    return tuple((code, text) for bad, code, text in checks if bad) + _null_faults(measurement)


def _null_faults(measurement: Measurement) -> Pairs:
    plan = measurement.plan
    if not measurement.null_order:
        return ()
    null = claim(
        measurement.null_baseline_ns,
        measurement.null_candidate_ns,
        margin=Fraction(plan.margin),
        alpha=Fraction(NULL_ALPHA),
    )
    if null.effect not in {"FASTER", "SLOWER"}:
        return ()
    text = (
        f"the baseline timed against itself claims {null.effect} after {null.rounds} rounds; "
        "this session measures something else than the code: free the machine and run again"
    )
    return (("unfit", text),)


def _order_as_declared(measurement: Measurement) -> bool:
    seed = measurement.plan.order_seed
    dropped = {discard.round for discard in measurement.discards}
    total = len(measurement.order) + len(dropped)
    declared = flips(seed, total)
    kept = "".join(side for index, side in enumerate(declared) if index not in dropped)
    null = flips(seed, len(measurement.null_order), "null")
    return measurement.order == kept and measurement.null_order == null


def _all_processes_seen(process: Sequence[int], expected: int) -> int:
    """The first round count at which every process has contributed; past the end if never."""
    seen: set[int] = set()
    for rounds, number in enumerate(process, start=1):
        seen.add(number)
        if len(seen) >= expected:
            return rounds
    return len(process) + 1


def _interval(log_ratios: np.ndarray, process: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval of the median: processes are drawn first, then their rounds.

    Rounds of one process share its memory layout and its luck; drawing rounds alone would treat
    them as independent and give an interval that is too narrow.
    """
    generator = np.random.default_rng(seed)
    blocks = [log_ratios[process == number] for number in np.unique(process)]
    medians = np.empty(BOOTSTRAP_SAMPLES)
    for sample in range(BOOTSTRAP_SAMPLES):
        drawn = generator.integers(len(blocks), size=len(blocks))
        rounds = [blocks[i][generator.integers(len(blocks[i]), size=len(blocks[i]))] for i in drawn]
        medians[sample] = np.median(np.concatenate(rounds))
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def _resolvable(log_ratios: np.ndarray) -> str:
    if len(log_ratios) < 2:
        return "1.0000"
    spread = float(np.std(log_ratios, ddof=1))
    return f"{_POWER_FACTOR * spread / np.sqrt(len(log_ratios)):.4f}"


def _short(number: str) -> str:
    return f"{float(number):.3f}"


def _stake_text(stake: Fraction) -> str:
    return f"{float(stake):.2f}" if stake < 1000 else str(int(stake))


def _unclaimed(found: Claim, declared: int) -> Pairs:
    if found.effect != "INCONCLUSIVE":
        return ()
    text = f"no claim within {found.rounds} of {declared} declared rounds"
    return (("no-claim", text),)
