"""Arguments against their specifications: extents that are fixed, learned or products of others."""

import pytest
import torch

from bitgate.kernels.arguments import bind, output
from bitgate.kernels.spec import TensorSpec
from bitgate.records.errors import UsageError

SPECS = (
    TensorSpec(name="a", dtype="float32", axes=("rows", "2*half")),
    TensorSpec(name="b", dtype="float32", axes=("half",)),
    TensorSpec(name="c", dtype="float32", axes=("rows*half",), role="out"),
)


def f32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def test_every_axis_is_learned() -> None:
    tensors = {"a": f32(3, 8), "b": f32(4), "c": f32(12)}
    assert bind("op", SPECS, tensors) == {"rows": 3, "half": 4}
    assert bind("op", SPECS, {"a": f32(0, 8)}) == {"rows": 0, "half": 4}
    assert bind("op", SPECS, {"c": f32(12)}, fixed={"rows": 3}) == {"rows": 3, "half": 4}
    assert bind("op", SPECS, {"c": f32(0)}, fixed={"rows": 0}) == {"rows": 0, "half": 0}


@pytest.mark.parametrize(
    ("tensors", "fixed", "message"),
    [
        ({"a": f32(3, 7)}, {}, r"a: expected axis 2\*half of 6, got 7$"),
        ({"a": f32(3, 8), "b": f32(5)}, {}, "b: expected axis half of 4, got 5$"),
        ({"a": f32(3, 8), "c": f32(11)}, {}, r"c: expected axis rows\*half of 12, got 11$"),
        ({"a": f32(3, 8)}, {"rows": 2}, "a: expected axis rows of 2, got 3; that is why$"),
        ({"a": f32(3, 8)}, {"half": 3}, r"a: expected axis 2\*half of 6, got 8$"),
        ({"c": f32(11)}, {"rows*half": 12}, r"axis rows\*half of 12, got 11; that is why$"),
        ({"a": f32(3, 8).double()}, {}, "expected a in float32, got float64; convert it"),
        ({"a": f32(3, 8, 1)}, {}, r"expected a as \[rows, 2\*half\], got \[3, 8, 1\]"),
        ({"a": [[1.0]]}, {}, "expected a as a torch tensor, got list"),
        ({"a": f32(3, 8).to_sparse()}, {}, "a with values in memory, got a sparse_coo tensor"),
    ],
)
def test_what_disagrees_is_named(
    tensors: dict[str, torch.Tensor], fixed: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        bind("op", SPECS, tensors, fixed=fixed, reason="that is why")


def test_an_output_is_the_callers_or_new() -> None:
    mine = f32(2, 3)
    assert output("op", "out", mine, (2, 3), mine) is mine
    new = output("op", "out", None, (2, 3), mine, torch.int64)
    assert (new.shape, new.dtype) == ((2, 3), torch.int64)
    assert output("op", "out", None, (4,), mine).dtype == torch.float32
    with pytest.raises(UsageError, match=r"expected out to be contiguous, got strides \(1, 3\)"):
        output("op", "out", f32(2, 3).T, (3, 2), mine)
