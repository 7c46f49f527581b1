"""Synthetic timings of the kinds that fool benchmarks, to measure how often the effect is wrong.

The figures of `scripts/bench_effect.py` and the tests come from here. All noise is in the logarithm
of a time; every call of a round has its own place in the sequence, as on a real machine.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bitgate.bench.signs import Claim, claim

BASE_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Relative noise of one call: `spread` is its sd, `rho` its AR(1) memory from call to call.

    `drift` is the relative change from the first call to the last, `slot` the relative penalty of
    running first in a round.
    """

    spread: float = 0.01
    rho: float = 0.0
    drift: float = 0.0
    slot: float = 0.0


def pairs(
    noise: Noise, *, rounds: int, gain: float, generator: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Baseline and candidate times in nanoseconds for coin-flipped rounds.

    Args:
        noise: what the machine does.
        rounds: how many pairs.
        gain: relative saving of the candidate; 0 for two equal sides.
        generator: drives the noise and the coin.
    """
    calls = 2 * rounds
    fresh = generator.standard_normal(calls) * noise.spread * np.sqrt(1 - noise.rho**2)
    logs = np.empty(calls)
    state = generator.standard_normal() * noise.spread
    for call in range(calls):
        state = noise.rho * state + fresh[call]
        logs[call] = state
    logs += np.linspace(0.0, noise.drift, calls)
    logs[::2] += noise.slot
    slots = np.exp(logs).reshape(rounds, 2)
    baseline_first = generator.integers(2, size=rounds) == 0
    baseline = np.where(baseline_first, slots[:, 0], slots[:, 1])
    candidate = np.where(baseline_first, slots[:, 1], slots[:, 0]) * (1 - gain)
    return _whole(baseline), _whole(candidate)


def run(
    noise: Noise,
    *,
    rounds: int,
    generator: np.random.Generator,
    gain: float = 0.0,
    margin: str = "0",
) -> Claim:
    """The claim of one synthetic run at alpha 0.05."""
    baseline, candidate = pairs(noise, rounds=rounds, gain=gain, generator=generator)
    return claim(baseline, candidate, margin=Fraction(margin), alpha=Fraction(1, 20))


def _whole(times: np.ndarray) -> list[int]:
    return [int(time) for time in np.rint(times * BASE_NS)]
