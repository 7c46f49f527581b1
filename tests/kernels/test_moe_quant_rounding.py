"""The steps of the quantisers: float8 codes and exponent scales, against exact rationals."""

from bisect import bisect
from fractions import Fraction

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels import arithmetic_triton as device
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.interpreter import tl, triton
from bitgate.kernels.moe.quant_data import magnitudes, midpoints

Tensor = torch.Tensor
NUMBERS = [Fraction(float(number)) for number in magnitudes()]


@triton.jit
def code_kernel(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, device.round_e4m3(tl.load(x + at)))


@triton.jit
def power_kernel(x, out, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, device.ceil_power_of_two(tl.load(x + at)))


def in_triton(x: Tensor) -> Tensor:
    count = 1 << (x.numel() - 1).bit_length()
    padded = torch.zeros(count)
    padded[: x.numel()] = x
    out = torch.empty(count, dtype=torch.int8)
    device.launch(code_kernel, (1,), padded, out, block=count)
    return out[: x.numel()].view(torch.uint8)


def in_torch(x: Tensor) -> Tensor:
    return arithmetic.round_e4m3(x).view(torch.uint8)


ROUNDINGS = [in_torch, in_triton]


def nearest(value: float) -> int:
    """The code of the number nearest to a finite value; of two, the even code; at most 448."""
    size = Fraction(abs(value))
    above = min(bisect(NUMBERS, size), len(NUMBERS) - 1)
    code = min((above - 1, above), key=lambda one: (abs(NUMBERS[one] - size), one & 1))
    return code | (0x80 if np.signbit(np.float32(value)) else 0)


def around(values: np.ndarray, ulps: int = 2) -> Tensor:
    """Float32 values and their neighbours, of both signs."""
    bits = values.astype(np.float32).view(np.int32)[:, None] + np.arange(-ulps, ulps + 1)
    near = bits[bits >= 0].astype(np.int32).view(np.float32)
    return torch.from_numpy(np.concatenate([near, -near]))


EVERYWHERE = around(np.concatenate([magnitudes(), midpoints(), [464.0, 480.0, 512.0, 1e30]]))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_number_and_midpoint_rounds_as_exact_rationals_do(rounding) -> None:
    assert len(EVERYWHERE) > 2400
    expected = [nearest(value) for value in EVERYWHERE.tolist()]
    assert rounding(EVERYWHERE).tolist() == expected
    assert set(expected) == set(range(256)) - {0x7F, 0xFF}


def ties_upward(x: Tensor) -> Tensor:
    """A rounding that takes the larger of two equally near numbers."""
    code = torch.bucketize(x.double().abs(), torch.from_numpy(midpoints()), right=True)
    return (code | (torch.signbit(x).long() << 7)).to(torch.uint8)


def truncated(x: Tensor) -> Tensor:
    code = torch.bucketize(x.double().abs(), torch.from_numpy(magnitudes()), right=True) - 1
    return (code | (torch.signbit(x).long() << 7)).to(torch.uint8)


@pytest.mark.parametrize("wrong", [ties_upward, truncated])
def test_another_rounding_is_found_there(wrong) -> None:
    """The control of the test above."""
    assert (wrong(EVERYWHERE) != in_torch(EVERYWHERE)).sum() > 100


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_torch_casts_the_same_up_to_the_largest(rounding) -> None:
    bits = IntegerStream(3).integers((1 << 16,), 0, (1 << 32) - 1).astype(np.uint32)
    # Exponents from 2^-14 to 2^9, where float8 has its numbers, and any.
    bits[::2] = (bits[::2] & 0x807FFFFF) | ((113 + bits[::2] % 24) << 23).astype(np.uint32)
    x = torch.from_numpy(bits.view(np.float32))
    x = x[x.abs() <= arithmetic.E4M3_MAX]
    assert len(x) > 40000
    expected = x.to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(rounding(x), expected)
    assert len(expected.unique()) == 254


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_is_too_large_saturates_and_nan_is_one(rounding) -> None:
    inf = float("inf")
    large = torch.tensor([448.0, 463.99, 464.0, 480.0, 1e38, inf])
    assert rounding(large).tolist() == [0x7E] * 6
    assert rounding(-large).tolist() == [0xFE] * 6
    nan = torch.tensor([0x7FC00000, 0x7F800001, -1, -0x400000, 0x7FFFFFFF], dtype=torch.int32)
    assert rounding(nan.view(torch.float32)).tolist() == [0x7F] * 5


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_below_the_least_number(rounding) -> None:
    """Half of 2^-9 is a tie with zero; float32's own subnormals are far below."""
    half, up = 2.0**-10, 2.0**-10 * (1 + 2.0**-23)
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-38, half, -half, up, -up])
    assert rounding(x).tolist() == [0, 0x80, 0, 0x80, 0, 0x80, 1, 0x81]


def test_the_table_of_numbers_is_that_of_torch() -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert codes.double().tolist() == magnitudes().tolist()
    assert midpoints().tolist() == torch.from_numpy(midpoints()).bfloat16().double().tolist()


def test_the_power_of_two_above() -> None:
    exponents = np.arange(-126, 128)
    x = around(np.ldexp(1.0, exponents), 1)
    x = x[x >= 2.0**-126]
    out = torch.zeros(1024)
    padded = torch.ones(1024)
    padded[: len(x)] = x
    device.launch(power_kernel, (1,), padded, out, block=1024)
    found = arithmetic.ceil_power_of_two(x)
    assert torch.equal(found, out[: len(x)])
    for value, power in zip(x.tolist(), found.tolist(), strict=True):
        if power == float("inf"):
            assert value > 2.0**127
            continue
        assert np.frexp(power)[0] == 0.5
        assert Fraction(power) / 2 < Fraction(value) <= Fraction(power)


def test_the_power_of_two_of_what_is_not_finite() -> None:
    x = torch.tensor([float("inf"), float("nan")] * 8)
    out = torch.zeros(16)
    device.launch(power_kernel, (1,), x, out, block=16)
    for found in (out, arithmetic.ceil_power_of_two(x)):
        assert found[0] == float("inf")
        assert found[1].isnan()
