"""The values of `moe.experts_data.spread`, made on the device: a CPU takes minutes for a layer."""

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_CHUNK = 1 << 26
_HIGH = 255
_OCTAVES = 7


def device_spread(seed: int, shape: tuple[int, ...], *, scale_log2: int, device: str) -> Tensor:
    """The bits of `spread(IntegerStream(seed), shape, scale_log2=scale_log2)`, on a device.

    Returns:
        [*shape] bfloat16: integers from -255 to 255, divided by 2**scale_log2 and by up to 2**7.
    """
    count = math.prod(shape)
    out = torch.empty(count, dtype=torch.bfloat16, device=device)
    for start in range(0, count, _CHUNK):
        stop = min(count, start + _CHUNK)
        place = torch.arange(start + 1, stop + 1, device=device)
        values = _below(seed, place, 2 * _HIGH + 1) - _HIGH
        # The stream's next numbers: an exponent for each value.
        exponents = _below(seed, place + count, _OCTAVES + 1) - _OCTAVES
        out[start:stop] = torch.ldexp(values.float(), exponents - scale_log2)
    return out.view(shape)


def _below(seed: int, place: Tensor, limit: int) -> Tensor:
    """The stream's numbers at these places (from 1), each below `limit`; see `IntegerStream`."""
    return _shift(_shift(_words(seed, place), 32) * limit, 32)


def _words(seed: int, place: Tensor) -> Tensor:
    z = place * _signed(_GOLDEN) + _signed(seed)
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: int64 has only the arithmetic one."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
