"""Integer-made data: the same everywhere, uneven as routing is, and exact in its dtype."""

import numpy as np
import pytest
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload


def point(case: str = "random", dtype: str = "bfloat16", **axes: int) -> Workload:
    shape = {"hidden": 32, "intermediate": 16, "experts": 16, "top_k": 3, "tokens": 200} | axes
    return Workload(op="moe_experts", axes=tuple(sorted(shape.items())), dtype=dtype, case=case)


def test_the_stream_is_the_published_generator() -> None:
    # SplitMix64 with seed 1234567, as its authors' code prints it.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert IntegerStream(1234567).words(3).tolist() == expected


def test_pieces_are_the_whole() -> None:
    whole = IntegerStream(5).words(10)
    stream = IntegerStream(5)
    assert np.concatenate([stream.words(3), stream.words(7)]).tolist() == whole.tolist()


def test_integers_fill_their_range() -> None:
    drawn = IntegerStream(1).integers((5000,), -3, 4)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(-3, 5))
    assert counts.min() > 500


@pytest.mark.parametrize("limit", [0, (1 << 32) + 1])
def test_a_limit_out_of_range(limit: int) -> None:
    with pytest.raises(ValueError, match=r"limits of 1 to 2\*\*32"):
        IntegerStream(0).below(np.array([limit]))


def test_a_seed_of_too_many_bits() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        IntegerStream(1 << 64)


def test_tensors_are_exact_in_their_dtype() -> None:
    tensor = integer_tensor(IntegerStream(3), (400,), high=255, scale_log2=7)
    assert tensor.dtype is torch.bfloat16
    assert (tensor.double() * 128 % 1 == 0).all()
    assert tensor.double().abs().max() <= 255 / 128
    with pytest.raises(ValueError, match="not exact"):
        integer_tensor(IntegerStream(3), (4,), high=256)


def test_routing_is_distinct_and_uneven_and_leaves_experts_out() -> None:
    ids = MOE_EXPERTS.make_inputs(point(), 0)["topk_ids"]
    assert (ids.sort(dim=1).values.diff(dim=1) > 0).all()
    counts = torch.bincount(ids.flatten(), minlength=16)
    assert (counts == 0).sum() >= 2
    assert counts.max() > 4 * counts[counts > 0].min()


def test_padding_uses_both_marks() -> None:
    ids = MOE_EXPERTS.make_inputs(point("padding"), 0)["topk_ids"]
    assert {-1, 16} <= set(ids.flatten().tolist())


def test_the_limit_of_ten_is_reached() -> None:
    found = []
    for workload in MOE_EXPERTS.suites["default"]:
        inputs = MOE_EXPERTS.make_inputs(workload, 0)
        gate_up = inputs["x"].double() @ inputs["w_gate_up"].double().transpose(1, 2)
        found.append(bool((gate_up > 10).any() and (gate_up < -10).any()))
    assert sum(found) >= 2


def test_the_order_of_additions_shows_in_float32() -> None:
    """A sum that float32 holds exactly would be the same in every order, right or wrong."""
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    products = (inputs["x"].float()[:, None] * inputs["w_gate_up"].float()[0]).numpy()
    forward, backward = (
        np.add.accumulate(p, axis=-1)[..., -1] for p in (products, products[..., ::-1])
    )
    assert (forward != backward).mean() > 0.2


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (point("sorted"), "case of random, padding"),
        (point(dtype="float32"), "dtype bfloat16"),
        (point(top_k=17), "top_k must be 1 to 16"),
        (point(top_k=0), "top_k must be 1 to 16"),
    ],
)
def test_a_workload_that_cannot_be_made(workload: Workload, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MOE_EXPERTS.make_inputs(workload, 0)
