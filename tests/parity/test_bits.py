import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitgate.parity import bits
from bitgate.parity.bits import compare_tensor
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Mismatch

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SMALL_FLOATS = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
OTHERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (
        (torch.arange(1, count + 1) % 2 if dtype is torch.bool else torch.arange(1, count + 1))
        .to(dtype)
        .reshape(shape)
    )


def mismatch(expected: torch.Tensor, actual: torch.Tensor) -> Mismatch:
    found = compare_tensor("x", expected, actual)
    assert found is not None
    return found


def flipped(tensor: torch.Tensor, index: int, bit: int) -> torch.Tensor:
    raw = bits.raw_bytes(tensor).copy()
    raw[index * tensor.element_size() + bit // 8] ^= 1 << (bit % 8)
    return torch.from_numpy(raw).view(tensor.dtype).reshape(tensor.shape)


@pytest.mark.parametrize("dtype", FLOATS + SMALL_FLOATS + OTHERS, ids=str)
def test_every_flip_of_one_bit_is_found_at_its_element(dtype: torch.dtype) -> None:
    tensor = numbers(dtype, 3, 4)
    assert compare_tensor("x", tensor, tensor.clone()) is None
    for index in range(tensor.numel()):
        for bit in range(8 * tensor.element_size() if dtype is not torch.bool else 1):
            found = mismatch(tensor, flipped(tensor, index, bit))
            assert found.first_index == (index // 4, index % 4)
            assert (found.differing, found.total) == (1, 12)
            assert int(found.expected_bits or "", 16) ^ int(found.actual_bits or "", 16) == 1 << bit
            assert found.hints[0] == "one single element"
            assert found.max_ulp is None or dtype not in OTHERS


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    chunk=st.integers(1, 9),
    data=st.data(),
)
def test_chunks_find_the_same_as_one_piece(
    shape: list[int], chunk: int, data: st.DataObject
) -> None:
    expected = numbers(torch.float32, *shape)
    places = data.draw(st.sets(st.integers(0, expected.numel() - 1), min_size=1))
    actual = expected.clone()
    actual.view(-1)[list(places)] *= -1
    whole = compare_tensor("x", expected, actual)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "CHUNK_ELEMENTS", chunk)
        pieces = compare_tensor(
            "x", expected.T.contiguous().T if len(shape) == 2 else expected, actual
        )
    assert whole is not None
    assert pieces is not None
    assert (pieces.first_index, pieces.differing) == (whole.first_index, len(places))
    assert (pieces.expected_bits, pieces.max_ulp) == (whole.expected_bits, whole.max_ulp)


def test_the_distance_in_ulp_is_signed_and_crosses_zero() -> None:
    one = torch.tensor([1.0])
    above = torch.nextafter(one, torch.tensor([2.0]))
    tiny = torch.tensor([2.0**-149])
    assert mismatch(one, above).max_ulp == 1
    assert mismatch(above, one).max_ulp == -1
    assert mismatch(-one, -above).max_ulp == -1
    assert mismatch(-tiny, tiny).max_ulp == 2
    assert mismatch(tiny, -tiny).max_ulp == -2
    lowest = torch.tensor([torch.finfo(torch.float64).min], dtype=torch.float64)
    widest = mismatch(lowest, -lowest)
    assert widest.max_ulp == bits.LARGEST_ULP


def test_the_sign_of_zero_and_the_payload_of_nan_are_visible() -> None:
    zeros = mismatch(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert zeros.max_ulp == 0
    assert "only the sign of zero differs in 1 elements" in zeros.hints
    quiet = torch.tensor([0x7FC00000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    payload = mismatch(quiet, other)
    assert payload.max_ulp is None
    assert "only the payload of NaN differs in 1 elements" in payload.hints
    assert compare_tensor("x", quiet, quiet.clone()) is None


def test_hints_name_rows_tails_zeros_and_truncation() -> None:
    base = numbers(torch.float32, 4, 3)
    rows, tail = base.clone(), base.clone()
    rows[[0, 2]] += 1
    tail.view(-1)[7:] += 1
    assert "whole rows of 3 elements: 2 of 4" in mismatch(base, rows).hints
    assert "contiguous tail of 5 elements" in mismatch(base, tail).hints
    zeroed = mismatch(base, torch.zeros(4, 3))
    assert "the actual tensor is all zero" in zeroed.hints
    values = torch.arange(1, 200).float() / 7
    cut = (values.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()
    truncated = mismatch(values.bfloat16(), cut)
    assert any("truncated" in hint for hint in truncated.hints)
    assert not any("truncated" in hint for hint in zeroed.hints)


def test_dtype_shape_and_unsupported_layouts_are_named() -> None:
    one = torch.ones(2, 3)
    assert mismatch(one, one.double()).kind == "dtype"
    assert mismatch(one, one.T).kind == "shape"
    assert compare_tensor("x", one.T, one.T.contiguous()) is None
    with pytest.raises(UsageError, match="strided tensor"):
        compare_tensor("x", torch.empty(2, device="meta"), torch.empty(2, device="meta"))


def test_comparison_is_exhaustive_on_both_sides() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    both = compare_tensors("s", {"a": one, "b": two}, {"a": one, "b": two})
    assert both.equal
    assert (both.compared, both.expected) == (2, 2)
    missing = compare_tensors("s", {"a": one, "b": two}, {"a": one})
    assert [m.kind for m in missing.mismatches] == ["missing"]
    extra = compare_tensors("s", {"a": one}, {"a": one, "b": two})
    assert [m.kind for m in extra.mismatches] == ["unexpected"]
    assert not missing.equal
    assert not extra.equal


def test_nothing_compared_is_never_equal() -> None:
    empty = torch.empty(0, 4)
    assert not compare_tensors("s", {}, {}).equal
    assert not compare_tensors("s", {"a": empty}, {"a": empty.clone()}).equal
    beside = compare_tensors(
        "s", {"a": empty, "b": torch.ones(1)}, {"a": empty, "b": torch.ones(1)}
    )
    assert (beside.compared, beside.expected) == (1, 1)
    assert beside.equal
    assert not compare_tensors("s", {"a": empty}, {"a": torch.empty(0, 5)}).equal
