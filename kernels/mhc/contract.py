"""The arithmetic order `mhc-c1`, in numbers and words, and what its arguments must look like.

Every addition is spelled out, and the arithmetic is chosen so that no device can change a bit by
contracting a multiply and an add:

1. A float32 factor w of a bfloat16 x is split: hi = the upper 20 bits of w, lo = w - hi. Both
   products are exact, so fma(a, b, c) equals a * b + c. The product of two bfloat16 is exact.
2. dot and sq run over k = i * hidden + h in 256 lanes: lane l adds k = l, l + 256, ... in this
   order, hi before lo, from +0. The lanes are added as a tree of adjacent pairs. One split only.
3. inv = 1 / sqrt(sq / (streams * hidden) + rms_eps); each step is correctly rounded.
4. Wherever an inexact product meets an addition, a fence keeps the two apart.
5. exp is the polynomial below: exactly 0 under -87 and inf above 87. sigmoid is 1 / (1 + exp(-z)).
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

# exp(x) = 2^n * (1 + r + r^2 * Q(r)), n = round(x / ln 2), r = x - n * LN2_HIGH - n * LN2_LOW.
# LN2_HIGH has 9 significant bits, so that n * LN2_HIGH is exact. Q is a minimax fit on
# |r| <= ln(2) / 2, lowest power first, rounded to float32.
EXP_LIMIT: Final = 87.0
LOG2_E: Final = float.fromhex("0x1.715476p+0")
LN2_HIGH: Final = 0.693359375
LN2_LOW: Final = float.fromhex("-0x1.bd0106p-13")
ROUND_MAGIC: Final = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer in the low bits
ROUND_MAGIC_BITS: Final = 0x4B400000
EXP_Q: Final = (
    float.fromhex("0x1.000000p-1"),
    float.fromhex("0x1.555554p-3"),
    float.fromhex("0x1.55548cp-5"),
    float.fromhex("0x1.111274p-7"),
    float.fromhex("0x1.6d8e6ep-10"),
    float.fromhex("0x1.9f077ap-13"),
)

HIGH_BITS: Final = -4096  # 0xFFFFF000 as a signed 32-bit integer
NAN_BITS: Final = 0x7FC00000
NAN_BITS_BF16: Final = 0x7FC0


def bind(op: str, specs: tuple[TensorSpec, ...], tensors: Mapping[str, torch.Tensor]) -> int:
    """Check named tensors against their specifications; return the hidden size.

    An axis written `streams*hidden` is the product of the two. Tensors that are not given are not
    checked, so that outputs can be checked alone.

    Raises:
        UsageError: a dtype, rank, extent or device disagrees, or the number of streams is not 4, or
            streams * hidden is not a multiple of 256 lanes.
    """
    axes: dict[str, int] = {"streams": STREAMS, "mixes": MIXES, "kinds": 3}
    given = [(spec, tensors[spec.name]) for spec in specs if spec.name in tensors]
    for spec, tensor in given:
        _check_kind(op, spec, tensor)
        for axis, extent in zip(spec.axes, tensor.shape, strict=True):
            _check_extent(f"{op}: {spec.name}", axis, extent, axes)
    devices = {str(tensor.device) for _, tensor in given}
    if len(devices) > 1:
        raise UsageError(f"{op}: expected all tensors on one device, got {sorted(devices)}")
    hidden = axes["hidden"]
    if hidden == 0 or STREAMS * hidden % LANES:
        raise UsageError(
            f"{op}: expected a hidden size that is a positive multiple of {LANES // STREAMS} "
            f"(contract {MHC_C1.name} has {LANES} lanes over {STREAMS} * hidden), got {hidden}"
        )
    return hidden


def _check_kind(op: str, spec: TensorSpec, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"{op}: expected {spec.name} as a torch tensor, got {type(tensor).__name__}"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != spec.dtype:
        raise UsageError(f"{op}: expected {spec.name} in {spec.dtype}, got {dtype}; convert it")
    if tensor.ndim != len(spec.axes):
        raise UsageError(
            f"{op}: expected {spec.name} as [{', '.join(spec.axes)}], got {list(tensor.shape)}"
        )


def _check_extent(where: str, axis: str, extent: int, axes: dict[str, int]) -> None:
    if axis == "streams*hidden":
        expected = STREAMS * axes["hidden"] if "hidden" in axes else extent
    else:
        expected = axes.setdefault(axis, extent)
    if extent != expected:
        hint = "; only hc_mult 4 is defined" if axis in {"streams", "mixes"} else ""
        raise UsageError(f"{where}: expected axis {axis} of {expected}, got {extent}{hint}")


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
