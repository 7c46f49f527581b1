"""The sign test that may be looked at after every round: coin flips carry its validity.

In each round a fair coin decides which side runs first. For two equal implementations the faster
*slot* of a round is then the candidate's with probability one half, whatever drift, autocorrelation
or slot penalty the times have. Bets on the coin multiply a stake `e`; under equality the stake ever
reaches 1/alpha with probability alpha at most (Ville), so a run may stop at any round and claim.

One side's stake is the likelihood ratio of the signs against one half, averaged over a uniform
prior on the success probability in (1/2, 1). With s successes in n signs that integral is exactly
sum(C(n+1, k), k = 0..s) / ((n+1) C(n, s)), so no floating point enters a claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import comb

from bitgate.records.types import Effect


@cache
def stake(successes: int, failures: int) -> Fraction:
    """The stake of a one-sided bet after these signs; 1 before any."""
    signs = successes + failures
    tail = sum(comb(signs + 1, k) for k in range(successes + 1))
    return Fraction(tail, (signs + 1) * comb(signs, successes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """How often a margin was beaten or missed, by direction; exact ties count for neither.

    `faster` counts rounds with baseline > (1 + margin) candidate, `not_faster` those with less;
    `slower` counts candidate > (1 + margin) baseline, `not_slower` those with less.
    """

    faster: int = 0
    not_faster: int = 0
    slower: int = 0
    not_slower: int = 0

    def after(self, baseline_ns: int, candidate_ns: int, factor: Fraction) -> "Signs":
        """The counts with one more round; `factor` is 1 + margin."""
        gain = baseline_ns - factor * candidate_ns
        loss = candidate_ns - factor * baseline_ns
        return Signs(
            faster=self.faster + (gain > 0),
            not_faster=self.not_faster + (gain < 0),
            slower=self.slower + (loss > 0),
            not_slower=self.not_slower + (loss < 0),
        )

    @property
    def e_faster(self) -> Fraction:
        """The stake against 'the candidate is not faster by more than the margin'."""
        return stake(self.faster, self.not_faster)

    @property
    def e_slower(self) -> Fraction:
        """The stake against 'the candidate is not slower by more than the margin'."""
        return stake(self.slower, self.not_slower)

    @property
    def e_value(self) -> Fraction:
        """The two-sided stake: half on each direction, so both together stay within alpha."""
        return (self.e_faster + self.e_slower) / 2

    @property
    def e_same(self) -> Fraction:
        """The stake for equivalence: both 'faster' and 'slower' by the margin must be refuted."""
        return min(stake(self.not_faster, self.faster), stake(self.not_slower, self.slower))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the signs say after `rounds` rounds: a claim at its first crossing, or none yet."""

    effect: Effect
    rounds: int
    signs: Signs


def claim(
    baseline_ns: Sequence[int],
    candidate_ns: Sequence[int],
    *,
    margin: Fraction,
    alpha: Fraction,
    earliest: int = 1,
) -> Claim:
    """Walk through the rounds and stop at the first that carries a claim.

    Args:
        baseline_ns: one sample per round, in nanoseconds.
        candidate_ns: its partner in the same round.
        margin: relative difference that counts as none; with 0 equivalence cannot be shown.
        alpha: how often a false FASTER or SLOWER may be claimed, over the whole run.
        earliest: no claim before this many rounds (every process must have had its say).

    Returns:
        FASTER, SLOWER or SAME with the round of the claim, else INCONCLUSIVE after all rounds.
    """
    threshold = 1 / alpha
    steps = accumulate(
        zip(baseline_ns, candidate_ns, strict=True),
        lambda signs, pair: signs.after(*pair, 1 + margin),
        initial=Signs(),
    )
    signs = Signs()
    for rounds, signs in enumerate(steps):
        if rounds >= earliest:
            effect = _crossed(signs, threshold)
            if effect is not None:
                return Claim(effect=effect, rounds=rounds, signs=signs)
    return Claim(effect="INCONCLUSIVE", rounds=len(baseline_ns), signs=signs)


def _crossed(signs: Signs, threshold: Fraction) -> Effect | None:
    if signs.e_value >= threshold:
        return "FASTER" if signs.e_faster > signs.e_slower else "SLOWER"
    return "SAME" if signs.e_same >= threshold else None
