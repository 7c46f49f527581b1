"""The table of vLLM's versions: without gaps between what was read, and closed at its ends."""

from itertools import pairwise

import pytest

from bitgate.kernels.moe.align_layouts import LAYOUTS
from bitgate.parity.suites.vllm_versions import VERSIONS, rules_for
from bitgate.records.errors import EnvironmentUnfit

RELEASES = [
    *("0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.13.0", "0.14.1", "0.16.0", "0.17.1", "0.18.1"),
    *("0.20.2", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.31.0", "0.32.0", "0.33.0"),
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("suffix", ["", "+cu128", ".post1"])
def test_every_release_is_in_one_range(release, suffix):
    rules = rules_for(release + suffix)
    number = tuple(map(int, release.split(".")))
    assert rules.first <= number
    assert sum(one.first <= number and number[:2] <= one.last[:2] for one in VERSIONS) == 1


def test_the_ranges_ascend_and_name_layouts_that_exist():
    assert list(VERSIONS) == sorted(VERSIONS, key=lambda rules: rules.first)
    for earlier, later in pairwise(VERSIONS):
        assert earlier.last < later.first
    assert {rules.layout for rules in VERSIONS} <= {layout.name for layout in LAYOUTS}


@pytest.mark.parametrize(
    ("release", "told"),
    [
        ("0.10.2", ("flags", "bf16-step", "divide", "vllm-0.10.2", 32768, False)),
        ("0.12.0", ("config", "bf16-step", "divide", "vllm-0.10.2", 32768, False)),
        ("0.13.0", ("config", "bf16-step", "divide", "vllm-0.13", 32768, True)),
        ("0.16.0", ("config", "bf16-step", "divide", "vllm-0.13", 32768, True)),
        ("0.17.1", ("config", "bf16-step", "divide", "vllm-0.33", 32768, True)),
        ("0.24.0", ("config", "bf16-step", "divide", "vllm-0.33", None, True)),
        ("0.25.0", ("config", "fp32", "divide", "vllm-0.33", None, True)),
        ("0.32.0", ("config", "fp32", "divide", "vllm-0.33", None, True)),
        ("0.33.0", ("config", "fp32", "reciprocal", "vllm-0.33", None, True)),
    ],
)
def test_what_changed_when(release, told):
    rules = rules_for(release)
    assert told == (
        rules.quantisation,
        rules.moe_sum,
        rules.quantiser,
        rules.layout,
        rules.chunk_tokens,
        rules.drops_nonlocal,
    )


@pytest.mark.parametrize("version", ["0.10.1", "0.34.0", "1.0.0", "0.33.0rc1", "0.1.dev9+g1", ""])
def test_an_unknown_version_is_told_what_to_do(version):
    with pytest.raises(EnvironmentUnfit, match=r"vllm_versions\.py.*--assume-version 0\.33\.0"):
        rules_for(version)


def test_an_assumed_version_is_used_and_must_be_known():
    assert rules_for("0.34.0", "0.33.0") is rules_for("0.33.0")
    with pytest.raises(EnvironmentUnfit, match=r"got 0\.34\.0"):
        rules_for("0.33.0", "0.34.0")
