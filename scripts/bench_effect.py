"""How often the effect claims a difference that is not there, and how soon one that is.

Prints the figures; takes about half a minute. Run it as `python scripts/bench_effect.py [RUNS]`.
"""

import sys
from statistics import median

import numpy as np

from bitgate.bench.noise import Noise, run

NULLS = {
    "independent noise": Noise(),
    "drift of one sd": Noise(drift=0.01),
    "AR(1) 0.9": Noise(rho=0.9),
    "AR(1) 0.9 and drift": Noise(rho=0.9, drift=0.05),
    "first slot 0.3 % slower": Noise(slot=0.003),
}


def main(runs: int = 2000, rounds: int = 200) -> None:
    """Print false claims per kind of noise, then the rounds that true gains need."""
    for name, noise in NULLS.items():
        claims = [
            run(noise, rounds=rounds, generator=np.random.default_rng(seed)).effect
            for seed in range(runs)
        ]
        false = sum(effect in {"FASTER", "SLOWER"} for effect in claims)
        print(f"false claims, {name}: {100 * false / runs:.2f} % of {runs}")
    # Two calls of a pair with sd s each give a log ratio with sd s * sqrt(2).
    pair_noise = Noise(spread=0.01 / 2**0.5)
    for gain in (0.005, 0.01, 0.02):
        found = [
            run(pair_noise, rounds=rounds, gain=gain, generator=np.random.default_rng(seed))
            for seed in range(runs)
        ]
        confirmed = [claim.rounds for claim in found if claim.effect == "FASTER"]
        print(
            f"true gain {100 * gain:.1f} %, log-ratio sd 1 %: confirmed in "
            f"{100 * len(confirmed) / runs:.1f} %, after a median of {median(confirmed)} rounds"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
