"""Prices: measured points come back exactly, the rest is labelled, and nothing is made up."""

from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.records.errors import UsageError
from bitgate.records.ops import OPERATORS, bytes_of, flops_of, operator
from bitgate.records.types import Workload
from bitgate.sim.prices import MissingPrice, Price, PriceBook, half_even, split, workload_at
from bitgate.sim.tables import SUMMED

HEADS = {"head_dim": 8, "heads": 4, "kv_heads": 2}


def gemm(m: int, **axes: int) -> Workload:
    return Workload(
        op="gemm", axes=tuple(sorted(({"k": 16, "n": 8, "m": m} | axes).items())), dtype="bfloat16"
    )


def generation(sequences: int, kv_tokens: int) -> Workload:
    axes = HEADS | {"sequences": sequences, "kv_tokens": kv_tokens}
    return Workload(op="generation_attention", axes=tuple(sorted(axes.items())), dtype="bfloat16")


def context(tokens: int, done: int) -> Workload:
    axes = HEADS | {"tokens": tokens, "context": done}
    return Workload(op="context_attention", axes=tuple(sorted(axes.items())), dtype="bfloat16")


@pytest.fixture(scope="session")
def book(make):
    """A book of measured points: pairs of a call and its nanoseconds."""

    def of(*points: tuple[Workload, int], **options: Any) -> PriceBook:
        timings = [make["timing"](workload, ns) for workload, ns in points]
        return PriceBook(timings, device="cpu", **options)

    return of


def sources(make, *workloads: Workload) -> tuple[str, ...]:
    return tuple(sorted(make["timing"](one, 1).timing.record_ids[0] for one in workloads))


def test_a_measured_point_comes_back_exactly_with_its_record(book, make):
    priced = book((gemm(4), 1_000), (gemm(8), 1_500))
    assert priced.price(gemm(4)) == Price(1_000, "exact", sources(make, gemm(4)))
    assert priced.price(gemm(8)) == Price(1_500, "exact", sources(make, gemm(8)))


def test_between_two_points_time_is_linear_and_names_both_records(book, make):
    priced = book((gemm(4), 1_000), (gemm(8), 1_501), (gemm(20), 9_000))
    both = sources(make, gemm(4), gemm(8))
    assert priced.price(gemm(5)) == Price(1_125, "interpolated", both)  # 1125.25
    assert priced.price(gemm(6)) == Price(1_250, "interpolated", both)  # 1250.5, half to even
    assert priced.price(gemm(7)) == Price(1_376, "interpolated", both)  # 1375.75
    assert priced.price(gemm(9)).ns == 2_126  # 1501 + 7499 / 12 = 2125.9


@pytest.mark.parametrize(
    ("number", "over", "whole"), [(5, 2, 2), (7, 2, 4), (9, 4, 2), (11, 4, 3), (-1, 2, 0)]
)
def test_halves_go_to_the_even_number(number, over, whole):
    assert half_even(number, over) == whole == round(Fraction(number, over))


def test_other_shapes_of_the_same_operator_are_no_neighbours(book):
    priced = book((gemm(4), 1_000), (gemm(8), 1_500))
    for other in (gemm(6, n=9), Workload(op="gemm", axes=gemm(6).axes, dtype="float16")):
        with pytest.raises(MissingPrice):
            priced.price(other)


def test_a_missing_price_names_the_call_its_neighbours_and_its_lane(book):
    priced = book((gemm(4), 1_000), (gemm(8), 1_500), (gemm(8, n=9), 1_700))
    with pytest.raises(MissingPrice) as missing:
        priced.price(gemm(30))
    text = str(missing.value)
    assert "gemm[k=16,m=30,n=8]/bfloat16" in text
    assert (
        "nearest priced: gemm[k=16,m=8,n=8]/bfloat16, gemm[k=16,m=4,n=8]/bfloat16, "
        "gemm[k=16,m=8,n=9]/bfloat16" in text
    )
    assert "its lane: cpu/gemm/k=16,m=30,n=8/bfloat16" in text
    assert "--open-lane" in text


def test_beyond_the_points_time_grows_as_bytes_or_operations_do(book, make):
    priced = book((gemm(4), 1_000), (gemm(8), 1_500), allow_extrapolation=True)
    # Operations grow threefold, bytes less.
    assert bytes_of(gemm(24)) == 1_408 < 3 * bytes_of(gemm(8)) == 3 * 640
    assert priced.price(gemm(24)) == Price(4_500, "extrapolated", sources(make, gemm(8)))
    # Below the points nothing gets cheaper: a launch may be all that the call takes.
    assert priced.price(gemm(1)) == Price(1_000, "extrapolated", sources(make, gemm(4)))


def test_an_operator_that_only_moves_bytes_is_extrapolated_by_them(book):
    def embed(tokens: int) -> Workload:
        axes = (("hidden", 4), ("tokens", tokens), ("vocabulary", 10))
        return Workload(op="embedding", axes=axes, dtype="bfloat16")

    priced = book((embed(2), 100), allow_extrapolation=True)
    assert priced.price(embed(6)).ns == 300


def test_declared_peaks_price_what_no_record_does(book, make):
    priced = book((gemm(4), 1_000), (gemm(8), 1_500), peaks=make["peaks"]())
    assert priced.price(gemm(6)).how == "interpolated"
    # 6,144 operations at two a nanosecond take longer than 1,408 bytes at one; then the launch.
    assert flops_of(gemm(24)) == 6_144
    assert priced.price(gemm(24)) == Price(3_072 + 100, "assumed", ())
    assert priced.price(gemm(24, k=1)) == Price(2 * (24 + 8 + 192) + 100, "assumed", ())


def test_what_was_measured_is_extrapolated_before_it_is_assumed(book, make):
    priced = book((gemm(4), 9_000), peaks=make["peaks"](), allow_extrapolation=True)
    assert priced.price(gemm(8)).how == "extrapolated"
    assert priced.price(gemm(8, n=9)).how == "assumed"


def test_peaks_of_another_device_are_refused(make):
    with pytest.raises(UsageError, match="declared for the device cuda, the timings are of cpu"):
        PriceBook([], device="cpu", peaks=make["peaks"]("cuda"))


def test_peaks_without_the_dtype_are_refused(make):
    priced = PriceBook([], device="cpu", peaks=make["peaks"]())
    with pytest.raises(UsageError, match="no operations per second for float32, only for bfloat16"):
        priced.price(Workload(op="gemm", axes=gemm(1).axes, dtype="float32"))


# --- two sizes -----------------------------------------------------------------------------------


def plane(sequences: int, kv_tokens: int) -> int:
    return 5_000 + 40 * sequences + 3 * kv_tokens


def grid(sequences: tuple[int, ...], lengths: tuple[int, ...]) -> list[tuple[Workload, int]]:
    """Points as tables have them: every number of sequences with every length of each."""
    return [(generation(s, s * n), plane(s, s * n)) for s in sequences for n in lengths]


@given(sequences=st.integers(1, 32), place=st.integers(0, 10**6))
def test_attention_that_is_a_plane_is_priced_as_that_plane(book, sequences, place):
    kv_tokens = sequences + place % (511 * sequences + 1)  # lengths from 1 to 512
    found = book(*grid((1, 4, 32), (1, 16, 512))).price(generation(sequences, kv_tokens))
    assert found.ns == plane(sequences, kv_tokens)
    measured = kv_tokens in {sequences * n for n in (1, 16, 512)} and sequences in (1, 4, 32)
    assert found.how == ("exact" if measured else "interpolated")


def test_a_ragged_table_is_never_filled_up(book):
    # The row between two that reach length 512 was measured up to 16, and serves up to there.
    priced = book(
        *grid((1, 32), (1, 16, 512)), (generation(8, 8), 1_000), (generation(8, 128), 1_000)
    )
    assert priced.price(generation(8, 64)).ns == 1_000
    assert priced.price(generation(8, 8 * 100)).ns == plane(8, 8 * 100)
    for beyond in (generation(64, 64), generation(8, 8 * 513)):
        with pytest.raises(MissingPrice):
            priced.price(beyond)


def test_an_exact_hit_needs_its_row_only(book, make):
    priced = book((generation(3, 30), 77))
    assert priced.price(generation(3, 30)).how == "exact"
    with pytest.raises(MissingPrice):
        priced.price(generation(2, 20))


def test_context_is_compared_as_it_is_and_not_by_its_mean(book):
    points = [(context(t, c), 1_000 + 10 * t + c) for t in (1, 100) for c in (0, 400)]
    assert book(*points).price(context(50, 200)).ns == 1_000 + 500 + 200


# --- properties ----------------------------------------------------------------------------------


increments = st.lists(st.integers(0, 10_000), min_size=9, max_size=9)


@given(places=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True), steps=increments)
def test_more_tokens_are_never_cheaper(book, places, steps):
    times = accumulate(steps, initial=1)
    points = [(gemm(m), ns) for m, ns in zip(sorted(places), times, strict=False)]
    priced = book(*points, allow_extrapolation=True)
    found = [priced.price(gemm(m)).ns for m in range(1, 130)]
    assert found == sorted(found)
    assert {gemm(m): found[m - 1] for m in places} == dict(points)


@given(steps=increments, sequences=st.integers(1, 20), first=st.integers(1, 2_000))
def test_more_attended_tokens_are_never_cheaper(book, steps, sequences, first):
    """Over a grid that grows in both sizes, within it and beyond it on every side."""
    rows, lengths = (2, 5, 9), (3, 20, 90)
    points = [
        (generation(s, s * n), 1 + sum(steps[: 3 * i + 3]) * (j + 1))
        for i, s in enumerate(rows)
        for j, n in enumerate(lengths)
    ]
    priced = book(*points, allow_extrapolation=True)
    found = [priced.price(generation(sequences, kv)).ns for kv in range(first, first + 40)]
    assert found == sorted(found)


@pytest.mark.parametrize("options", ["interpolated", "extrapolated", "assumed"])
@given(sequences=st.integers(1, 12), kv_tokens=st.integers(1, 3_000), ahead=st.integers(0, 3_000))
def test_a_quote_holds_for_its_whole_range(book, make, options, sequences, kv_tokens, ahead):
    priced = book(
        *(grid((1, 4, 12), (1, 16, 100)) if options != "assumed" else []),
        allow_extrapolation=options == "extrapolated",
        peaks=make["peaks"](),
    )
    key, sizes = split(generation(sequences, kv_tokens))
    quote = priced.quote(key, sizes)
    assert quote.low <= kv_tokens <= quote.high
    other = min(max(quote.low, 1, kv_tokens - 1_500 + ahead), quote.high)
    found = priced.price(workload_at(key, (sequences, other)))
    assert (quote.ns(other), quote.how, quote.sources) == found


@pytest.mark.parametrize("name", sorted(SUMMED))
@given(first=st.integers(1, 99), last=st.integers(1, 10**6))
def test_what_is_summed_grows_evenly(name, first, last):
    """Quotes over a range of sums stand on it."""
    fixed = tuple((axis, 4) for axis, _ in operator(name).axes if axis not in operator(name).sizes)
    for count in (bytes_of, flops_of):
        one, two, far = (
            count(workload_at((name, fixed, "bfloat16"), (first, x))) for x in (1, 2, last)
        )
        assert far == one + (two - one) * (last - 1)


@pytest.mark.parametrize("known", OPERATORS, ids=lambda known: known.name)
def test_every_operator_has_one_size_or_two(known):
    assert len(known.sizes) in (1, 2)
