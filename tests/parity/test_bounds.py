import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr

from bitgate.parity.bounds import bound, clustered, needed, per_run, percent, scaled
from bitgate.records.errors import UsageError
from bitgate.records.types import InvariantError

PROBABILITIES = st.integers(min_value=1, max_value=9999).map(lambda n: f"{n / 10000:.4f}")
CONFIDENCES = st.sampled_from(["0.5", "0.9", "0.95", "0.99", "0.999"])


@pytest.mark.parametrize(
    ("trials", "at_95", "at_99"),
    [
        (4, "53 %", "69 %"),
        (10, "26 %", "37 %"),
        (40, "7.3 %", "11 %"),
        (59, "5.0 %", "7.6 %"),
        (299, "1.0 %", "1.6 %"),
        (1000, "0.30 %", "0.46 %"),
        (3000, "0.10 %", "0.16 %"),
    ],
)
def test_clean_trials_prove_what_the_published_table_says(trials, at_95, at_99):
    assert percent(bound(0, trials, "x")) == at_95
    assert percent(bound(0, trials, "x", "0.99")) == at_99


def test_forty_clean_cases_prove_less_than_they_seem_to():
    assert Decimal("0.0721") < Decimal(bound(0, 40, "case").upper) < Decimal("0.0722")


@given(p=PROBABILITIES, confidence=CONFIDENCES)
def test_needed_is_the_smallest_count_whose_bound_keeps_the_promise(p, confidence):
    trials = needed(p, confidence)
    assert Decimal(bound(0, trials, "x", confidence).upper) <= Decimal(p)
    if trials > 1:
        exact = 1 - (1 - float(confidence)) ** (1 / (trials - 1))
        # One trial fewer promises more than p, up to the upward rounding of the printed digits.
        assert exact * (1 + 1e-3) > float(p)


@given(trials=st.integers(1, 5000), failures=st.integers(0, 40), confidence=CONFIDENCES)
def test_the_bound_falls_with_trials_and_rises_with_failures(trials, failures, confidence):
    failures = min(failures, trials)
    here = Decimal(bound(failures, trials, "x", confidence).upper)
    assert Decimal(failures) / trials <= here <= 1
    assert Decimal(bound(failures, trials + 1, "x", confidence).upper) <= here
    if failures < trials:
        assert Decimal(bound(failures + 1, trials, "x", confidence).upper) >= here


def test_with_failures_the_bound_is_clopper_pearson():
    upper = float(bound(3, 100, "x").upper)
    # At the bound, three or fewer failures of a hundred have a chance of just under alpha.
    assert bdtr(3, 100, upper) == pytest.approx(0.05, rel=2e-3)
    assert bdtr(3, 100, upper) <= 0.05


@given(trials=st.integers(1, 10**7))
def test_rounding_never_makes_a_bound_smaller_than_the_truth(trials):
    exact = -math.expm1(math.log(0.05) / trials)
    assert float(bound(0, trials, "x").upper) >= exact * (1 - 1e-12)


@pytest.mark.parametrize(
    ("q", "run_percent"), [("0.000001", "0.56 %"), ("0.00001", "5.5 %"), ("0.0001", "43 %")]
)
def test_a_run_multiplies_what_one_boundary_risks(q, run_percent):
    single = replace(bound(0, 10, "boundary execution"), upper=q)
    same, token, run = scaled(single)
    assert same is single
    assert percent(run) == run_percent
    assert Decimal(single.upper) < Decimal(token.upper) < Decimal(run.upper)
    assert (token.trials, run.trials) == (10, 10)
    assert "87" in token.unit
    assert "64" in run.unit


def test_some_1_7_million_executions_make_a_sixty_four_token_claim():
    assert needed("0.0000018") == pytest.approx(1_660_000, rel=0.01)


def test_processes_are_the_unit_of_a_clustered_bound():
    clean = clustered([0] * 5)
    assert (clean.unit, clean.trials, clean.failures) == ("process", 5, 0)
    assert clustered([0, 50, 0, 0, 0]) == bound(1, 5, "process")


@pytest.mark.parametrize(("failures", "trials"), [(0, 0), (2, 1), (-1, 3)])
def test_counts_that_no_experiment_has_are_refused(failures, trials):
    with pytest.raises(InvariantError):
        bound(failures, trials, "x")


def test_no_process_is_no_evidence():
    with pytest.raises(InvariantError, match="zero trials"):
        clustered([])


def test_a_run_of_nothing_is_refused():
    with pytest.raises(InvariantError, match="at least one"):
        per_run(bound(0, 3, "x"), 0, "nothing")


@pytest.mark.parametrize("confidence", ["0", "1", "1.5", "-0.1"])
def test_a_confidence_outside_the_open_unit_interval_is_a_usage_error(confidence):
    with pytest.raises(UsageError, match="between 0 and 1"):
        bound(0, 3, "x", confidence)
    with pytest.raises(UsageError, match="between 0 and 1"):
        needed(confidence)
