"""Inputs for the mHC operators, made from integers: the same bits on every machine.

A library's normal or uniform distribution may give other bits on another processor, so values are
assembled from the words of an integer stream: sign, significand, exponent.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.mhc.contract import LANES, MIXES, STREAMS
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Words = npt.NDArray[np.uint64]

CASES = (
    "random",
    "zeros",
    "negative-zeros",
    "zero-row",
    "sink",
    "large",
    "small",
    "ties",
    "saturating",
    "spread",
)


@dataclass(frozen=True, slots=True)
class Draw:
    """A named source of integers: what it gives depends on the seed and on the name only."""

    seed: int

    def words(self, name: str, count: int) -> Words:
        """`count` 64-bit words."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return IntegerStream(int.from_bytes(digest[:8], "big")).words(count)

    def floats(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        bits: int,
        exponents: tuple[int, int],
        signed: bool = True,
    ) -> npt.NDArray[np.float64]:
        """Numbers with `bits` significant bits and an exponent in the closed range, exactly."""
        words = self.words(name, int(np.prod(shape, dtype=np.int64)))
        low, high = exponents
        significand = (words & np.uint64(2 ** (bits - 1) - 1)).astype(np.int64) + 2 ** (bits - 1)
        span = np.uint64(high - low + 1)
        exponent = ((words >> np.uint64(32)) % span).astype(np.int64) + low - (bits - 1)
        sign = 1 - 2 * (words >> np.uint64(63)).astype(np.int64) * int(signed)
        values: npt.NDArray[np.float64] = np.ldexp(
            (sign * significand).astype(np.float64), exponent
        )
        return values.reshape(shape)


def to_bf16(values: npt.NDArray[np.float64]) -> torch.Tensor:
    """Values that bfloat16 represents exactly, as a tensor."""
    return torch.from_numpy(values).to(torch.float32).to(torch.bfloat16)


def to_f32(values: npt.NDArray[np.float64]) -> torch.Tensor:
    """Values that float32 represents exactly, as a tensor."""
    return torch.from_numpy(values).to(torch.float32)


def _streams(draw: Draw, name: str, shape: tuple[int, ...], case: str) -> torch.Tensor:
    """Activations [tokens, ..., hidden] in bfloat16 of the kind that the case names."""
    if case in {"zeros", "negative-zeros"}:
        return to_bf16(np.full(shape, 0.0 if case == "zeros" else -0.0))
    exponents = {"large": (40, 44), "small": (-40, -36), "ties": (0, 0), "spread": (-20, 20)}
    values = draw.floats(name, shape, bits=8, exponents=exponents.get(case, (-4, 1)))
    if case == "sink":
        values[..., shape[-1] // 3] *= 2.0**10
    if case == "zero-row":
        values[0] = 0.0
    return to_bf16(values)


def _mapping(draw: Draw, hidden: int, case: str) -> Tensors:
    """Asymmetric fn, scale and base, sized so that the logits are of order one."""
    # mixes = fn . x / rms(x) grow with the root of the length, so fn shrinks with it.
    down = (STREAMS * hidden).bit_length() // 2
    scale = draw.floats("scale", (3,), bits=24, exponents=(-1, 0), signed=False)
    return {
        "fn": to_f32(
            draw.floats("fn", (MIXES, STREAMS * hidden), bits=24, exponents=(-down - 3, -down))
        ),
        "scale": to_f32(scale * (2.0**10 if case == "saturating" else 1.0)),
        "base": to_f32(draw.floats("base", (MIXES,), bits=24, exponents=(-3, 0))),
    }


def _mixes(draw: Draw, tokens: int, case: str) -> Tensors:
    """Asymmetric post and comb in the range that mhc_pre gives; for ties, half units in the sum."""
    if case == "ties":
        post = np.ones((tokens, STREAMS))
        shifts = draw.words("comb", tokens * STREAMS * STREAMS).reshape(tokens, STREAMS, STREAMS)
        comb = np.ldexp(1.0, -(shifts % np.uint64(10)).astype(np.int64))
    else:
        post = draw.floats("post", (tokens, STREAMS), bits=24, exponents=(-5, 0), signed=False)
        comb = draw.floats(
            "comb", (tokens, STREAMS, STREAMS), bits=24, exponents=(-6, -1), signed=False
        )
    return {"post": to_f32(post), "comb": to_f32(comb)}


def _start(workload: Workload, index: int) -> tuple[Draw, int, int]:
    """The source of integers, tokens and hidden. Raises UsageError for unknown cases or streams."""
    if workload.case not in CASES:
        raise UsageError(
            f"{workload.key}: unknown case {workload.case!r}; known: {', '.join(CASES)}"
        )
    hidden, streams = workload.axis("hidden"), workload.axis("streams")
    if streams != STREAMS or hidden == 0 or STREAMS * hidden % LANES:
        raise UsageError(
            f"{workload.key}: expected streams of {STREAMS} and hidden a positive multiple of "
            f"{LANES // STREAMS}"
        )
    return Draw(workload.seed(index)), workload.axis("tokens"), hidden


def pre_inputs(workload: Workload, index: int) -> Tensors:
    """Inputs of MHC_PRE for one sample. Raises UsageError for a case that is not in CASES."""
    draw, tokens, hidden = _start(workload, index)
    residual = _streams(draw, "residual", (tokens, STREAMS, hidden), workload.case)
    return {"residual": residual, **_mapping(draw, hidden, workload.case)}


def post_inputs(workload: Workload, index: int) -> Tensors:
    """Inputs of MHC_POST for one sample. Raises UsageError for a case that is not in CASES."""
    draw, tokens, hidden = _start(workload, index)
    return {
        "x": _streams(draw, "x", (tokens, hidden), workload.case),
        "residual": _streams(draw, "residual", (tokens, STREAMS, hidden), workload.case),
        **_mixes(draw, tokens, workload.case),
    }


def post_pre_inputs(workload: Workload, index: int) -> Tensors:
    """Inputs of MHC_POST_PRE for one sample. Raises UsageError for a case not in CASES."""
    draw, _, hidden = _start(workload, index)
    return {**post_inputs(workload, index), **_mapping(draw, hidden, workload.case)}


def suites(op: str) -> dict[str, tuple[Workload, ...]]:
    """The named workloads of one operator.

    `default` is small; it holds hidden sizes that divide into whole lanes and that do not.
    `finish4096` has the tokens that show a changed last bit in the mixes.
    """
    shapes = ((1, 64), (3, 64), (16, 64), (3, 320), (16, 256), (1, 512))

    def at(tokens: int, hidden: int, case: str = "random") -> Workload:
        axes = (("hidden", hidden), ("streams", STREAMS), ("tokens", tokens))
        return Workload(op=op, axes=axes, dtype="bfloat16", case=case)

    return {
        "default": tuple(at(tokens, hidden) for tokens, hidden in shapes),
        "edge": tuple(at(3, 192, case) for case in CASES if case != "random"),
        "finish4096": (at(4096, 64),),
    }
