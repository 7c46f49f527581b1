"""The operator vocabulary against hand-counted tensors and the published table."""

import math
from dataclasses import replace

import pytest

from bitgate.records.errors import UsageError
from bitgate.records.ops import OPERATORS, bytes_of, flops_of, operator
from bitgate.records.types import Workload


def mhc(op: str, tokens: int, hidden: int, streams: int = 4, dtype: str = "bfloat16") -> Workload:
    axes = (("hidden", hidden), ("streams", streams), ("tokens", tokens))
    return Workload(op=op, axes=axes, dtype=dtype)


@pytest.mark.parametrize(
    ("tokens", "hidden", "pre", "post", "fused"),
    [
        (1, 4096, 1_614_012, 73_808, 1_655_052),
        (1, 7168, 2_824_380, 129_104, 2_896_140),
        (64, 4096, 4_199_532, 4_723_712, 6_826_092),
        (8192, 4096, 337_772_652, 604_635_136, 673_972_332),
        (8192, 7168, 590_610_540, 1_057_619_968, 1_178_468_460),
    ],
)
def test_mhc_bytes_are_the_published_ones(tokens, hidden, pre, post, fused):
    assert bytes_of(mhc("mhc_pre", tokens, hidden)) == pre
    assert bytes_of(mhc("mhc_post", tokens, hidden)) == post
    assert bytes_of(mhc("mhc_post_pre", tokens, hidden)) == fused


@pytest.mark.parametrize("streams", [2, 4, 8])
@pytest.mark.parametrize(("dtype", "element"), [("bfloat16", 2), ("float32", 4)])
def test_mhc_bytes_are_the_sizes_of_the_tensors(streams, dtype, element):
    tokens, hidden, mixes = 5, 48, streams * (streams + 2)
    residual = (tokens, streams, hidden)
    wide = [residual, (tokens, hidden)]
    narrow = [(mixes, streams * hidden), (3,), (mixes,), (tokens, streams), (tokens, streams**2)]
    expected = element * sum(map(math.prod, wide)) + 4 * sum(map(math.prod, narrow))
    assert bytes_of(mhc("mhc_pre", tokens, hidden, streams, dtype)) == expected


def test_moe_counts():
    axes = {"experts": 8, "hidden": 128, "intermediate": 64, "tokens": 16, "top_k": 2}
    workload = Workload(op="moe_experts", axes=tuple(axes.items()), dtype="bfloat16")
    rows, choices, weights = 2 * 16 * 128 * 2, 16 * 2 * 12, 2 * (2 * 64 * 128 + 128 * 64) * 2
    assert bytes_of(workload) == rows + choices + weights
    assert flops_of(workload) == 16 * 2 * 2 * (128 * 128 + 64 * 128)


@pytest.mark.parametrize("known", OPERATORS, ids=lambda known: known.name)
def test_every_operator_is_complete(known):
    names = [name for name, _ in known.axes]
    assert names == sorted(names)
    one = Workload(op=known.name, axes=tuple((name, 4) for name in names), dtype="bfloat16")
    two = replace(one, axes=tuple((n, 8 if n == "tokens" else 4) for n in names))
    assert 0 < bytes_of(one) < bytes_of(two)
    assert 0 < flops_of(one) == flops_of(two) // 2
    assert known.envelope
    assert known.source
    assert operator(known.name) is known


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"'mhc_pro'; known are mhc_pre, mhc_post, mhc_post_pre"):
        operator("mhc_pro")
    with pytest.raises(UsageError, match="expected the axes hidden, streams, tokens"):
        bytes_of(Workload(op="mhc_pre", axes=(("tokens", 1),), dtype="bfloat16"))
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        flops_of(mhc("mhc_pre", 1, 1, dtype="int3"))
