"""The effect: what the signs prove, when samples prove nothing, and how often it is wrong."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.bench.effect import NULL_ROUNDS as NULL
from bitgate.bench.effect import effect, faults
from bitgate.bench.noise import Noise, pairs, run
from bitgate.bench.signs import claim, stake
from bitgate.records.coin import flips
from bitgate.records.types import Discard, Measurement


def jitter(value: int, count: int = 20) -> list[int]:
    return [value + i for i in range(count)]


# --- the stake -----------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_stake_is_a_fair_game(successes, failures):
    ahead = (stake(successes + 1, failures) + stake(successes, failures + 1)) / 2
    assert ahead == stake(successes, failures)


@pytest.mark.parametrize("signs", [1, 5, 12])
def test_the_stake_is_its_integral(signs):
    grid = (np.arange(200_000) + 0.5) / 400_000 + 0.5
    for successes in range(signs + 1):
        failures = signs - successes
        exact = np.mean((2 * grid) ** successes * (2 - 2 * grid) ** failures)
        assert float(stake(successes, failures)) == pytest.approx(exact, rel=1e-6)


def test_the_two_sided_stake_is_the_uniform_mixture():
    for faster in range(8):
        both = (stake(faster, 7 - faster) + stake(7 - faster, faster)) / 2
        assert both == Fraction(2**7, 8 * comb(7, faster))


@given(st.integers(0, 2**62), st.integers(1, 60))
def test_flips_depend_on_seed_and_round_only(seed, rounds):
    assert flips(seed, rounds) == flips(seed, rounds + 7)[:rounds]
    assert set(flips(seed, rounds)) <= {"B", "C"}


def test_flips_are_fair_and_the_null_run_has_its_own():
    order = flips(1, 4000)
    assert 1850 < order.count("B") < 2150
    assert order[:60] != flips(1, 60, "null")


# --- the effect ----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(5_000, 9_000), st.integers(5_000, 9_000)), min_size=12),
    st.sampled_from(["0", "0.01", "0.2"]),
)
def test_swapping_the_sides_swaps_the_claim(samples, margin):
    baseline, candidate = (list(side) for side in zip(*samples, strict=True))
    settings = {"margin": Fraction(margin), "alpha": Fraction(1, 20)}
    here = claim(baseline, candidate, **settings)
    there = claim(candidate, baseline, **settings)
    swapped = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    assert there.effect == swapped.get(here.effect, here.effect)
    assert there.rounds == here.rounds


@given(st.lists(st.integers(5_000, 9_000), min_size=12, max_size=60), st.integers(2, 5))
def test_a_uniform_scale_is_always_found(baseline, factor):
    found = claim(
        [factor * time for time in baseline],
        baseline,
        margin=Fraction("0.05"),
        alpha=Fraction(1, 20),
    )
    assert found.effect == "FASTER"
    assert found.rounds == 8


@pytest.mark.parametrize(
    ("baseline", "candidate", "margin", "expected"),
    [
        (jitter(20_000), jitter(10_000), "0.01", "FASTER"),
        (jitter(10_000), jitter(20_000), "0.01", "SLOWER"),
        (jitter(10_000), jitter(10_001), "0.01", "SAME"),
        (jitter(10_000), jitter(10_000), "0", "INCONCLUSIVE"),
        (jitter(20_000, 5), jitter(10_000, 5), "0.01", "INCONCLUSIVE"),
    ],
)
def test_the_effects(baseline, candidate, margin, expected, fabricate):
    report = effect(fabricate(baseline, candidate, plan={"margin": margin}))
    assert report.effect == expected
    assert float(report.ci_low) <= float(report.speedup) <= float(report.ci_high)


def test_ties_are_no_evidence_in_either_direction():
    found = claim([10_000] * 200, [10_000] * 200, margin=Fraction(0), alpha=Fraction(1, 20))
    assert found.effect == "INCONCLUSIVE"
    assert found.signs.e_value == 1


def test_the_interval_is_as_wide_as_the_processes_differ(fabricate):
    baseline = [10_000] * 40
    candidate = [10_000 + (500 if i % 2 else -500) + i for i in range(40)]
    blocked = effect(fabricate(baseline, candidate, processes=2))
    assert float(blocked.ci_low) < 0.96
    assert float(blocked.ci_high) > 1.04


def test_the_effect_is_a_function_of_the_fabricate(fabricate):
    baseline, candidate = pairs(Noise(), rounds=40, gain=0.02, generator=np.random.default_rng(1))
    value = fabricate(baseline, candidate)
    assert effect(value) == effect(value)
    assert effect(value).effect == "FASTER"


def test_no_claim_before_every_process_had_its_say(fabricate):
    value = fabricate(jitter(20_000), jitter(10_000), processes=2, process=(0,) * 15 + (1,) * 5)
    assert effect(value).rounds_used == 16


# --- samples that prove nothing ------------------------------------------------------------------


def codes(value: Measurement) -> set[str]:
    assert effect(value).effect == ("INVALID" if faults(value) else effect(value).effect)
    return {code for code, _ in faults(value)}


def test_a_clean_measurement_has_no_fault(fabricate):
    assert codes(fabricate(jitter(20_000), jitter(10_000))) == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"resolution_ns": 2_000}, "too-short"),
        ({"candidate_ns": (20_000,) * 20, "baseline_ns": (20_000,) * 20}, "one-value"),
        ({"order": "B" * 20}, "order"),
        ({"null_order": "C" * NULL}, "order"),
        ({"process": (0,) * 20}, "processes"),
        ({"null_baseline_ns": (), "null_candidate_ns": (), "null_order": ""}, "no-null-run"),
        ({"null_baseline_ns": (11_000,) * NULL}, "unfit"),
        ({"null_candidate_ns": (11_000,) * NULL}, "unfit"),
        ({"plan": {"rounds": 19}}, "rounds"),
    ],
)
def test_a_planted_fault_is_named_and_invalid(changes, code, fabricate):
    value = fabricate(jitter(20_000), jitter(10_000), **changes)
    assert codes(value) == {code}
    assert effect(value).effect == "INVALID"


def test_discards_are_kept_with_their_reason_and_most_discarded_is_invalid(fabricate):
    dropped = tuple(
        Discard(round=i, baseline_ns=1, candidate_ns=1, reason="clocks") for i in range(21)
    )
    assert codes(fabricate(jitter(20_000), jitter(10_000), discards=dropped)) == {"discards"}
    assert codes(fabricate(jitter(20_000), jitter(10_000), discards=dropped[:3])) == set()


# --- how often it is wrong -----------------------------------------------------------------------

NULLS = {
    "drift": Noise(drift=0.05),
    "memory": Noise(rho=0.9),
    "memory and drift": Noise(rho=0.9, drift=0.05),
    "slot": Noise(slot=0.003),
}


def false_claims(noise: Noise, runs: int, rounds: int, margin: str = "0") -> int:
    found = [
        run(noise, rounds=rounds, margin=margin, generator=np.random.default_rng(seed)).effect
        for seed in range(runs)
    ]
    return sum(effect in {"FASTER", "SLOWER"} for effect in found)


@pytest.mark.parametrize("noise", NULLS.values(), ids=NULLS)
def test_equal_sides_rarely_claim(noise):
    assert false_claims(noise, runs=100, rounds=60) <= 9


@pytest.mark.slow
@pytest.mark.parametrize("noise", NULLS.values(), ids=NULLS)
def test_equal_sides_claim_within_alpha(noise):
    assert false_claims(noise, runs=2000, rounds=200) <= 100


def test_a_fixed_order_would_have_claimed():
    # Control: the same slot penalty without the coin is a claim, so the coin is what prevents it.
    generator = np.random.default_rng(0)
    slow = (10_000 * np.exp(0.003 + 0.001 * generator.standard_normal(60))).astype(int).tolist()
    fast = (10_000 * np.exp(0.001 * generator.standard_normal(60))).astype(int).tolist()
    found = claim(slow, fast, margin=Fraction(0), alpha=Fraction(1, 20))
    assert found.effect == "FASTER"


def test_a_true_gain_of_one_percent_is_found_soon():
    noise = Noise(spread=0.01 / 2**0.5)
    found = [
        run(noise, rounds=200, gain=0.01, generator=np.random.default_rng(seed))
        for seed in range(100)
    ]
    assert all(one.effect == "FASTER" for one in found)
    assert np.median([one.rounds for one in found]) <= 20
