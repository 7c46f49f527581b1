"""Inputs of moe_gemm, and fixtures that are exact in any order of additions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.kernels.moe.experts_data import CASES, pad, route, routing_weights, spread
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

Ints = npt.NDArray[np.int64]

TOP_K = 2
# Bfloat16 holds every integer up to here.
_EXACT = 256


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`: routed as unevenly as moe_experts, blocks of DEFAULT_CONFIG.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts.
    """
    require_workload(workload, CASES)
    tokens, k, n, experts, top_k = (
        workload.axis(name) for name in ("tokens", "k", "n", "experts", "top_k")
    )
    stream = IntegerStream(workload.seed(index))
    ids = route(stream, tokens, experts, top_k)
    if workload.case == "padding":
        ids = pad(stream, ids, experts)
    return {
        "a": spread(stream, (tokens, k), scale_log2=6),
        "w": spread(stream, (experts, n, k), scale_log2=4 + k.bit_length() // 2),
        **aligned(ids.reshape(-1).tolist(), range(experts), DEFAULT_CONFIG.block_m),
        "weights": routing_weights(stream, (tokens * top_k,)),
        "bias": integer_tensor(
            stream, (experts, n), high=(1 << 24) - 1, scale_log2=24, dtype=torch.float32
        ),
    }


def _workload(case: str = "random", **axes: int) -> Workload:
    shape = {"experts": 12, "top_k": TOP_K} | axes
    return Workload(op="moe_gemm", axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case)


SUITE = (
    _workload(tokens=1, k=64, n=64),
    _workload(tokens=17, k=200, n=80),
    _workload(tokens=64, k=96, n=160),
    _workload("padding", tokens=33, k=72, n=48),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """`top_k` 1 with weights is the second matmul of the experts, more without is the first."""

    name: str
    tokens: int
    k: int
    n: int
    experts: int
    top_k: int
    apply_weights: int
    block_m: int = 16
    dropped: bool = False
    bias: int = 0


_SHAPES = (
    _Shape(name="first", tokens=7, k=32, n=16, experts=4, top_k=2, apply_weights=0),
    _Shape(name="second", tokens=14, k=16, n=32, experts=4, top_k=1, apply_weights=1),
    _Shape(name="ragged", tokens=5, k=150, n=37, experts=3, top_k=3, apply_weights=1),
    _Shape(
        name="larger-blocks", tokens=40, k=48, n=20, experts=2, top_k=2, apply_weights=0, block_m=64
    ),
    _Shape(
        name="dropped", tokens=11, k=24, n=24, experts=4, top_k=2, apply_weights=1, dropped=True
    ),
    _Shape(name="biased", tokens=6, k=40, n=21, experts=3, top_k=2, apply_weights=1, bias=9),
)


def integer_cases() -> tuple[IntegerCase, ...]:
    """All fixtures: sums of magnitudes up to 256 are exact in any order, in bfloat16 too."""
    return (*(_case(shape) for shape in _SHAPES), _skipped_blocks())


def _case(shape: _Shape) -> IntegerCase:
    stream = IntegerStream(sum(shape.name.encode()))
    a = stream.integers((shape.tokens, shape.k), 1, 4)
    w = np.zeros((shape.experts, shape.n, shape.k), dtype=np.int64)
    columns = stream.integers((shape.experts, shape.n, 8), 0, shape.k - 1)
    np.put_along_axis(w, columns, stream.integers(columns.shape, -2, 2), axis=2)
    w[..., -1] += 1
    pairs = shape.tokens * shape.top_k
    ids = stream.integers((pairs,), 0, shape.experts - 1)
    if shape.dropped:
        ids[::3], ids[1::5] = -1, shape.experts
    factors = stream.integers((pairs,), 2, 3)
    bias = stream.integers((shape.experts, shape.n), -shape.bias, shape.bias)
    return IntegerCase(
        name=shape.name,
        inputs={
            "a": torch.from_numpy(a).to(torch.bfloat16),
            "w": torch.from_numpy(w).to(torch.bfloat16),
            **aligned(ids.tolist(), range(shape.experts), shape.block_m),
            "weights": torch.from_numpy(factors).to(torch.float32),
            "bias": torch.from_numpy(bias).to(torch.float32),
        },
        constants={
            "top_k": shape.top_k,
            "apply_weights": shape.apply_weights,
            "block_m": shape.block_m,
            "block_n": 64,
            "block_k": 32,
        },
        expected=_expected(shape, (a, w, bias), ids, factors),
    )


def _expected(
    shape: _Shape, matrices: tuple[Ints, Ints, Ints], ids: Ints, factors: Ints
) -> Tensors:
    a, w, bias = matrices
    acc = np.zeros((len(ids), shape.n), dtype=np.int64)
    out = np.zeros_like(acc)
    largest = 0
    for pair, expert in enumerate(ids.tolist()):
        if 0 <= expert < shape.experts:
            row = a[pair // shape.top_k]
            acc[pair] = w[expert] @ row
            out[pair] = (acc[pair] + bias[expert]) * (factors[pair] if shape.apply_weights else 1)
            terms = np.abs(w[expert]) @ np.abs(row) + np.abs(bias[expert])
            largest = max(largest, int(terms.max()))
    if largest * int(factors.max()) > _EXACT:
        raise ValueError(
            f"fixture {shape.name}: terms add up to {largest * int(factors.max())}, more than the "
            f"{_EXACT} within which every order is exact; make it smaller"
        )
    return {
        "out": torch.from_numpy(out).to(torch.bfloat16),
        "acc": torch.from_numpy(acc).to(torch.float32),
    }


def _skipped_blocks() -> IntegerCase:
    """A block of expert -1, one beyond the experts, and one behind `padded` count for nothing."""
    pairs = torch.full((5, 16), 9, dtype=torch.int32)
    pairs[:, 0], pairs[4, 1] = torch.arange(5, dtype=torch.int32), 7
    acc = torch.zeros(9, 16)
    acc[0], acc[3] = 2 * 16, 3 * 16
    return IntegerCase(
        name="skipped-blocks",
        inputs={
            "a": torch.full((9, 16), 1.0).to(torch.bfloat16),
            "w": torch.stack([torch.full((16, 16), 2.0), torch.full((16, 16), 3.0)]).bfloat16(),
            "sorted_pairs": pairs.reshape(-1),
            "expert_ids": torch.tensor([0, -1, 2, 1, 1], dtype=torch.int32),
            "padded": torch.tensor([64], dtype=torch.int32),
            "weights": torch.full((9,), 2.0),
            "bias": torch.zeros(2, 16),
        },
        constants={"top_k": 1, "apply_weights": 0, "block_m": 16, "block_n": 16, "block_k": 16},
        expected={"out": acc.to(torch.bfloat16), "acc": acc},
    )
