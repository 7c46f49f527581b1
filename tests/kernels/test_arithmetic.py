"""The pieces of every canonical contract: right, accurate, and the same in torch and in Triton."""

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels import arithmetic_triton as device
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.interpreter import tl, triton

UNIT = 2.0**-24
Tensor = torch.Tensor


def bits(count: int, seed: int = 1) -> Tensor:
    """Float32 of any sign, exponent and significand, infinities and one kind of NaN among them."""
    words = IntegerStream(seed).words(count) >> np.uint64(32)
    x = torch.from_numpy(words.astype(np.uint32).view(np.float32))
    # NumPy, which interprets the kernels, warns of signalling NaN.
    x[0], x[1] = float("inf"), float("-inf")
    return arithmetic.canonical(x)


def spread(count: int, octaves: int, seed: int = 2) -> Tensor:
    """Float32 with 24 significant bits over so many octaves around 1, of both signs."""
    stream = IntegerStream(seed)
    significand = torch.from_numpy(stream.integers((count,), -(1 << 24) + 1, (1 << 24) - 1)).float()
    return torch.ldexp(significand, torch.from_numpy(stream.integers((count,), -octaves, 0)) - 23)


def test_exp_is_accurate_and_saturates_exactly() -> None:
    x = torch.from_numpy(np.linspace(-87, 87, 400_001).astype(np.float32))
    exact = torch.exp(x.double())
    relative = (arithmetic.exp(x).double() - exact).abs() / exact
    assert relative.max().item() <= 1.5 * UNIT
    edge = torch.tensor([-1e30, -87.00001, 0.0, -0.0, 87.00001, 1e30, float("nan")])
    found = arithmetic.exp(edge).tolist()
    assert found[:6] == [0.0, 0.0, 1.0, 1.0, float("inf"), float("inf")]
    assert found[6] != found[6]


def test_sigmoid_saturates_exactly() -> None:
    z = torch.tensor([-1e30, -87.1, 0.0, 18.0, 1e30])
    assert arithmetic.sigmoid(z).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_softplus_is_accurate_and_saturates_exactly() -> None:
    x = torch.from_numpy(np.linspace(-87, 87, 400_001).astype(np.float32))
    exact = torch.nn.functional.softplus(x.double(), threshold=100)
    relative = (arithmetic.softplus(x).double() - exact).abs() / exact
    assert relative.max().item() <= 3.5 * UNIT
    edge = torch.tensor([float("-inf"), -1e30, -87.00001, 17.5, 1e30, float("inf"), float("nan")])
    found = arithmetic.softplus(edge).tolist()
    assert found[:6] == [0.0, 0.0, 0.0, 17.5, edge[4].item(), float("inf")]
    assert found[6] != found[6]


def test_split_products_are_exact() -> None:
    w = spread(4096, 8)
    x = spread(4096, 8, seed=3).to(torch.bfloat16).float()
    hi, lo = arithmetic.split(w)
    assert torch.equal(hi.double() + lo.double(), w.double())
    for part in (hi, lo):
        assert torch.equal((part * x).double(), part.double() * x.double())
    assert not torch.equal((w * x).double(), w.double() * x.double())


def test_tree_adds_adjacent_pairs() -> None:
    values = spread(256, 8)

    def pairs(part: Tensor) -> Tensor:
        half = part.shape[0] // 2
        return part[0] if half == 0 else pairs(part[:half]) + pairs(part[half:])

    assert torch.equal(arithmetic.tree(values), pairs(values))
    halves = values
    while halves.shape[0] > 1:
        halves = halves[: halves.shape[0] // 2] + halves[halves.shape[0] // 2 :]
    assert not torch.equal(arithmetic.tree(values), halves[0])


def test_sqrt_is_correctly_rounded() -> None:
    x = spread(4096, 40).abs()
    assert np.array_equal(arithmetic.sqrt(x).numpy(), np.sqrt(x.numpy()))


def test_rounding_is_to_nearest_even_with_one_nan() -> None:
    edge = [0x3F808000, 0x3F818000, 0x3F808001, -0x407F8000, 0x7F7FFFFF, 0x7F800001, -1, 0x7F800000]
    x = torch.tensor(edge, dtype=torch.int32).view(torch.float32)
    found = arithmetic.round_bf16(x).view(torch.int16).tolist()
    negative_tie = 0xBF80 - 0x10000
    assert found == [0x3F80, 0x3F82, 0x3F81, negative_tie, 0x7F80, 0x7FC0, 0x7FC0, 0x7F80]
    sweep = (torch.arange(1 << 17) * 32749 % (1 << 31)).to(torch.int32).view(torch.float32)
    sweep = sweep[~sweep.isnan()]
    assert torch.equal(arithmetic.round_bf16(sweep), sweep.to(torch.bfloat16))


# --- the same bits in Triton ---------------------------------------------------------------------


@triton.jit
def exp_kernel(x, out, zero, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, device.canonical(device.exp(tl.load(x + at), zero)))


@triton.jit
def sigmoid_kernel(x, out, zero, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, device.canonical(device.sigmoid(tl.load(x + at), zero)))


@triton.jit
def softplus_kernel(x, out, zero, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(out + at, device.canonical(device.softplus(tl.load(x + at), zero)))


PIECES = {
    "exp": (exp_kernel, arithmetic.exp),
    "sigmoid": (sigmoid_kernel, arithmetic.sigmoid),
    "softplus": (softplus_kernel, arithmetic.softplus),
}
COUNT = 1 << 14


def run(kernel: object, x: Tensor) -> Tensor:
    out = torch.full_like(x, -1.0)
    device.launch(kernel, (1,), x, out, 0, block=x.shape[0])
    return out


@pytest.mark.parametrize("name", PIECES)
def test_triton_has_the_same_bits(name: str) -> None:
    kernel, truth = PIECES[name]
    for x in (bits(COUNT), spread(COUNT, 12) * 100):
        expected = arithmetic.canonical(truth(x))
        assert torch.equal(run(kernel, x).view(torch.int32), expected.view(torch.int32))


def test_a_library_exp_has_other_bits() -> None:
    """The control of the test above: what it compares can differ."""
    x = spread(COUNT, 12) * 8
    assert not torch.equal(run(exp_kernel, x), torch.exp(x))
