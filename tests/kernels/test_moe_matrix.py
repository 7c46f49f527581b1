"""The matrix of shapes and routings that has broken MoE kernels, with values that are exact.

Expected values are computed with 64-bit integers from the positions of the few weights that are not
zero, by no matmul and in no order that a kernel has. Points are chosen so that every pair of values
of two axes occurs in one of them: a small choice by default, the published extents in the wide run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from bitgate.kernels.catalogue import implementation
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.loading import load
from bitgate.kernels.moe import MOE_BF16_1, MOE_EXPERTS
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.staged_triton import TRITON
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.parity.faults import experts as target
from bitgate.parity.faults.pipeline import Pipeline

ALL = [one.name for one in MOE_EXPERTS.implementations if one.contract == MOE_BF16_1.name]
TILES = TileConfig(block_m=16, block_n=64, block_k=32)

AXES = {
    "tokens": (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 33),
    "top_k": (1, 2, 3, 4, 6, 8, 9),
    "experts": (1, 8, 60, 65),
    "intermediate": (16, 33),
    "routing": ("random", "one expert", "one each", "twice", "padded", "nothing"),
}
WIDE = {
    "tokens": (*AXES["tokens"], 63, 64, 65, 257, 512),
    "top_k": (*AXES["top_k"], 16),
    "experts": (*AXES["experts"], 64, 128, 256, 384, 512, 896),
    "intermediate": (448, 511, 704, 768, 2048),
    "routing": AXES["routing"],
}
HIDDEN = 24


@dataclass(frozen=True)
class Point:
    tokens: int
    top_k: int
    experts: int
    intermediate: int
    routing: str

    def __str__(self) -> str:
        return f"{self.tokens}x{self.top_k}of{self.experts}-{self.intermediate}-{self.routing}"


def possible(point: Sequence[Any]) -> bool:
    """A token has as many distinct experts as slots, unless its slots name one again.

    And the weights stay below some hundred megabytes.
    """
    _, top_k, experts, channels, routing = point
    fits = experts * channels <= 1 << 18
    return fits and (top_k <= experts or routing in ("one expert", "twice", "nothing"))


def pairwise(axes: dict[str, tuple[Any, ...]], tries: int = 10) -> list[Point]:
    """Points that cover every possible pair of values of two axes, chosen greedily."""
    values, names = list(axes.values()), range(len(axes))
    stream = IntegerStream(len(axes))
    left = {
        (one, a, two, b)
        for one, two in combinations(names, 2)
        for a, b in product(values[one], values[two])
    }
    points = []
    while left:
        seeds = sorted(left, key=repr)[:1]
        drawn = [_drawn(stream, values, seeds[0]) for _ in range(tries)]
        drawn = [point for point in drawn if possible(point)]
        if not drawn:
            left -= set(seeds)
            continue
        best = max(drawn, key=lambda point: len(_pairs(point) & left))
        left -= _pairs(best)
        points.append(Point(*best))
    return points


def _drawn(stream: IntegerStream, values: list[Any], seed: tuple[Any, ...]) -> tuple[Any, ...]:
    point = [options[int(stream.integers((1,), 0, len(options) - 1)[0])] for options in values]
    one, a, two, b = seed
    point[one], point[two] = a, b
    return tuple(point)


def _pairs(point: Sequence[Any]) -> set[tuple[Any, ...]]:
    return {(one, point[one], two, point[two]) for one, two in combinations(range(len(point)), 2)}


def routed(stream: IntegerStream, point: Point) -> np.ndarray:
    shape = (point.tokens, point.top_k)
    spread = (np.arange(point.tokens)[:, None] + 7 * np.arange(point.top_k)) % point.experts
    if point.routing == "one expert":
        return np.full(shape, point.experts - 1)
    if point.routing == "twice":
        return np.repeat(spread[:, :1], point.top_k, axis=1)
    if point.routing == "nothing":
        return np.where(np.arange(point.top_k) % 2 == 0, -1, point.experts) + np.zeros(shape, int)
    if point.routing == "one each":
        return (np.arange(point.tokens)[:, None] + np.arange(point.top_k)) % point.experts
    keys = stream.words(point.tokens * point.experts).reshape(point.tokens, point.experts)
    ids = np.argsort(keys, axis=1)[:, : point.top_k].astype(np.int64)
    if point.routing == "padded":
        dice = stream.integers(shape, 0, 3)
        ids = np.where(dice == 0, -1, np.where(dice == 1, point.experts, ids))
    return ids


def made(point: Point) -> tuple[Tensors, torch.Tensor]:
    """Inputs, and the result by integers: each weight row has one number that is not zero.

    Gates are 0, 32 or 64, where silu is exact; at most 16 terms of 256 add up, in multiples of 32.
    """
    stream = IntegerStream(sum(str(point).encode()))
    experts, channels = point.experts, point.intermediate
    x = stream.integers((point.tokens, HIDDEN), 1, 2)
    gate_at, up_at = (stream.integers((experts, channels), 0, HIDDEN - 1) for _ in range(2))
    gate = 32 * stream.integers((experts, channels), 0, 1)
    up = 1 - 2 * stream.integers((experts, channels), 0, 1)
    down_at = stream.integers((experts, HIDDEN), 0, channels - 1)
    down = 1 - 2 * stream.integers((experts, HIDDEN), 0, 1)
    ids, factors = routed(stream, point), stream.integers((point.tokens, point.top_k), 1, 2)
    w_gate_up = np.zeros((experts, 2 * channels, HIDDEN), np.float32)
    w_down = np.zeros((experts, HIDDEN, channels), np.float32)
    np.put_along_axis(w_gate_up[:, :channels], gate_at[..., None], gate[..., None], 2)
    np.put_along_axis(w_gate_up[:, channels:], up_at[..., None], up[..., None], 2)
    np.put_along_axis(w_down, down_at[..., None], down[..., None], 2)
    expected = np.zeros(x.shape, np.int64)
    for slot in range(point.top_k):
        live = np.flatnonzero((ids[:, slot] >= 0) & (ids[:, slot] < experts))
        chosen, rows = ids[live, slot], x[live]
        hidden = gate[chosen] * np.take_along_axis(rows, gate_at[chosen], 1)
        hidden *= up[chosen] * np.take_along_axis(rows, up_at[chosen], 1)
        term = down[chosen] * np.take_along_axis(hidden, down_at[chosen], 1)
        expected[live] += factors[live, slot, None] * term
    tensors = {
        "x": torch.from_numpy(x).bfloat16(),
        "topk_ids": torch.from_numpy(ids.astype(np.int64)).reshape(point.tokens, point.top_k),
        "topk_weights": torch.from_numpy(factors).float(),
        "w_gate_up": torch.from_numpy(w_gate_up).bfloat16(),
        "w_down": torch.from_numpy(w_down).bfloat16(),
    }
    return tensors, torch.from_numpy(expected).bfloat16()


@cache
def run_of(name: str) -> Any:
    return load(implementation(name).target)


def check(name: str, point: Point, config: TileConfig = TILES) -> None:
    inputs, expected = made(point)
    out = run_of(name)(**inputs, swiglu_limit=float("inf"), config=config)
    assert out.shape == expected.shape
    assert compare_tensors(str(point), {"out": expected}, {"out": out}).mismatches == ()
    if point.routing != "nothing" and point.tokens and point.intermediate >= 16:
        assert out.any() or point.routing == "padded"


SMALL = pairwise(AXES)
# Interpreted, a block of one expert costs more than its numbers do.
FEW_BLOCKS = [point for point in SMALL if point.experts <= 8 and point.tokens][::8]


@pytest.mark.parametrize("point", SMALL, ids=str)
def test_tiles_at_every_pair_of_extents(point: Point) -> None:
    check("experts_tile", point)


@pytest.mark.parametrize("name", [name for name in ALL if name != "experts_tile"])
@pytest.mark.parametrize("point", FEW_BLOCKS, ids=str)
def test_kernels_at_some_of_them(point: Point, name: str) -> None:
    check(name, point)


PUBLISHED = pairwise(WIDE)
LARGE_TILES = TileConfig(block_m=16, block_n=1024, block_k=32)


@pytest.mark.slow  # the published extents, each pair of them
@pytest.mark.parametrize("point", PUBLISHED, ids=str)
def test_published_extents(point: Point) -> None:
    check("experts_tile", point, LARGE_TILES)


@pytest.mark.slow  # the same in the interpreter, where few experts are chosen
@pytest.mark.parametrize("name", [name for name in ALL if name != "experts_tile"])
@pytest.mark.parametrize(
    "point", [one for one in PUBLISHED if one.tokens * one.top_k <= 64][::4], ids=str
)
def test_published_extents_in_kernels(point: Point, name: str) -> None:
    check(name, point, LARGE_TILES)


@pytest.mark.slow  # a hundred thousand rows by tiles
@pytest.mark.parametrize("tokens", [4096, 4097, 32768, 32769])
def test_many_tokens(tokens: int) -> None:
    check("experts_tile", Point(tokens, 2, 8, 16, "random"))


def test_the_choice_covers_every_pair() -> None:
    seen = set().union(*(_pairs((p.tokens, p.top_k, p.experts, p.intermediate, p.routing))
                         for p in SMALL))  # fmt: skip
    values = list(AXES.values())
    for one, two in combinations(range(len(values)), 2):
        for a, b in product(values[one], values[two]):
            missing = (one, a, two, b) not in seen
            # Only more slots than experts are impossible, unless an expert is named again.
            assert not missing or (one, two) in ((1, 2), (1, 4), (2, 4)), (a, b)
    assert len(SMALL) < 180


def test_a_wrong_row_is_seen_by_the_matrix() -> None:
    """The control: the integers do tell experts, tokens and slots apart."""
    point = Point(17, 3, 8, 16, "random")
    inputs, expected = made(point)
    for name, change in (
        ("topk_ids", lambda ids: (ids + 1) % 8),
        ("topk_weights", lambda weights: weights.roll(1, 0)),
        ("x", lambda x: x.roll(1, 0)),
    ):
        wrong = inputs | {name: change(inputs[name])}
        out = run_of("experts_tile")(**wrong, swiglu_limit=float("inf"), config=TILES)
        assert not torch.equal(out, expected), name


INTERPRETED = pytest.mark.slow(reason="Triton's interpreter, several times")


@pytest.mark.parametrize(
    "check_name",
    [
        "sentinel",
        pytest.param("reuse", marks=INTERPRETED),
        pytest.param("unread", marks=INTERPRETED),
        pytest.param("ranks", marks=INTERPRETED),
    ],
)
def test_memory_padding_and_ranks_of_the_kernels(check_name: str) -> None:
    """What the fault catalogue asks of the tiles, of the Triton stages in an engine's workspace."""
    (experts,) = target.area().targets
    (found,) = (one for one in experts.checks if one.name == check_name)
    assert found.look(lambda: Pipeline(stages=TRITON)) is None


@pytest.mark.parametrize("name", ALL)
def test_strides_larger_than_the_row(name: str) -> None:
    inputs, expected = made(Point(5, 2, 8, 16, "random"))
    padded = {key: torch.cat([value, value], -1) for key, value in inputs.items()}
    views = {key: padded[key][..., : value.shape[-1]] for key, value in inputs.items()}
    assert not any(view.is_contiguous() for view in views.values())
    out = run_of(name)(**views, swiglu_limit=float("inf"), config=TILES)
    assert torch.equal(out, expected)
