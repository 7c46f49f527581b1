"""The judge of what a child sent back."""

import pytest
import torch

from bitgate.bench.witness import (
    TimingRefused,
    clock_quarrel,
    verify_conduct,
    verify_rival,
    verify_sample,
    verify_settings,
)
from bitgate.kernels import catalogue

KERNEL = catalogue.kernel("mhc_pre")
OUTPUTS = {
    "post": torch.ones(2, 4),
    "comb": torch.ones(2, 4, 4),
    "layer_input": torch.ones(2, 8).bfloat16(),
}
GOOD = {"ns": 1000, "host_ns": 1100, "cpu_ns": 1000, "changed": [], "threads": 0}
LONG = {"ns": 1_000_000, "host_ns": 1_000_000}


def code_of(call):
    with pytest.raises(TimingRefused) as caught:
        call()
    return caught.value.code


def test_an_honest_sample_is_accepted():
    verify_sample(KERNEL, "s", "C", [OUTPUTS], [list(OUTPUTS.values())])
    verify_conduct(KERNEL, "C", GOOD, 2000, 1)
    verify_settings({"threads": "1"}, {"threads": "1"}, "x")
    assert clock_quarrel("C", GOOD, 50) is None


@pytest.mark.parametrize("place", range(3))
def test_one_flipped_bit_in_any_output_is_refused(place):
    returned = [tensor.clone() for tensor in OUTPUTS.values()]
    returned[place].view(torch.int16).reshape(-1)[-1] ^= 1
    with pytest.raises(TimingRefused, match="differs from the reference") as caught:
        verify_sample(KERNEL, "s", "C", [OUTPUTS], [returned])
    assert caught.value.comparison.mismatches[0].tensor == list(OUTPUTS)[place]
    assert (caught.value.side, caught.value.code) == ("C", "output")


@pytest.mark.parametrize("returned", [[], list(OUTPUTS.values())[:2], [1, 2, 3]])
def test_missing_outputs_are_refused(returned):
    call = lambda: verify_sample(KERNEL, "s", "B", [OUTPUTS], [returned])  # noqa: E731
    assert code_of(call) == "output"


def test_empty_outputs_prove_nothing():
    empty = {name: tensor[:0] for name, tensor in OUTPUTS.items()}
    call = lambda: verify_sample(KERNEL, "s", "C", [empty], [list(empty.values())])  # noqa: E731
    assert code_of(call) == "output"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ns": 0}, "clock"),
        ({"ns": -5}, "clock"),
        ({"host_ns": 0}, "clock"),
        ({"host_ns": 3000}, "clock"),
        ({"threads": 1}, "threads"),
        ({"changed": [[0, "residual"]]}, "input"),
    ],
)
def test_dishonest_samples_are_refused(change, code):
    assert code_of(lambda: verify_conduct(KERNEL, "C", GOOD | change, 2000, 1)) == code


def test_threads_that_were_taken_and_given_back_show_in_the_work():
    two = GOOD | LONG | {"cpu_ns": 1_800_000}
    assert code_of(lambda: verify_conduct(KERNEL, "C", two, 2_000_000, 1)) == "threads"
    verify_conduct(KERNEL, "C", two, 2_000_000, 2)


@pytest.mark.parametrize(
    ("alone_ns", "refused"), [(500, True), (700, True), (900, False), (1000, False), (2000, False)]
)
def test_a_candidate_must_not_slow_the_baseline_down(alone_ns, refused):
    times = [1000 + place for place in range(20)], [alone_ns + place for place in range(20)]
    if refused:
        assert code_of(lambda: verify_rival(*times)) == "rival"
    else:
        verify_rival(*times)


def test_a_few_slow_rounds_beside_the_candidate_are_no_sabotage():
    verify_rival([2000] * 12 + [1000] * 8, [1000] * 20)


def test_a_changed_setting_is_named():
    call = lambda: verify_settings({"threads": "1"}, {"threads": "4"}, "importing")  # noqa: E731
    with pytest.raises(TimingRefused, match="threads: 1 -> 4"):
        call()


@pytest.mark.parametrize(
    ("ns", "host_ns", "agree"),
    [
        (1_000_000, 1_010_000, True),
        (1_000_000, 2_000_000, False),
        (1_000_000, 999_000, False),
        (10_000, 1_000_000, False),
    ],
)
def test_two_clocks_must_explain_one_another(ns, host_ns, agree):
    quarrel = clock_quarrel("C", GOOD | {"ns": ns, "host_ns": host_ns}, gap_ns=500)
    assert (quarrel is None) == agree
