"""Exact statistics against NumPy's floats and against hand-made cases."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.records.base import InvariantError
from bitgate.records.stats import decimal_string, median_ns, quantile_ns, ratio_median

SAMPLES = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


@given(samples=SAMPLES, percent=st.integers(0, 100))
def test_quantiles_agree_with_numpy(samples, percent):
    q = f"{percent / 100:.2f}"
    expected = float(np.quantile(np.array(samples, dtype=np.float64), float(q)))
    assert abs(quantile_ns(samples, q) - expected) <= 0.5 + 1e-6 * max(samples)


@given(samples=SAMPLES)
def test_the_median_does_not_depend_on_the_order(samples):
    assert median_ns(samples) == median_ns(sorted(samples, reverse=True))
    assert min(samples) <= median_ns(samples) <= max(samples)


def test_rounding_is_half_to_even():
    assert median_ns([1, 2]) == 2
    assert median_ns([2, 3]) == 2
    assert median_ns([7]) == 7


def test_ratios_are_paired_so_that_drift_cancels():
    drift = [1, 10, 100, 1000]
    assert ratio_median([2 * step for step in drift], drift) == "2.000000"
    assert ratio_median([1, 1, 1], [3, 3, 3]) == "0.333333"
    assert decimal_string(Fraction(1, 2_000_000)) == "0.000000"
    assert decimal_string(Fraction(10**9)) == "1000000000.000000"


def test_nothing_is_made_of_nothing():
    with pytest.raises(InvariantError, match="no sample"):
        median_ns([])
    with pytest.raises(InvariantError, match="2 baseline and 1 candidate"):
        ratio_median([1, 2], [1])
    with pytest.raises(InvariantError, match="expected 0 to 1"):
        quantile_ns([1], "1.5")
