"""Inputs of moe_route made from integers, and fixtures whose scores and weights are exact."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.spec import Constants, IntegerCase, Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

TOP_K = 4
CASES = ("random", "ties", "negative", "padding")

_NAN, _INF = float("nan"), float("inf")


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: experts, tokens, top_k. Case `random`: logits within 8 of 0, a bias within 1/8 of it. Case
    `ties`: few different logits, as a router in bfloat16 gives them, and no bias. Case `negative`:
    every score with its bias is below 0, and the scores of half of the logits vanish. Case
    `padding`: half of the tokens have NaN or infinite logits.

    Raises:
        UsageError: unknown case or dtype, or top_k is not 1 to the number of experts.
    """
    if workload.case not in CASES or workload.dtype != "float32":
        raise UsageError(f"{workload.key}: expected dtype float32 and a case of {', '.join(CASES)}")
    tokens, experts = workload.axis("tokens"), workload.axis("experts")
    if not 0 < workload.axis("top_k") <= experts:
        raise UsageError(f"{workload.key}: top_k must be 1 to {experts} (the number of experts)")
    stream = IntegerStream(workload.seed(index))
    logits = _numbers(stream, (tokens, experts), 21)
    bias = _numbers(stream, (experts,), 27)
    if workload.case == "ties":
        logits = integer_tensor(stream, logits.shape, high=6, scale_log2=2, dtype=torch.float32)
        bias = torch.zeros(experts)
    if workload.case == "negative":
        logits = torch.where(logits < 0, logits - 100.0, logits)
        bias = bias - 9.0
    if workload.case == "padding":
        _break(stream, logits)
    return {"logits": logits, "correction_bias": bias}


def _numbers(stream: IntegerStream, shape: tuple[int, ...], scale_log2: int) -> torch.Tensor:
    """Float32 that use all of their 24 bits."""
    high = (1 << 24) - 1
    return integer_tensor(stream, shape, high=high, scale_log2=scale_log2, dtype=torch.float32)


def _break(stream: IntegerStream, logits: torch.Tensor) -> None:
    """Give half of the rows a NaN, a +inf, some -inf, or nothing else than one of them."""
    tokens, experts = logits.shape
    kinds = stream.integers((tokens,), 0, 11)
    places = stream.integers((tokens,), 0, experts - 1)
    for token, (kind, place) in enumerate(zip(kinds.tolist(), places.tolist(), strict=True)):
        if kind < 6:
            value = (_NAN, _INF, -_INF)[kind % 3]
            logits[token, slice(None) if kind < 3 else slice(place, place + 2)] = value


def _workload(tokens: int, experts: int, case: str = "random") -> Workload:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", TOP_K))
    return Workload(op="moe_route", axes=axes, dtype="float32", case=case)


SUITES = {
    "default": (
        _workload(1, 8),
        _workload(33, 60),
        _workload(64, 128),
        _workload(5, 384),
        _workload(32, 16, "padding"),
        _workload(48, 64, "ties"),
        _workload(17, 32, "negative"),
    ),
}


# --- fixtures ------------------------------------------------------------------------------------


def integer_cases() -> tuple[IntegerCase, ...]:
    """Scores that are exact: equal ones under softmax, 0 and 1 of sigmoid, roots of squares.

    They find another choice among equal scores, weights with the bias, a bias in bfloat16, a mask
    that wins against negative scores, a zero divided by zero, an expert chosen twice, and a missing
    scale or sum.
    """
    return (
        _softmax("softmax-equal", renormalize=1, scale=1.0),
        _softmax("softmax-as-it-is", renormalize=0, scale=2.0),
        _sigmoid("sigmoid-negative", tokens=12, experts=24, low=-3),
        _sigmoid("sigmoid-one-each", tokens=3, experts=4, low=0),
        _roots(),
        _broken_softmax(),
        _broken_sigmoid(),
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
