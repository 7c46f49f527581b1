"""Inputs of moe_experts: integer-made values, and routing as uneven as a real router's."""

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.spec import Tensors
from bitgate.records.types import Workload

CASES = ("random", "padding")
_OCTAVES = 7


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`, on the CPU, the same bits on every machine.

    Axes: tokens, hidden, intermediate, experts, top_k. Case `random`: distinct experts per token,
    drawn by uneven popularity, an eighth of the experts never drawn. Case `padding`: about a
    quarter of the pairs are padding, -1 or `experts`.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts.
    """
    require_workload(workload, CASES)
    tokens, hidden, intermediate, experts, top_k = (
        workload.axis(name) for name in ("tokens", "hidden", "intermediate", "experts", "top_k")
    )
    stream = IntegerStream(workload.seed(index))
    ids = route(stream, tokens, experts, top_k)
    if workload.case == "padding":
        ids = pad(stream, ids, experts)
    # The scales give gate a spread of about 3, so that a limit of 10 does clamp, and outputs of 1.
    return {
        "x": spread(stream, (tokens, hidden), scale_log2=6),
        "topk_ids": torch.from_numpy(ids),
        "topk_weights": routing_weights(stream, (tokens, top_k)),
        "w_gate_up": spread(
            stream,
            (experts, 2 * intermediate, hidden),
            scale_log2=4 + hidden.bit_length() // 2,
        ),
        "w_down": spread(
            stream,
            (experts, hidden, intermediate),
            scale_log2=7 + intermediate.bit_length() // 2,
        ),
    }


def spread(stream: IntegerStream, shape: tuple[int, ...], *, scale_log2: int) -> torch.Tensor:
    """Bfloat16 of many magnitudes: with one scale alone, float32 would hold whole sums exactly.

    Then every order of additions would give the same bits, and no sample could tell them apart.
    """
    values = integer_tensor(stream, shape, high=255, scale_log2=scale_log2)
    return torch.ldexp(values, torch.from_numpy(stream.integers(shape, -_OCTAVES, 0)))


def route(stream: IntegerStream, tokens: int, experts: int, top_k: int) -> npt.NDArray[np.int64]:
    """Distinct experts per token [tokens, top_k], drawn without replacement by popularity."""
    rank = np.argsort(stream.words(experts), kind="stable")
    popularity = 1 + 1024 // (2 + rank)
    unused = min(experts // 8, experts - top_k)
    popularity[rank >= experts - unused] = 0
    remaining = np.tile(popularity.astype(np.int64), (tokens, 1))
    ids = np.empty((tokens, top_k), dtype=np.int64)
    for slot in range(top_k):
        ends = np.cumsum(remaining, axis=1)
        drawn = stream.below(ends[:, -1])
        ids[:, slot] = (ends <= drawn[:, None]).sum(axis=1)
        remaining[np.arange(tokens), ids[:, slot]] = 0
    return ids


def pad(stream: IntegerStream, ids: npt.NDArray[np.int64], experts: int) -> npt.NDArray[np.int64]:
    """The ids with about a quarter of them turned into padding, -1 or `experts`."""
    dice = stream.integers(ids.shape, 0, 7)
    return np.where(dice == 0, -1, np.where(dice == 1, experts, ids))


def routing_weights(stream: IntegerStream, shape: tuple[int, ...]) -> torch.Tensor:
    """Positive float32 weights of 16 bits: more than bfloat16 holds, so that rounding shows."""
    return torch.from_numpy(stream.integers(shape, 1, 1 << 16) * 2.0**-16).to(torch.float32)
