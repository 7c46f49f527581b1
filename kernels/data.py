"""Test data made from integers, so that every machine and library version makes the same bits.

Library generators promise neither: their distributions change between versions, and their
vectorised forms between processors. Here the n-th number is a mix of the seed and n, and a tensor
is an integer divided by a power of two.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from bitgate.records.errors import UsageError
from bitgate.records.proof import Workload

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class IntegerStream:
    """Uniform integers that depend only on the seed and on how many were drawn before.

    The numbers are SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): state seed + n * golden ratio,
    two multiply-xor rounds.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed <= _MASK:
            raise ValueError(f"expected a seed of at most 64 bits, got {seed}")
        self._state = seed

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The next `count` 64-bit words."""
        z = np.arange(1, count + 1, dtype=np.uint64)
        z *= np.uint64(_GOLDEN)
        z += np.uint64(self._state)
        self._state = (self._state + count * _GOLDEN) & _MASK
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> npt.NDArray[np.int64]:
        """Integers from `low` to `high`, both included; the span is at most 2**32."""
        span = high - low + 1
        if not 1 <= span <= 1 << 32:
            raise ValueError(f"expected a span of 1 to 2**32, got {low} to {high}")
        values = self._scaled(shape, np.uint64(span)).view(np.int64)
        values += low
        return values

    def below(self, limits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """One integer from 0 to limit - 1 for every limit, each of 1 to 2**32."""
        if limits.size and not (limits.min() >= 1 and limits.max() <= 1 << 32):
            raise ValueError(f"expected limits of 1 to 2**32, got {limits.min()} to {limits.max()}")
        return self._scaled(limits.shape, limits.astype(np.uint64)).view(np.int64)

    def _scaled(
        self, shape: tuple[int, ...], limits: npt.NDArray[np.uint64] | np.uint64
    ) -> npt.NDArray[np.uint64]:
        """A fixed-point product instead of a remainder: the high bits are the well-mixed ones."""
        values = self.words(math.prod(shape)).reshape(shape)
        values >>= np.uint64(32)
        values *= limits
        values >>= np.uint64(32)
        return values


def integer_tensor(
    stream: IntegerStream,
    shape: tuple[int, ...],
    *,
    high: int,
    scale_log2: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """A CPU tensor of uniform integers from -high to high, divided by 2**scale_log2.

    Exact in `dtype` when `high` fits its significand (255 for bfloat16, 2**24 - 1 for float32).
    """
    limits = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24}
    if dtype not in limits or not 0 < high < limits[dtype]:
        raise ValueError(f"integers up to {high} are not exact in {dtype}; known: {limits}")
    values = stream.integers(shape, -high, high).astype(np.float32)
    values *= np.float32(2.0**-scale_log2)
    return torch.from_numpy(values).to(dtype)


def require_workload(workload: Workload, cases: tuple[str, ...], dtype: str = "bfloat16") -> None:
    """Check that inputs can be made for a workload.

    Raises:
        UsageError: another dtype, none of these cases, or more slots of a token than experts.
    """
    if workload.case not in cases or workload.dtype != dtype:
        raise UsageError(f"{workload.key}: expected dtype {dtype} and a case of {', '.join(cases)}")
    axes = dict(workload.axes)
    experts = axes.get("experts")
    if experts is not None and not 0 < axes.get("top_k", 1) <= experts:
        raise UsageError(f"{workload.key}: top_k must be 1 to {experts} (the number of experts)")
