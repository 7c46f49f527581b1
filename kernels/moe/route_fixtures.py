"""Fixtures of the routers: scores and weights that are exact."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.route_rules import SELECTED
from bitgate.kernels.spec import Constants, IntegerCase

_NAN, _INF = float("nan"), float("inf")


def integer_cases() -> tuple[IntegerCase, ...]:
    """Scores that are exact: equal ones under softmax, 0 and 1 of sigmoid, roots of squares.

    They find another choice among equal scores, weights with the bias, a bias in bfloat16, a mask
    that wins against negative scores, a zero divided by zero, an expert chosen twice, a missing
    scale or sum, and groups ranked by another number, or of equal ones the higher.
    """
    return (
        _softmax("softmax-equal", renormalize=1, scale=1.0),
        _softmax("softmax-as-it-is", renormalize=0, scale=2.0),
        _sigmoid("sigmoid-negative", tokens=12, experts=24, low=-3),
        _sigmoid("sigmoid-one-each", tokens=3, experts=4, low=0),
        _roots(),
        _broken_softmax(),
        _broken_sigmoid(),
        _top_one(),
        _selected(),
        _groups("groups-top2", rank="top2", low=-3),
        _groups("groups-top2-positive", rank="top2", low=0),
        _groups("groups-max", rank="max", low=-3),
        _group_ties("groups-ties-max", rank="max"),
        _group_ties("groups-ties-top2", rank="top2"),
    )


def _case(
    name: str,
    logits: Sequence[Sequence[float]] | npt.NDArray[np.int64],
    bias: Sequence[float] | npt.NDArray[Any],
    chosen: Sequence[Sequence[tuple[int, float]]],
    constants: Constants,
) -> IntegerCase:
    """`chosen` are (id, weight) by token and slot."""
    pairs = [list(zip(*row, strict=True)) for row in chosen]
    return IntegerCase(
        name=name,
        inputs={
            "logits": torch.tensor(np.asarray(logits, dtype=np.float64)).float(),
            "correction_bias": torch.tensor(np.asarray(bias, dtype=np.float64)).float(),
        },
        constants={"top_k": len(chosen[0]), **constants},
        expected={
            "topk_weights": torch.tensor([weights for _, weights in pairs], dtype=torch.float32),
            "topk_ids": torch.tensor([ids for ids, _ in pairs], dtype=torch.int64),
        },
    )


def _softmax(name: str, *, renormalize: int, scale: float) -> IntegerCase:
    """Two, four or eight equal logits a token, and others whose exponentials vanish beside them."""
    sets = ((1, 6), (0, 3, 5, 11), (2, 10), tuple(range(3, 11)))
    logits = np.full((len(sets), 12), -128)
    for token, members in enumerate(sets):
        logits[token, list(members)] = 0
    weights = [0.5 if renormalize else 1.0 / len(members) for members in sets]
    return _case(
        name,
        logits,
        [0.0] * 12,
        [[(e, w * scale) for e in members[:2]] for members, w in zip(sets, weights, strict=True)],
        {"renormalize": renormalize, "scale": scale, "score": "softmax"},
    )


def _sigmoid(name: str, *, tokens: int, experts: int, low: int) -> IntegerCase:
    """Scores of 0 and 1, and biases that differ by less than bfloat16 can tell.

    None, two or at least four experts of a token have the score 1, so that each weight is a power
    of two; where none has it, all weights are 0.
    """
    stream = IntegerStream(tokens * 100 + experts)
    steps = np.argsort(stream.words(experts), kind="stable")
    bias = low + steps * 2.0**-12
    scores = np.zeros((tokens, experts), dtype=np.int64)
    for token in range(tokens):
        members = np.argsort(stream.words(experts), kind="stable")
        scores[token, members[: (0, 2, 4, experts // 2 + 2)[token % 4]]] = 1
    chosen = []
    for row in scores.tolist():
        order = np.lexsort((-steps, -np.array(row)))[:4].tolist()
        total = sum(row[e] for e in order) or 1
        chosen.append([(e, 2.5 * row[e] / total) for e in order])
    return _case(
        name, 256 * scores - 128, bias, chosen, {"renormalize": 1, "scale": 2.5, "score": "sigmoid"}
    )


def _roots() -> IntegerCase:
    """Softplus is the identity above 17 and 0 below -87: scores 0, 8, 16, 32 and 64."""
    logits = [
        [-128, 64, 256, -128, 64, 1024, -128],
        [1024, 1024, -128, 1024, 1024, 1024, -128],
        [256, -128, -128, 4096, 1024, -128, 256],
        [-128, -128, 64, -128, -128, -128, -128],
    ]
    # Among equal scores the bias decides, and otherwise it is too small to.
    bias = [0.0, 0.0, 0.0, 0.0, 0.125, 0.0, 0.25]
    chosen = [
        [(5, 0.75), (2, 0.375), (4, 0.1875), (1, 0.1875)],
        [(4, 0.375), (0, 0.375), (1, 0.375), (3, 0.375)],
        [(3, 0.75), (4, 0.375), (6, 0.1875), (0, 0.1875)],
        [(2, 1.5), (6, 0.0), (4, 0.0), (0, 0.0)],
    ]
    return _case(
        "roots", logits, bias, chosen, {"renormalize": 1, "scale": 1.5, "score": "sqrt-softplus"}
    )


def _broken_softmax() -> IntegerCase:
    """One bad logit takes the scores of its token; -inf alone only masks its expert."""
    logits = [
        [_NAN] * 5,
        [0.0, _NAN, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, _INF, 0.0],
        [-_INF] * 5,
        [-_INF, 3.0, -_INF, -_INF, 3.0],
        [0.0, 0.0, -_INF, 0.0, 0.0],
    ]
    none = [(0, 0.0), (1, 0.0)]
    chosen = [none, none, none, none, [(1, 0.5), (4, 0.5)], [(0, 0.5), (1, 0.5)]]
    return _case(
        "broken-softmax",
        logits,
        [0.0] * 5,
        chosen,
        {"renormalize": 1, "scale": 1.0, "score": "softmax"},
    )


def _broken_sigmoid() -> IntegerCase:
    """A NaN is an expert's own matter, and counts as the score 0."""
    logits = [[_NAN, 128.0, _NAN, 128.0], [_NAN] * 4, [-_INF, _INF, _NAN, _INF]]
    chosen = [
        [(1, 0.5), (3, 0.5), (0, 0.0)],
        [(0, 0.0), (1, 0.0), (2, 0.0)],
        [(1, 0.5), (3, 0.5), (0, 0.0)],
    ]
    return _case(
        "broken-sigmoid",
        logits,
        [0.0] * 4,
        chosen,
        {"renormalize": 1, "scale": 1.0, "score": "sigmoid"},
    )


def _top_one() -> IntegerCase:
    """One expert by sigmoid, its weight left as it is (Llama-4)."""
    logits: list[list[float]] = [
        [-128, 0, -128],
        [128, 0, 128],
        [-128, -128, -128],
        [_NAN, _INF, 0],
    ]
    chosen = [[(1, 0.5)], [(0, 1.0)], [(0, 0.0)], [(1, 1.0)]]
    constants: Constants = {"renormalize": 0, "scale": 1.0, "score": "sigmoid"}
    return _case("sigmoid-top-one", logits, [0.0] * 3, chosen, constants)


def _selected() -> IntegerCase:
    """The softmax over the chosen logits (gpt-oss), large ones, and ones with nothing to choose."""
    logits = [
        [1000.0, -1.0, 1000.0, 7.0, 7.0],
        [-5.0, -5.0, -5.0, -5.0, -5.0],
        [-_INF, 2.0, -_INF, -_INF, -_INF],
        [-_INF] * 5,
        [0.0, _NAN, 3.0, 0.0, 0.0],
        [0.0, 3.0, 3.0, _INF, 0.0],
        [-1e30, -2e30, -3e30, -1e30, -4e30],
    ]
    none = [(0, 0.0), (1, 0.0)]
    chosen = [
        [(0, 1.0), (2, 1.0)],
        [(0, 1.0), (1, 1.0)],
        [(1, 2.0), (0, 0.0)],
        none,
        none,
        none,
        [(0, 1.0), (3, 1.0)],
    ]
    constants: Constants = {"renormalize": 1, "scale": 2.0, "score": SELECTED}
    return _case("softmax-selected", logits, [0.0] * 5, chosen, constants)


def _groups(name: str, *, rank: str, low: int) -> IntegerCase:
    """Four groups of six, of which two count, with scores of 0 and 1 that the biases order."""
    tokens, size, keep = 16, 6, 2
    stream = IntegerStream(len(name) - low)
    steps = np.argsort(stream.words(4 * size), kind="stable")
    scores = stream.integers((tokens, 4 * size), 0, 2) // 2
    keys = (scores << 12) + steps + (low << 12)
    chosen = []
    for score, row in zip(scores.tolist(), keys.tolist(), strict=True):
        groups = [sorted(row[g * size : (g + 1) * size], reverse=True) for g in range(4)]
        worth = [best + second if rank == "top2" else best for best, second, *_ in groups]
        kept = sorted(range(4), key=lambda g: (-worth[g], g))[:keep]
        open_to = [e for e in range(4 * size) if e // size in kept]
        ids = sorted(open_to, key=lambda e: (-row[e], e))[:4]
        # Weights that are no powers of two would round; there, one slot of three has none.
        chosen.append([(e, 1.5 * score[e]) for e in ids])
    constants: Constants = {
        "renormalize": 0,
        "scale": 1.5,
        "score": "sigmoid",
        "groups": 4,
        "keep_groups": keep,
        "group_rank": rank,
    }
    return _case(name, 256 * scores - 128, low + steps * 2.0**-12, chosen, constants)


def _group_ties(name: str, *, rank: str) -> IntegerCase:
    """Groups of equal worth, of which the lower ones count, and rows that are NaN."""
    logits: list[list[float]] = [
        [0.0] * 8,
        [-128, 0, -128, 0, 0, -128, 0, -128],
        [-128, -128, 128, -128, -128, 128, -128, -128],
        [_NAN] * 8,
        [-128, -128, _NAN, _NAN, 0, 0, 128, _INF],
    ]
    chosen = [
        [(0, 0.5), (1, 0.5), (2, 0.5)],
        [(1, 0.5), (3, 0.5), (0, 0.0)],
        [(2, 1.0), (5, 1.0), (3, 0.0)],
        [(0, 0.0), (1, 0.0), (2, 0.0)],
        [(6, 1.0), (7, 1.0), (4, 0.5)],
    ]
    constants: Constants = {
        "renormalize": 0,
        "scale": 1.0,
        "score": "sigmoid",
        "groups": 4,
        "keep_groups": 2,
        "group_rank": rank,
    }
    return _case(name, logits, [0.0] * 8, chosen, constants)
