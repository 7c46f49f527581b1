"""The arithmetic order `mhc-c1`, in numbers and words, and what its arguments must look like.

Every addition is spelled out, and the arithmetic is chosen so that no device can change a bit by
contracting a multiply and an add:

1. A float32 factor w of a bfloat16 x is split: hi = the upper 20 bits of w, lo = w - hi. Both
   products are exact, so fma(a, b, c) equals a * b + c. The product of two bfloat16 is exact.
2. dot and sq run over k = i * hidden + h in 256 lanes: lane l adds k = l, l + 256, ... in this
   order, hi before lo, from +0. The lanes are added as a tree of adjacent pairs. One split only.
3. inv = 1 / sqrt(sq / (streams * hidden) + rms_eps); each step is correctly rounded.
4. Wherever an inexact product meets an addition, a fence keeps the two apart.
5. exp, sigmoid and the square root are those of `kernels.arithmetic`.
6. Four values are added as ((a + b) + c) + d. Sinkhorn divides; it never multiplies by reciprocals.
7. Weighted sums start at +0 and go over the streams in order; mhc_post adds the x term first.
8. Results in bfloat16 are rounded once, to nearest even, by integer arithmetic; a NaN is stored as
   the one canonical NaN.
9. mhc_post_pre is the composition: its second half reads the residual as rounded to bfloat16.

Inputs must be finite; subnormal partial results and float16 are outside of the contract.
"""

from collections.abc import Mapping
from typing import Final, NotRequired, TypedDict, Unpack

import torch

from bitgate.kernels import arguments
from bitgate.kernels.spec import Contract, TensorSpec
from bitgate.records.errors import UsageError

MHC_C1: Final = Contract(
    name="mhc-c1",
    summary="mHC with every addition in a fixed order and no product that an fma could change",
    batch_invariant=True,
    cross_device=True,
)
MHC_TORCH_1: Final = Contract(
    name="mhc-torch/1",
    summary="mHC by the plain torch operations that transformers runs, in the library's own orders",
    batch_invariant=False,
    cross_device=False,
)

STREAMS: Final = 4
MIXES: Final = STREAMS * (STREAMS + 2)
LANES: Final = 256


def bind(op: str, specs: tuple[TensorSpec, ...], tensors: Mapping[str, torch.Tensor]) -> int:
    """Check named tensors against their specifications; return the hidden size.

    Raises:
        UsageError: `arguments.bind` refuses them, or the number of streams is not 4, or
            streams * hidden is not a multiple of 256 lanes.
    """
    fixed = {"streams": STREAMS, "mixes": MIXES, "kinds": 3}
    axes = arguments.bind(op, specs, tensors, fixed=fixed, reason="only hc_mult 4 is defined")
    hidden = axes["hidden"]
    if hidden == 0 or STREAMS * hidden % LANES:
        raise UsageError(
            f"{op}: expected a hidden size that is a positive multiple of {LANES // STREAMS} "
            f"(contract {MHC_C1.name} has {LANES} lanes over {STREAMS} * hidden), got {hidden}"
        )
    return hidden


class MixConstants(TypedDict):
    """The constants of mhc_pre and mhc_post_pre; every caller names them, none has a default.

    `hc_eps` is added to pre, and inside Sinkhorn unless `sink_eps` is given; `rms_eps` is added to
    the mean of squares; `post_mult` scales post; the last of `sinkhorn_iters` passes over rows and
    columns is one over columns.
    """

    rms_eps: float
    hc_eps: float
    sinkhorn_iters: int
    post_mult: float
    sink_eps: NotRequired[float | None]


def check_constants(op: str, **constants: Unpack[MixConstants]) -> None:
    """Check the constants of one call.

    Raises:
        UsageError: one is missing, unknown, no number or not finite in float32, an epsilon is
            negative, or sinkhorn_iters is not an int of at least 1.
    """
    missing = sorted(MixConstants.__required_keys__ - constants.keys())
    unknown = sorted(constants.keys() - MixConstants.__annotations__.keys())
    if missing or unknown:
        raise UsageError(
            f"{op}: expected the constants {sorted(MixConstants.__required_keys__)} and perhaps "
            f"sink_eps, got missing {missing}, unknown {unknown}"
        )
    iters = constants["sinkhorn_iters"]
    if type(iters) is not int or iters < 1:
        raise UsageError(f"{op}: expected sinkhorn_iters of at least 1, an int, got {iters!r}")
    for name, value in constants.items():
        if name != "sinkhorn_iters" and not (name == "sink_eps" and value is None):
            _check_number(f"{op}: expected {name}", value, lowest=0.0 if "eps" in name else None)


def _check_number(what: str, value: object, *, lowest: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{what} to be a number, got {value!r}")
    # Every order computes with the constants as float32; beyond its range they would be infinite.
    if not abs(value) <= torch.finfo(torch.float32).max:
        raise UsageError(f"{what} to be finite in float32, got {value}")
    if lowest is not None and value < lowest:
        raise UsageError(f"{what} of at least 0 (sums would cancel), got {value}")


def inner_eps(**constants: Unpack[MixConstants]) -> float:
    """The epsilon inside Sinkhorn: sink_eps, or hc_eps where that is not given."""
    given = constants.get("sink_eps")
    return constants["hc_eps"] if given is None else given


def check_carry(op: str, carry: str) -> None:
    """Raise UsageError unless the carried residual is rounded to bfloat16."""
    if carry != "bf16":
        raise UsageError(
            f"{op}: expected carry='bf16' under contract {MHC_C1.name}, got {carry!r}; feeding the "
            "unrounded residual on is another contract, which has no implementation here"
        )
