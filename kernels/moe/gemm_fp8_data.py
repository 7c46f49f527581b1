"""Inputs of moe_gemm_fp8, and fixtures that are exact in any order and on any accumulator."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor, require_workload
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.kernels.moe.experts_data import CASES, pad, route, routing_weights, spread
from bitgate.kernels.moe.quant_reference import moe_quant
from bitgate.kernels.moe.quant_weight_reference import moe_quant_weight
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.records.types import Workload

Ints = npt.NDArray[np.int64]

TOP_K = 2
GROUP = 128
# Hopper's float8 instructions keep 13 bits of a sum; float32 holds every integer up to 2^24.
_PARTIAL, _TOTAL = 1 << 13, 1 << 24
# Scales are 2^-2 to 2^2, so that every number is a multiple of 2^-4.
_EXPONENT = 2


def make_inputs(workload: Workload, index: int) -> Tensors:
    """The inputs of sample `index`: rows and weights of moe_gemm, quantised by groups.

    Raises:
        UsageError: unknown case or dtype, or more slots per token than experts.
    """
    require_workload(workload, CASES, "float8_e4m3fn")
    names = ("tokens", "k", "n", "experts", "top_k", "group_n", "group_k")
    tokens, k, n, experts, top_k, group_n, group_k = (workload.axis(name) for name in names)
    stream = IntegerStream(workload.seed(index))
    ids = route(stream, tokens, experts, top_k)
    if workload.case == "padding":
        ids = pad(stream, ids, experts)
    a, a_scales = quantised_rows(
        uneven(stream, spread(stream, (tokens, k), scale_log2=6), 1, group_k), group_k
    )
    w = spread(stream, (experts, n, k), scale_log2=4 + k.bit_length() // 2)
    w, w_scales = quantised_weights(uneven(stream, w, group_n, group_k), group_n, group_k)
    return {
        "a": a,
        "a_scales": a_scales,
        "w": w,
        "w_scales": w_scales,
        **aligned(ids.reshape(-1).tolist(), range(experts), DEFAULT_CONFIG.block_m),
        "weights": routing_weights(stream, (tokens * top_k,)),
        "bias": integer_tensor(
            stream, (experts, n), high=(1 << 24) - 1, scale_log2=24, dtype=torch.float32
        ),
    }


def uneven(stream: IntegerStream, x: torch.Tensor, group_n: int, group_k: int) -> torch.Tensor:
    """Bfloat16 numbers with a factor for each block, from a half up to one.

    Without it the largest number of every block is the same, and so is every scale: no sample could
    tell whose scale was read.
    """
    *outer, n, k = x.shape
    shape = (*outer, -(-n // group_n), -(-k // group_k))
    factors = torch.from_numpy(stream.integers(shape, 128, 255) * 2.0**-8).float()
    wide = factors.repeat_interleave(group_n, -2).repeat_interleave(group_k, -1)
    return (x.float() * wide[..., :n, :k]).to(torch.bfloat16)


def quantised_rows(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of bfloat16 rows, by groups."""
    return moe_quant(x=x, scheme="group", group=group, scale_rule="amax", rounding="divide")


def quantised_weights(
    w: torch.Tensor, group_n: int, group_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of bfloat16 weights, by blocks."""
    return moe_quant_weight(
        w=w, block_n=group_n, block_k=group_k, scale_rule="amax", rounding="reciprocal"
    )


def _workload(case: str = "random", **axes: int) -> Workload:
    shape = {"experts": 6, "top_k": TOP_K, "group_n": GROUP, "group_k": GROUP} | axes
    return Workload(
        op="moe_gemm_fp8", axes=tuple(sorted(shape.items())), dtype="float8_e4m3fn", case=case
    )


SUITE = (
    _workload(tokens=1, k=128, n=64),
    _workload(tokens=17, k=192, n=144),
    _workload("padding", tokens=33, k=448, n=48),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """`scales` names what has a scale: block, or of scheme whole that of a row and of a weight."""

    name: str
    tokens: int
    k: int
    n: int
    scales: str = "block"
    experts: int = 2
    top_k: int = 2
    apply_weights: int = 1
    groups: tuple[int, int] = (GROUP, GROUP)
    tiles: tuple[int, int, int] = (16, 128, 64)
    bias: int = 0


_SHAPES = (
    _Shape(name="first", tokens=7, k=256, n=130, apply_weights=0),
    _Shape(name="second", tokens=14, k=192, n=96, top_k=1, bias=5),
    _Shape(name="narrow-groups", tokens=5, k=200, n=150, groups=(128, 64), tiles=(16, 128, 128)),
    _Shape(name="tile-over-groups", tokens=5, k=150, n=200, groups=(64, 128), tiles=(16, 256, 32)),
    _Shape(name="larger-blocks", tokens=40, k=300, n=60, tiles=(64, 64, 128), bias=3),
    _Shape(name="token-channel", tokens=5, k=150, n=70, scales="token-channel", bias=4),
    _Shape(name="token-tensor", tokens=5, k=150, n=70, scales="token-tensor"),
    _Shape(name="tensor-tensor", tokens=5, k=150, n=70, scales="tensor-tensor"),
)


def integer_cases() -> tuple[IntegerCase, ...]:
    """All fixtures: codes of -2 to 2 and scales that are powers of two, neighbours unequal.

    Every partial sum has at most 13 bits and every scaled one 24, so that any order, promotion
    interval, accumulate form and tile gives these bits, on float8 instructions too. The one
    rounding is that of the result to bfloat16.
    """
    return tuple(_case(shape) for shape in _SHAPES)


def _case(shape: _Shape) -> IntegerCase:
    stream = IntegerStream(sum(shape.name.encode()))
    pairs = shape.tokens * shape.top_k
    a = stream.integers((shape.tokens, shape.k), -2, 2)
    w = stream.integers((shape.experts, shape.n, shape.k), -2, 2)
    ids = stream.integers((pairs,), 0, shape.experts - 1)
    factors = stream.integers((pairs,), 2, 3)
    bias = stream.integers((shape.experts, shape.n), -shape.bias, shape.bias)
    a_exponents, w_exponents = _exponents(stream, shape)
    block_m, block_n, block_k = shape.tiles
    expected = _expected(shape, (a, w, bias), (a_exponents, w_exponents), ids, factors)
    return IntegerCase(
        name=shape.name,
        inputs={
            "a": _codes(a),
            "a_scales": _powers(a_exponents),
            "w": _codes(w),
            "w_scales": _powers(w_exponents),
            **aligned(ids.tolist(), range(shape.experts), block_m),
            "weights": torch.from_numpy(factors).to(torch.float32),
            "bias": torch.from_numpy(bias).to(torch.float32),
        },
        constants={
            "accumulate": "mul-mul-add",
            "apply_weights": shape.apply_weights,
            "block_k": block_k,
            "block_m": block_m,
            "block_n": block_n,
            "group_k": shape.groups[1],
            "group_n": shape.groups[0],
            "scheme": "block" if shape.scales == "block" else "whole",
            "top_k": shape.top_k,
        },
        expected=expected,
    )


def _exponents(stream: IntegerStream, shape: _Shape) -> tuple[Ints, Ints]:
    """Of the scales of a and of w."""
    if shape.scales == "block":
        groups = -(-shape.k // shape.groups[1])
        of_a = (shape.tokens, groups)
        of_w = (shape.experts, -(-shape.n // shape.groups[0]), groups)
    else:
        rows, weights = shape.scales.split("-")
        of_a = (shape.tokens if rows == "token" else 1, 1)
        of_w = (shape.experts, shape.n if weights == "channel" else 1, 1)
    return _unequal(stream, of_a), _unequal(stream, of_w)


def _unequal(stream: IntegerStream, shape: tuple[int, ...]) -> Ints:
    """Exponents of which no two neighbours along any axis are equal, but for the edges."""
    places = sum(np.indices(shape)) + stream.integers((1,) * len(shape), 0, 2 * _EXPONENT)
    return (places * 2) % (2 * _EXPONENT + 1) - _EXPONENT


def _expected(
    shape: _Shape,
    numbers: tuple[Ints, Ints, Ints],
    exponents: tuple[Ints, Ints],
    ids: Ints,
    factors: Ints,
) -> Tensors:
    """Sums as integers of 2^-4; checked to be exact in float8 instructions and in float32."""
    (a, w, bias), (a_exponents, w_exponents) = numbers, exponents
    by = shape.groups if shape.scales == "block" else (-(-shape.n // w_exponents.shape[1]), shape.k)
    acc = np.zeros((len(ids), shape.n), dtype=np.int64)
    total, largest = np.zeros_like(acc), np.zeros_like(acc)
    for pair, expert in enumerate(ids.tolist()):
        row = pair // shape.top_k
        of_row = a_exponents[row if len(a_exponents) > 1 else 0]
        for group, start in enumerate(range(0, shape.k, by[1])):
            part = slice(start, start + by[1])
            terms = np.abs(w[expert][:, part]) @ np.abs(a[row, part])
            _require(shape, "a group's terms", int(terms.max()), _PARTIAL)
            shift = np.repeat(w_exponents[expert, :, group], by[0])[: shape.n] + of_row[group]
            shift = shift + 2 * _EXPONENT
            partial = w[expert][:, part] @ a[row, part]
            acc[pair] += partial << (shift if shape.scales == "block" else 2 * _EXPONENT)
            total[pair] += partial << shift
            largest[pair] += terms << shift
        total[pair] += bias[expert] << 2 * _EXPONENT
        largest[pair] += np.abs(bias[expert]) << 2 * _EXPONENT
    _require(shape, "scaled terms", int(largest.max() * factors.max()), _TOTAL)
    out = total * factors[:, None] if shape.apply_weights else total
    return {"out": _units(out).to(torch.bfloat16), "acc": _units(acc)}


def _require(shape: _Shape, what: str, got: int, limit: int) -> None:
    if got > limit:
        raise ValueError(
            f"fixture {shape.name}: {what} add up to {got}, more than the {limit} within which "
            "every order is exact; make it smaller"
        )


def _units(values: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ldexp(values.astype(np.float32), -2 * _EXPONENT))


def _codes(values: Ints) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(torch.float8_e4m3fn)


def _powers(exponents: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ldexp(np.float32(1), exponents).astype(np.float32))
