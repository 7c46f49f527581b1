"""Integer-exact fixtures of moe_experts: any correct order on any device gives these bits.

Every gate value is 0, at least 32 or at most -128. There silu is the identity or zero without any
rounding: exp(-32) vanishes beside 1 in float32, and exp(128) is infinite. All other numbers are
small integers, and the sum of their magnitudes stays below what bfloat16 holds exactly, so no
partial sum of any order rounds, wherever a contract puts the routing weight and its roundings. The
expected result is computed with 64-bit integers alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.spec import IntegerCase

Ints = npt.NDArray[np.int64]

# bfloat16 holds multiples of 2**s exactly up to 2**(s + 8); gates of 32 make all terms multiples.
_UNIT = 32
_EXACT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    name: str
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    limit: int | None = None
    padding: bool = False


_SHAPES = (
    _Shape(name="small", tokens=5, hidden=16, intermediate=8, experts=4, top_k=2),
    _Shape(name="one-token", tokens=1, hidden=32, intermediate=8, experts=8, top_k=3),
    _Shape(name="wide", tokens=33, hidden=300, intermediate=40, experts=6, top_k=2),
    _Shape(name="clamped", tokens=7, hidden=16, intermediate=8, experts=4, top_k=2, limit=32),
    _Shape(name="padding", tokens=9, hidden=16, intermediate=8, experts=4, top_k=3, padding=True),
)


def integer_cases() -> tuple[IntegerCase, ...]:
    """All fixtures; each catches a wrong expert, half, weight, activation, token or reduction."""
    return tuple(_case(shape) for shape in _SHAPES)


def _case(shape: _Shape) -> IntegerCase:
    stream = IntegerStream(sum(shape.name.encode()))
    x = stream.integers((shape.tokens, shape.hidden), 1, 2)
    w_gate, w_up, w_down = _weights(stream, shape)
    ids = np.argsort(stream.words(shape.tokens * shape.experts).reshape(shape.tokens, -1), axis=1)
    ids = ids[:, : shape.top_k].astype(np.int64)
    if shape.padding:
        ids[::3, 0] = -1
        ids[1::3, -1] = shape.experts
    factors = stream.integers(ids.shape, 1, 1 if shape.limit else 2)
    expected = _expected(shape, (x, ids, factors), (w_gate, w_up, w_down))
    return IntegerCase(
        name=shape.name,
        inputs={
            "x": _bf16(x),
            "topk_ids": torch.from_numpy(ids),
            "topk_weights": torch.from_numpy(factors).to(torch.float32),
            "w_gate_up": _bf16(np.concatenate([w_gate, w_up], axis=1)),
            "w_down": _bf16(w_down),
        },
        constants={"swiglu_limit": float("inf") if shape.limit is None else float(shape.limit)},
        expected={"out": _bf16(expected)},
    )


def _weights(stream: IntegerStream, shape: _Shape) -> tuple[Ints, Ints, Ints]:
    """Gate, up and down weights; channel 0 of every expert is always active and reaches all."""
    experts, channels, hidden = shape.experts, shape.intermediate, shape.hidden
    w_gate = np.zeros((experts, channels, hidden), dtype=np.int64)
    levels = np.array([_UNIT, 0, -4 * _UNIT, _UNIT])[stream.integers((experts, channels), 0, 3)]
    levels[:, 0] = _UNIT
    np.put_along_axis(
        w_gate, stream.integers((experts, channels, 1), 0, hidden - 1), levels[..., None], axis=2
    )
    w_up = np.zeros_like(w_gate)
    columns = stream.integers((experts, channels, 2), 0, hidden - 1)
    signs = 1 - 2 * stream.integers(columns.shape, 0, 1)
    signs[:, 0] = 1
    np.put_along_axis(w_up, columns, signs * (1 if shape.limit is None else 16), axis=2)
    w_down = np.zeros((experts, hidden, channels), dtype=np.int64)
    columns = stream.integers((experts, hidden, 3), 0, channels - 1)
    columns[:, :, 0] = 0
    np.put_along_axis(w_down, columns, 1 - 2 * stream.integers(columns.shape, 0, 1), axis=2)
    return w_gate, w_up, w_down


def _expected(
    shape: _Shape, routing: tuple[Ints, Ints, Ints], weights: tuple[Ints, Ints, Ints]
) -> Ints:
    x, ids, factors = routing
    w_gate, w_up, w_down = weights
    out = np.zeros_like(x)
    magnitude = np.zeros_like(x)
    for token, slot in np.ndindex(*ids.shape):
        expert = ids[token, slot]
        if not 0 <= expert < shape.experts:
            continue
        gate, up = w_gate[expert] @ x[token], w_up[expert] @ x[token]
        if shape.limit is not None:
            gate, up = np.minimum(gate, shape.limit), np.clip(up, -shape.limit, shape.limit)
        hidden = np.where(gate > 0, gate, 0) * up
        out[token] += factors[token, slot] * (w_down[expert] @ hidden)
        magnitude[token] += factors[token, slot] * (np.abs(w_down[expert]) @ np.abs(hidden))
    if magnitude.max() > _EXACT * _UNIT:
        raise ValueError(
            f"fixture {shape.name}: terms add up to {magnitude.max()}, more than the "
            f"{_EXACT * _UNIT} within which every order is exact; make it smaller"
        )
    return out


def _bf16(values: Ints) -> torch.Tensor:
    tensor = torch.from_numpy(values).to(torch.bfloat16)
    if not bool((tensor.to(torch.int64) == torch.from_numpy(values)).all()):
        raise ValueError("fixture: a value is not exact in bfloat16; make it smaller")
    return tensor
