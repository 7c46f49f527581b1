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


def moe(op: str, dtype: str = "bfloat16", **axes: int) -> Workload:
    return Workload(op=op, axes=tuple(sorted(axes.items())), dtype=dtype)


@pytest.mark.parametrize(
    ("workload", "elements", "fp32", "int32", "int64", "flops"),
    [
        (
            moe("moe_route", "float32", tokens=3, experts=8, top_k=2),
            (3 + 1) * 8,
            3 * 2,
            0,
            3 * 2,
            3 * 8 * 5 + 3 * 2 * 3,
        ),
        (
            moe("moe_route_hash", "float32", tokens=3, experts=8, top_k=2, vocab=50),
            3 * 2,
            3 * 2,
            0,
            2 * 3 * 2 + 3,
            3 * 2 * 7,
        ),
        (moe("moe_align", tokens=3, experts=8, top_k=2), 0, 0, 8 + 6 + 1 + 1, 6, 0),
        (moe("moe_align", tokens=0, experts=8, top_k=2), 0, 0, 8 + 1, 0, 0),
        (
            moe("moe_gemm", tokens=3, experts=8, top_k=2, k=5, n=7),
            3 * 5 + 6 * 7 + 2 * 7 * 5,
            6 * 7 + 6 + 2 * 7,
            6 + 1 + 1,
            0,
            2 * 6 * 7 * 5,
        ),
        (moe("moe_act", rows=6, intermediate=5), 6 * 10 + 6 * 5, 0, 0, 0, 6 * 5 * 5),
        (moe("moe_combine", tokens=3, top_k=2, hidden=5), 6 * 5 + 3 * 5, 0, 0, 6, 6 * 5),
        (moe("moe_combine_weighted", tokens=3, top_k=2, hidden=5), 45, 6, 0, 6, 2 * 6 * 5),
        # Of each group 16 bytes of codes and 1 of scale: 51 words.
        (moe("moe_dequant_mxfp4", rows=3, groups=4), 3 * 4 * 32, 0, 51, 0, 0),
    ],
    ids=lambda value: value.key if isinstance(value, Workload) else "",
)
def test_moe_stages_are_counted_by_their_tensors(workload, elements, fp32, int32, int64, flops):
    element = 4 if workload.dtype == "float32" else 2
    assert bytes_of(workload) == element * elements + 4 * (fp32 + int32) + 8 * int64
    assert flops_of(workload) == flops


def test_float8_matmuls_are_counted_by_their_tensors():
    gemm = moe(
        "moe_gemm_fp8",
        "float8_e4m3fn",
        tokens=3,
        experts=8,
        top_k=2,
        k=200,
        n=130,
        group_n=128,
        group_k=64,
    )
    codes, results = 3 * 200 + 2 * 200 * 130, 6 * 130
    # Of a row 4 groups; of a weight 2 by 4 blocks.
    scales = 3 * 4 + 2 * 2 * 4
    index = 6 + 1 + 1 + 6 + 2 * 130
    assert bytes_of(gemm) == codes + 2 * results + 4 * (results + scales + index)
    assert flops_of(gemm) == 2 * 6 * 200 * 130
    whole = moe(
        "moe_experts_fp8",
        tokens=3,
        experts=8,
        top_k=2,
        hidden=200,
        intermediate=65,
        block_n=128,
        block_k=128,
    )
    weights = 3 * 200 * 65 + 4 * (2 * 2 + 2 * 1)
    assert bytes_of(whole) == 2 * 2 * 3 * 200 + 6 * 12 + 2 * weights
    assert flops_of(whole) == 6 * 6 * 200 * 65


def test_the_stages_sum_to_the_published_traffic_of_a_layer():
    """2 T H + T k (8 I + 4 I + 4 H) + 2 T H bytes, besides weights, accumulators and index."""
    experts, tokens, k, hidden, inner = 64, 48, 4, 96, 40
    pairs = tokens * k
    stages = (
        moe("moe_gemm", tokens=tokens, experts=experts, top_k=k, k=hidden, n=2 * inner),
        moe("moe_act", rows=pairs, intermediate=inner),
        moe("moe_gemm", tokens=pairs, experts=experts, top_k=1, k=inner, n=hidden),
        moe("moe_combine", tokens=tokens, top_k=k, hidden=hidden),
    )
    weights = 2 * (k * 2 * inner * hidden + 1 * hidden * inner)
    accumulators = 4 * pairs * (2 * inner + hidden)
    index = 2 * (4 * (pairs + 2) + 4 * pairs) + 8 * pairs
    published = 2 * tokens * hidden + pairs * (12 * inner + 4 * hidden) + 2 * tokens * hidden
    biases = 4 * (k * 2 * inner + 1 * hidden)
    assert sum(map(bytes_of, stages)) == published + weights + accumulators + index + biases
    whole = moe(
        "moe_experts", tokens=tokens, experts=experts, top_k=k, hidden=hidden, intermediate=inner
    )
    assert flops_of(whole) == flops_of(stages[0]) + flops_of(stages[2])


def test_the_envelope_of_the_experts_says_what_is_inside():
    envelope = operator("moe_experts").envelope
    inside, outside = envelope.split(" Outside: routing")
    assert "alignment" in inside
    assert "an input" in outside


@pytest.mark.parametrize("known", OPERATORS, ids=lambda known: known.name)
def test_every_operator_is_complete(known):
    names = [name for name, _ in known.axes]
    assert names == sorted(names)
    assert set(known.sizes) < set(names)
    one = Workload(op=known.name, axes=tuple((name, 4) for name in names), dtype="bfloat16")
    two = replace(one, axes=tuple((n, 8 if n in known.sizes else 4) for n in names))
    assert 0 < bytes_of(one) < bytes_of(two)
    assert 2 * flops_of(one) <= flops_of(two)
    assert flops_of(one) or known.name in {"embedding", "moe_align", "moe_dequant_mxfp4"}
    assert known.envelope
    assert known.source
    assert operator(known.name) is known


def dense(op: str, **axes: int) -> Workload:
    return Workload(op=op, axes=tuple(sorted(axes.items())), dtype="bfloat16")


@pytest.mark.parametrize(
    ("workload", "shapes", "flops"),
    [
        # Tensors that are moved, by their shapes; then multiply-adds and single operations.
        (dense("gemm", m=3, k=5, n=7), [(3, 5), (5, 7), (3, 7)], 2 * 3 * 5 * 7),
        (dense("rms_norm", tokens=3, hidden=8), [(2, 3, 8), (8,)], 3 * 8 * 4),
        (dense("add_rms_norm", tokens=3, hidden=8), [(4, 3, 8), (8,)], 3 * 8 * 5),
        (dense("silu_and_mul", tokens=3, intermediate=8), [(3, 16), (3, 8)], 3 * 8 * 5),
        (dense("add", tokens=3, hidden=8), [(3, 3, 8)], 3 * 8),
        # Queries and rows; keys and values read of 2 + 3 tokens, written of 3. Pairs: 3+4+5.
        (
            dense("context_attention", tokens=3, context=2, heads=4, kv_heads=2, head_dim=8),
            [(2, 3, 4, 8), (2, 2 + 3, 2, 8), (2, 3, 2, 8)],
            4 * 8 * 4 * (3 + 4 + 5),
        ),
        # Two sequences that attend to 5 and 6 tokens, their own included.
        (
            dense(
                "generation_attention", sequences=2, kv_tokens=11, heads=4, kv_heads=2, head_dim=8
            ),
            [(2, 2, 4, 8), (2, 11, 2, 8), (2, 2, 2, 8)],
            4 * 8 * 4 * 11,
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Workload) else "",
)
def test_dense_counts_are_the_sizes_of_the_tensors(workload, shapes, flops):
    assert bytes_of(workload) == 2 * sum(map(math.prod, shapes))
    assert flops_of(workload) == flops


def test_ids_and_positions_are_counted_as_int64():
    assert bytes_of(dense("embedding", tokens=3, hidden=8, vocabulary=99)) == 3 * 8 + 2 * 2 * 3 * 8
    heads, table = 2 * 3 * 6 * 4, 3 * 4
    assert bytes_of(dense("rope", tokens=3, heads=6, head_dim=4)) == 2 * (heads + table) + 3 * 8


def test_a_request_without_new_tokens_attends_to_nothing():
    nothing = dense("context_attention", tokens=0, context=9, heads=4, kv_heads=2, head_dim=8)
    assert bytes_of(nothing) == flops_of(nothing) == 0


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"'mhc_pro'; known are mhc_pre, mhc_post, mhc_post_pre"):
        operator("mhc_pro")
    with pytest.raises(UsageError, match="expected the axes hidden, streams, tokens"):
        bytes_of(Workload(op="mhc_pre", axes=(("tokens", 1),), dtype="bfloat16"))
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        flops_of(mhc("mhc_pre", 1, 1, dtype="int3"))
