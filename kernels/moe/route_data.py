"""Inputs of moe_route made from integers."""

import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.spec import Tensors
from bitgate.records.types import Workload

TOP_K = 4
CASES = ("random", "ties", "bfloat16", "equal", "negative", "vanishing", "padding")

_NAN, _INF = float("nan"), float("inf")


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: experts, tokens, top_k. Case `random`: logits within 8 of 0, a bias within 1/8 of it. Case
    `ties`: few different logits, and no bias. Case `bfloat16`: logits that a router in bfloat16
    rounded, so that some are equal at the cut-off, and no bias. Case `equal`: all logits of a token
    are the same. Case `negative`: every score with its bias is below 0, and the scores of half of
    the logits vanish. Case `vanishing`: the scores of all logits vanish but for softmax, so that
    their sum is 0. Case `padding`: half of the tokens have NaN or infinite logits.

    Raises:
        UsageError: unknown case or dtype, or top_k is not 1 to the number of experts.
    """
    require_workload(workload, CASES, "float32")
    tokens, experts = workload.axis("tokens"), workload.axis("experts")
    stream = IntegerStream(workload.seed(index))
    logits = numbers(stream, (tokens, experts), 21)
    bias = numbers(stream, (experts,), 27)
    if workload.case in ("ties", "bfloat16"):
        bias = torch.zeros(experts)
    if workload.case == "negative":
        bias = bias - 9.0
    return {"logits": logits_of(stream, logits, workload.case), "correction_bias": bias}


def logits_of(stream: IntegerStream, logits: torch.Tensor, case: str) -> torch.Tensor:
    """The logits of a case, made of random ones [tokens, experts], which may change."""
    if case == "ties":
        return integer_tensor(stream, logits.shape, high=6, scale_log2=2, dtype=torch.float32)
    if case == "bfloat16":
        return logits.to(torch.bfloat16).float()
    if case == "equal":
        return logits[:, :1].expand_as(logits).contiguous()
    if case == "negative":
        return torch.where(logits < 0, logits - 100.0, logits)
    if case == "vanishing":
        return logits - 200.0
    if case == "padding":
        _break(stream, logits)
    return logits


def numbers(stream: IntegerStream, shape: tuple[int, ...], scale_log2: int) -> torch.Tensor:
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


def _workload(tokens: int, experts: int, case: str = "random", top_k: int = TOP_K) -> Workload:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    return Workload(op="moe_route", axes=axes, dtype="float32", case=case)


def _suite(top_k: int, *points: tuple[int, int]) -> tuple[Workload, ...]:
    """Every case at some (tokens, experts), in turn, and every point at least once."""
    count = max(len(points), len(CASES))
    pairs = [(points[at % len(points)], CASES[at % len(CASES)]) for at in range(count)]
    return tuple(_workload(tokens, experts, case, top_k) for (tokens, experts), case in pairs)


# The constant top_k belongs to a suite; of those of 6 and more, 8 groups divide most experts.
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
    "top-1": _suite(1, (5, 16), (17, 128)),
    "top-2": _suite(2, (1, 8), (33, 16), (4, 60)),
    "top-6": _suite(6, (16, 64), (3, 256), (2, 384), (31, 60)),
    "top-8": _suite(8, (65, 128), (1, 256), (15, 384), (17, 64)),
    "top-16": _suite(16, (2, 896), (3, 64), (7, 384)),
}
