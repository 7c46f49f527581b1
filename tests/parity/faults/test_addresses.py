"""Addresses beyond 2^31 elements, without the memory, and which kernels are watched."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import gemm_triton
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.parity.faults import address
from bitgate.parity.faults.address_calls import compiled, everything, watched
from bitgate.parity.faults.addresses import Seen, narrowed, watch, widens
from bitgate.parity.faults.run import judge
from bitgate.records import models
from bitgate.records.errors import UsageError

ROWS, WIDTH = (1 << 21) + 1, 1024


def kernel(name: str) -> Any:
    return load(f"planted_addresses:{name}", Path(__file__).parent)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launched(name: str, x: torch.Tensor, out: torch.Tensor, block: int = 1024) -> Seen:
    rows, width = x.shape
    return watch(lambda: launch(kernel(name), (rows,), x, out, rows, width, block=block))


def test_a_row_offset_that_wraps_is_found_at_its_line() -> None:
    seen = launched("narrow_rows", meta(ROWS, WIDTH), meta(ROWS, WIDTH))
    assert any(
        "planted_addresses.py:10: a product of 32-bit integers is 2147483648 and wraps" in one
        for one in seen.findings
    ), seen.findings
    assert any("load of x at element -2147483648, which has 2147484672" in f for f in seen.findings)
    assert not launched("narrow_rows", meta(ROWS - 2, WIDTH), meta(ROWS - 2, WIDTH)).findings


def test_a_wide_one_is_followed_to_the_last_element() -> None:
    seen = launched("wide_rows", meta(ROWS, WIDTH), meta(ROWS, WIDTH))
    assert seen.findings == []
    assert (len(seen.kernels), seen.programs) == (1, 2)
    assert seen.accesses == 2 * 2 * WIDTH
    # One row less in the output: its last row is outside.
    (finding,) = launched("wide_rows", meta(ROWS, WIDTH), meta(ROWS - 1, WIDTH)).findings
    assert f"store of out at element {(ROWS - 1) * WIDTH}" in finding


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("unmasked_tail", "load of x at element 30, which has 30"),
        ("before_the_start", "atomic of out at element -1, which has 30"),
    ],
)
def test_an_access_outside_of_a_small_tensor_is_found(name: str, finding: str) -> None:
    seen = launched(name, torch.zeros(3, 10), torch.zeros(3, 10), block=16)
    assert any(finding in one for one in seen.findings), seen.findings


def test_tensors_that_exist_are_really_read_and_written() -> None:
    x, out = torch.arange(30.0).view(3, 10), torch.zeros(3, 10)
    assert launched("wide_rows", x, out, block=16).findings == []
    assert torch.equal(x, out)


def test_a_call_that_launches_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="accesses memory, saw none"):
        watch(lambda: None)


def test_narrowing_ends_with_its_context() -> None:
    name = kernel("wide_rows")
    call = (meta(ROWS, WIDTH), meta(ROWS, WIDTH))
    with narrowed(name):
        assert launched("wide_rows", *call).findings
    assert not launched("wide_rows", *call).findings
    assert widens(kernel("narrow_rows")) == ()
    with (
        pytest.raises(UsageError, match=r"expected \.to\(tl\.int64\) in its source"),
        narrowed(kernel("narrow_rows")),
    ):
        pass


# --- the kernels of this package ------------------------------------------------------------------


def test_every_compiled_kernel_is_watched() -> None:
    """A kernel that is not watched beyond 2^31 elements is named here."""
    seen: set[str] = set()
    for calls in everything():
        # What refuses such extents is watched at small ones.
        for sample in calls.small() if calls.refuses else calls.wide():
            found = watched(calls.run, sample)
            assert found.findings == []
            seen |= set(found.kernels)
    assert compiled() - seen == set()


def grouped(model: models.ModelShape, tokens: int) -> Seen:
    """The matmul that writes the longer rows of a model: out[pair], one block of K."""
    columns = max(2 * model.intermediate, model.hidden)
    pairs = tokens * model.top_k
    config = TileConfig(block_m=64, block_n=64, block_k=16)
    places = (pairs // config.block_m + model.experts) * config.block_m
    call = GroupedMatmul(
        a=meta(tokens, 16, dtype=torch.bfloat16),
        w=meta(1, columns, 16, dtype=torch.bfloat16),
        sorted_pairs=meta(places, dtype=torch.int32),
        expert_ids=meta(places // config.block_m, dtype=torch.int32),
        padded=meta(1, dtype=torch.int32),
        weights=meta(pairs),
        top_k=model.top_k,
        apply_weights=0,
        config=config,
    )
    out = meta(pairs, columns, dtype=torch.bfloat16)
    contents = {
        "sorted_pairs": lambda at: at.clip(0, pairs),
        "padded": lambda at: at * 0 + places,
    }
    return watch(lambda: gemm_triton.grouped(call, out, None), contents)


@pytest.mark.parametrize("name", models.names())
def test_the_first_number_of_tokens_that_overflows(name: str) -> None:
    """With 32-bit offsets it is that of the published table; with ours there is none."""
    model = models.shape(name)
    tokens = model.first_overflow_tokens
    assert grouped(model, tokens).findings == []
    with narrowed(gemm_triton.gemm_kernel):
        # The row of the padding value, the last one; behind its first column lanes are masked.
        wraps = [_product_wraps(grouped(model, count)) for count in (tokens - 1, tokens)]
    assert wraps == [False, True]


def _product_wraps(seen: Seen) -> bool:
    return any("a product of 32-bit integers" in finding for finding in seen.findings)


def test_a_narrow_kernel_is_caught_by_the_wide_check_alone() -> None:
    """One of the faults of the area, all of which the wide run judges."""
    (calls,) = (one for one in everything() if one.name == "moe_combine-triton")
    (fault,) = address.narrow_faults(calls)
    (row,) = judge(fault, address.target_of(calls), "address")
    assert (fault.id, row.problems, row.checks("caught")) == ("B2", (), ("wide",))


@pytest.mark.slow  # the matmul in the interpreter; the whole matrix has it, too
def test_a_buffer_that_ends_inside_of_a_block_is_caught_by_its_bounds() -> None:
    (calls,) = (one for one in everything() if one.name == "moe_gemm-triton")
    fault = address.short_buffer()
    (row,) = judge(fault, address.target_of(calls), "address")
    assert (fault.id, row.problems, row.checks("caught")) == ("B4", (), ("bounds",))
