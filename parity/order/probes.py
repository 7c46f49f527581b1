"""Inputs that tell orders apart, for an implementation that can be called: run it on all of them.

Sums are made to cancel, so that their rounding errors are what is left of them: bfloat16 outputs
then show an order that they hide on random data. Inputs are made from integers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.moe import align_reference
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.kernels.moe.experts_data import route, spread
from bitgate.kernels.spec import Constants, Kernel, Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

# What is left of a sum of such numbers is its rounding errors.
_BIG_LOG2: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The inputs of one call, and what they tell apart."""

    label: str
    inputs: Tensors
    constants: Constants


def probes(op: str) -> tuple[Probe, ...]:
    """The probes of an operator, in the order in which `identify` should see them.

    Raises:
        UsageError: there are none for the operator.
    """
    if op not in _PROBES:
        raise UsageError(f"no probes for {op!r}; there are some for {', '.join(_PROBES)}")
    return _PROBES[op]()


def _cancelling(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and weights of twice the length; every product occurs with both signs, far apart."""
    # A mirror image would hide some trees from others.
    places = (torch.arange(a.shape[-1]) * 37 + 11) % a.shape[-1]
    return torch.cat([a, a[..., places]], dim=-1), torch.cat([w, -w[..., places]], dim=-1)


def _weights(stream: IntegerStream, shape: tuple[int, ...]) -> Tensor:
    """Positive weights of 24 bits: shorter ones times a bfloat16 would be exact in float32."""
    high = (1 << 24) - 1
    return integer_tensor(stream, shape, high=high, scale_log2=24, dtype=torch.float32).abs()


def _experts() -> tuple[Probe, ...]:
    return (_experts_sums(), _experts_combine(), _experts_silu())


def _experts_sums() -> Probe:
    """The up half cancels, so that the order of the first sum shows; 448 are 3.5 chunks of 128."""
    stream = IntegerStream(1)
    x, up = _cancelling(
        spread(stream, (8, 224), scale_log2=6), spread(stream, (4, 96, 224), scale_log2=8)
    )
    gate = spread(stream, (4, 96, 448), scale_log2=8)
    inputs = {
        "x": x,
        "topk_ids": torch.from_numpy(route(stream, 8, 4, 2)),
        "topk_weights": _weights(stream, (8, 2)),
        "w_gate_up": torch.cat([gate, up], dim=1),
        "w_down": spread(stream, (4, 448, 96), scale_log2=8),
    }
    return Probe(label="sums along K", inputs=inputs, constants={"swiglu_limit": inf})


def _experts_combine() -> Probe:
    """Two slots of four cancel: the other two are what is left, and the big ones' roundings."""
    stream = IntegerStream(2)
    tokens, hidden, intermediate = 64, 64, 32
    gate_up = spread(stream, (4, 2 * intermediate, hidden), scale_log2=6).repeat(2, 1, 1)
    down = spread(stream, (4, hidden, intermediate), scale_log2=6)
    down[0] *= 2.0**_BIG_LOG2
    order = torch.from_numpy(stream.integers((tokens, 4), 0, 1 << 30)).argsort(dim=1)
    # Experts 0 and 4 cancel; between them come two of the others, in every order.
    ids = torch.tensor([0, 4, 2, 5]).expand(tokens, 4).gather(1, order)
    weights = _weights(stream, (tokens, 4))
    big = (ids % 4 == 0).float()
    weights = weights * (1 - big) + weights[:, :1] * big
    inputs = {
        "x": spread(stream, (tokens, hidden), scale_log2=6),
        "topk_ids": ids,
        "topk_weights": weights,
        "w_gate_up": gate_up,
        "w_down": torch.cat([down, -down]),
    }
    return Probe(label="sums over slots", inputs=inputs, constants={"swiglu_limit": inf})


def _experts_silu() -> Probe:
    """Silu of 524288 numbers, handed on by an identity: one in many thousands shows its exp."""
    stream = IntegerStream(3)
    tokens, size = 16384, 32
    x = torch.zeros(tokens, size, dtype=torch.bfloat16)
    # At even places, so that each sum has two terms in every order.
    for place in (0, 2):
        x[:, place] = integer_tensor(stream, (tokens,), high=255, scale_log2=6)
    x[:, 4] = 1.0
    # Where exp leaves float32, implementations differ more.
    x[: tokens // 8, 0] *= 16.0
    gate_up = torch.zeros(1, 2 * size, size, dtype=torch.bfloat16)
    for place, scale_log2 in ((0, 7), (2, 12)):
        gate_up[0, :size, place] = integer_tensor(stream, (size,), high=255, scale_log2=scale_log2)
    gate_up[0, size:, 4] = 1.0
    inputs = {
        "x": x,
        "topk_ids": torch.zeros(tokens, 1, dtype=torch.int64),
        "topk_weights": torch.ones(tokens, 1),
        "w_gate_up": gate_up,
        "w_down": torch.eye(size, dtype=torch.bfloat16)[None],
    }
    return Probe(label="silu", inputs=inputs, constants={"swiglu_limit": inf})


def _gemm() -> tuple[Probe, ...]:
    stream = IntegerStream(4)
    tokens, experts, top_k, n = 8, 4, 2, 24
    ids = torch.from_numpy(route(stream, tokens, experts, top_k))
    block_m = DEFAULT_CONFIG.block_m
    everyone = torch.arange(experts, dtype=torch.int32)
    aligned = align_reference.moe_align(topk_ids=ids, expert_map=everyone, block_m=block_m)
    shared = dict(zip(("sorted_pairs", "expert_ids", "padded"), aligned, strict=True))
    shared["weights"] = _weights(stream, (tokens * top_k,))
    a, w = (
        spread(stream, (tokens, 224), scale_log2=6),
        spread(stream, (experts, n, 224), scale_log2=8),
    )
    bias = integer_tensor(
        stream, (experts, n), high=(1 << 24) - 1, scale_log2=24, dtype=torch.float32
    )
    long_a, long_w = _cancelling(a, w)
    constants = {"top_k": top_k, "apply_weights": 1, "block_m": block_m}
    constants |= {"block_n": DEFAULT_CONFIG.block_n, "block_k": DEFAULT_CONFIG.block_k}
    # Without a bias in the first: it would hide what is left.
    return (
        Probe(
            label="sums along K",
            inputs={**shared, "a": long_a, "w": long_w, "bias": torch.zeros_like(bias)},
            constants=constants,
        ),
        Probe(
            label="weight and bias",
            inputs={**shared, "a": a, "w": w, "bias": bias},
            constants=constants,
        ),
    )


def _act() -> tuple[Probe, ...]:
    """Every finite bfloat16 gate, 255 different ups."""
    codes = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)
    gates = codes[codes.isfinite()].view(-1, 32)
    up = integer_tensor(IntegerStream(5), tuple(gates.shape), high=255, scale_log2=6)
    gate_up = torch.cat([gates, up], dim=1)
    return (Probe(label="silu", inputs={"gate_up": gate_up}, constants={"swiglu_limit": inf}),)


def _combine(*, weigh: bool) -> tuple[Probe, ...]:
    stream = IntegerStream(6)
    y = spread(stream, (64, 4, 64), scale_log2=6)
    y[:, 2] = -y[:, 0]
    y[:, 0::2] *= 2.0**_BIG_LOG2
    order = torch.from_numpy(stream.integers((64, 4), 0, 1 << 30)).argsort(dim=1)
    inputs = {"y": y, "topk_ids": order}
    if weigh:
        weights = _weights(stream, (64, 4))
        weights[:, 2] = weights[:, 0]
        inputs["topk_weights"] = weights
    return (Probe(label="sums over slots", inputs=inputs, constants={"experts": 4}),)


def _mhc(kernel: Kernel) -> Tensors:
    axes = (("hidden", 320), ("streams", 4), ("tokens", 5))
    return kernel.make_inputs(Workload(op=kernel.op, axes=axes, dtype="bfloat16"), 0)


def _post_inputs(kernel: Kernel) -> Tensors:
    """Streams 0 and 2 cancel."""
    inputs = _mhc(kernel)
    residual, comb = inputs["residual"], inputs["comb"]
    residual[:, 2] = -residual[:, 0]
    residual[:, 0::2] *= 2.0**_BIG_LOG2
    comb[:, 2] = comb[:, 0]
    return inputs


def _pre() -> tuple[Probe, ...]:
    return (Probe(label="random", inputs=_mhc(MHC_PRE), constants=dict(MHC_PRE.constants)),)


def _post() -> tuple[Probe, ...]:
    return (Probe(label="sums over streams", inputs=_post_inputs(MHC_POST), constants={}),)


def _post_pre() -> tuple[Probe, ...]:
    constants = dict(MHC_POST_PRE.constants)
    return (Probe(label="both", inputs=_post_inputs(MHC_POST_PRE), constants=constants),)


_PROBES: Final[dict[str, Callable[[], tuple[Probe, ...]]]] = {
    "moe_experts": _experts,
    "moe_gemm": _gemm,
    "moe_act": _act,
    "moe_combine": lambda: _combine(weigh=False),
    "moe_combine_weighted": lambda: _combine(weigh=True),
    "mhc_pre": _pre,
    "mhc_post": _post,
    "mhc_post_pre": _post_pre,
}
