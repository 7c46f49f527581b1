import functools
import math
import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitgate.parity import digests

MASK = (1 << 64) - 1


def array(data: bytes) -> digests.Bytes:
    return np.frombuffer(data, np.uint8)


@given(st.binary(max_size=200))
def test_numpy_torch_and_numba_agree_with_the_definition(data: bytes) -> None:
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4").tolist()
    seed = digests.mix(MASK, len(data))
    mixed = [seed, *(digests.mix(index, word) for index, word in enumerate(words))]
    defined = f"{sum(mixed) & MASK:016x}{functools.reduce(operator.xor, mixed):016x}"
    assert digests.digest_numpy(array(data)) == defined
    assert digests.digest_torch(torch.from_numpy(array(data).copy())) == defined
    assert digests.digest_bytes(array(data)) == defined
    assert digests.host_lanes() is not digests.numpy_lanes


@pytest.mark.parametrize(
    "lanes", [digests.numpy_lanes, digests.host_lanes()], ids=["numpy", "numba"]
)
def test_words_beyond_two_to_the_32_have_their_own_index(lanes: digests.Lanes) -> None:
    words = np.arange(1, 9, dtype=np.uint32)
    start = (1 << 32) - 3
    mixed = [digests.mix(start + at, int(word)) for at, word in enumerate(words)]
    assert digests.add_words(words, start, lanes) == (
        sum(mixed) & MASK,
        functools.reduce(operator.xor, mixed),
    )
    assert digests.mix(1 << 32, 5) != digests.mix(0, 5)


def test_long_data_crosses_the_blocks_and_may_be_unaligned() -> None:
    data = np.random.default_rng(5).integers(0, 256, 4 * (1 << 15) + 7, dtype=np.uint8)
    assert digests.digest_numpy(data) == digests.digest_bytes(data)
    assert digests.digest_bytes(data[1:]) == digests.digest_bytes(data[1:].copy())
    assert digests.digest_bytes(data[::2]) == digests.digest_numpy(data[::2].copy())


def test_strides_do_not_matter_and_logical_order_does() -> None:
    tensor = torch.arange(12).to(torch.bfloat16).reshape(3, 4)
    assert digests.digest(tensor.T) == digests.digest(tensor.T.contiguous())
    assert digests.digest(tensor.T) != digests.digest(tensor)
    assert digests.digest(tensor[1:, 1:]) == digests.digest(tensor[1:, 1:].clone())
    assert digests.digest(torch.tensor(True)) == digests.digest(
        torch.tensor([1], dtype=torch.uint8)
    )


@pytest.mark.parametrize("function", [digests.digest_bytes, digests.digest_numpy])
def test_self_test_passes_for_ours(function: Callable[[digests.Bytes], str]) -> None:
    result = digests.self_test(function)
    assert result.passed
    assert result.trials > 1000


def xor_only(data: digests.Bytes) -> str:
    padded = np.append(data, np.zeros(-data.size % 4, np.uint8))
    return f"{int(np.bitwise_xor.reduce(padded.view('<u4'))):x}/{data.size}"


def wrapping_sum(data: digests.Bytes) -> str:
    return f"{int(data.sum())}/{data.size}"


def norm(data: digests.Bytes) -> str:
    floats = np.abs(data[: data.size // 4 * 4].view("<f4"))
    return f"{math.fsum(sorted(floats[np.isfinite(floats)].tolist()))}/{data.size}"


@pytest.mark.parametrize("weak", [xor_only, wrapping_sum, norm])
def test_self_test_refuses_weak_hashes(weak: Callable[[digests.Bytes], str]) -> None:
    result = digests.self_test(weak)
    assert not result.passed
    assert any("swap" in change for change in result.missed)
    if weak is norm:
        assert any(change == "flip of bit 7 in byte 3" for change in result.missed)
