"""moe_combine_weighted: where the weight multiplies, what is left out, how far from exact it is."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import combine_weighted_triton
from bitgate.kernels.moe.combine import MOE_COMBINE
from bitgate.kernels.moe.combine_reference import moe_combine
from bitgate.kernels.moe.combine_weighted import MOE_COMBINE_WEIGHTED
from bitgate.kernels.moe.combine_weighted_reference import (
    moe_combine_weighted,
    moe_combine_weighted_float64,
)
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_COMBINE_WEIGHTED.implementations]
EXPERTS = dict(MOE_COMBINE_WEIGHTED.constants)["experts"]
NAN = float("nan")


def inputs_at(tokens: int, top_k: int, hidden: int, case: str = "random") -> Tensors:
    axes = (("hidden", hidden), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_combine_weighted", axes=axes, dtype="bfloat16", case=case)
    return MOE_COMBINE_WEIGHTED.make_inputs(workload, 0)


def differing(a: Tensor, b: Tensor) -> float:
    """The share of elements whose bits differ."""
    kind = torch.int16 if a.dtype is torch.bfloat16 else torch.int32
    return (a.view(kind) != b.view(kind)).float().mean().item()


WORKLOADS = MOE_COMBINE_WEIGHTED.suites["default"]


# --- mutants: each must change bits --------------------------------------------------------------


def contracted(y: Tensor, weights: Tensor) -> Tensor:
    """The float32 sums where every product is added before it is rounded.

    float64 holds the products, and rounds a sum once before float32 does; ties that this makes are
    too rare to matter here.
    """
    acc = torch.zeros_like(y[:, 0], dtype=torch.float32)
    for slot in range(y.shape[1]):
        acc = (acc.double() + y[:, slot].double() * weights[:, slot, None].double()).float()
    return acc


def summed(y: Tensor, weights: Tensor) -> Tensor:
    """The float32 sums of the definition, where no slot is masked."""
    acc = torch.zeros_like(y[:, 0], dtype=torch.float32)
    for slot in range(y.shape[1]):
        acc = acc + y[:, slot].float() * weights[:, slot, None]
    return acc


def weighted_before(y: Tensor, weights: Tensor) -> Tensor:
    """Rows weighted and rounded first, as a second matmul leaves them to moe_combine."""
    rows = arithmetic.round_bf16(y.float() * weights[:, :, None])
    ids = torch.zeros(y.shape[:2], dtype=torch.int64)
    return moe_combine(y=rows, topk_ids=ids, experts=1)


def plain(y: Tensor, weights: Tensor) -> Tensor:
    ids = torch.zeros(y.shape[:2], dtype=torch.int64)
    return moe_combine_weighted(y=y, topk_ids=ids, topk_weights=weights, experts=1)


# The least share of outputs that each changes, at 8 slots.
MUTANTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    "weighted before": (weighted_before, 0.3),
    "bf16 weights": (lambda y, w: plain(y, w.bfloat16().float()), 0.1),
    "weights of the next slot": (lambda y, w: plain(y, w.roll(1, 1)), 0.9),
    "the first weight for all": (lambda y, w: plain(y, w[:, :1].expand_as(w)), 0.9),
    "no weight": (lambda y, w: plain(y, torch.ones_like(w)), 0.9),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_show(name: str) -> None:
    inputs = inputs_at(64, 8, 64)
    mutant, least = MUTANTS[name]
    out = moe_combine_weighted(**inputs, experts=EXPERTS)
    assert differing(out, mutant(inputs["y"], inputs["topk_weights"])) > least


def test_a_contraction_shows_in_float32_and_hardly_in_bfloat16() -> None:
    inputs = inputs_at(64, 8, 256)
    y, weights = inputs["y"], inputs["topk_weights"]
    sums, fused = summed(y, weights), contracted(y, weights)
    assert differing(sums, fused) > 0.2
    assert differing(arithmetic.round_bf16(sums), arithmetic.round_bf16(fused)) < 0.001
    out = moe_combine_weighted(**inputs, experts=EXPERTS)
    assert differing(out, arithmetic.round_bf16(sums)) == 0


@pytest.mark.parametrize("run", RUNS)
def test_a_product_is_rounded_before_it_is_added(run: Callable[..., Tensor]) -> None:
    """3 * (1 + 2^-23) rounds up to 3 + 2^-21; minus 3 leaves that, or 3 * 2^-23 if contracted."""
    weights = torch.tensor([[1.0, 1.0 + 2.0**-23]])
    y = torch.tensor([[[-3.0], [3.0]]]).bfloat16()
    ids = torch.zeros(1, 2, dtype=torch.int64)
    exact = 3 * Fraction(weights[0, 1].item()) - 3
    assert exact == Fraction(3, 2**23)
    out = run(y=y, topk_ids=ids, topk_weights=weights, experts=1)
    assert out.item() == 2.0**-21 != float(exact)


# --- masks, zeros and published faults -----------------------------------------------------------


@pytest.mark.parametrize("poison", [NAN, float("inf"), 7.0])
@pytest.mark.parametrize("run", RUNS)
def test_masked_rows_and_weights_do_not_leak(run: Callable[..., Tensor], poison: float) -> None:
    inputs = inputs_at(9, 4, 40, "padding")
    y, ids, weights = inputs["y"], inputs["topk_ids"], inputs["topk_weights"]
    masked = (ids < 0) | (ids >= EXPERTS)
    assert masked.any()
    assert not masked.all()
    dirty = {
        "y": torch.where(masked[:, :, None], poison, y),
        "topk_weights": torch.where(masked, poison, weights),
    }
    clean = {
        "y": torch.where(masked[:, :, None], 0.0, y),
        "topk_weights": torch.where(masked, 0.0, weights),
    }
    out = run(**dirty, topk_ids=ids, experts=EXPERTS)
    assert differing(out, run(**clean, topk_ids=ids, experts=EXPERTS)) == 0
    assert out.isfinite().all()
    # The control: a mask that lets one side through.
    shifted = ids.clamp(max=EXPERTS - 1)
    assert differing(out, moe_combine_weighted(**dirty, topk_ids=shifted, experts=EXPERTS)) > 0


def test_rows_of_padding_overwrite_what_an_earlier_batch_left() -> None:
    """A published fault summed, or kept, what the rows past the batch held."""
    inputs = inputs_at(6, 2, 24)
    inputs["topk_ids"][3:] = -1
    inputs["y"][3:] = NAN
    out = torch.full((6, 24), NAN, dtype=torch.bfloat16)
    combine_weighted_triton.moe_combine_weighted(**inputs, experts=EXPERTS, out=out)
    assert out[3:].view(torch.int16).count_nonzero() == 0
    assert out[:3].isfinite().all()
    assert (out[:3] != 0).any(dim=1).all()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("top_k", [1, 2, 3, 9, 16])
def test_every_number_of_slots_has_its_weights(run: Callable[..., Tensor], top_k: int) -> None:
    """Published faults: one slot skipped its weight, and two slots got each other's."""
    inputs = inputs_at(5, top_k, 7)
    value, bound = moe_combine_weighted_float64(**inputs, experts=EXPERTS)
    out = run(**inputs, experts=EXPERTS).double()
    assert ((out - value).abs() <= bound).all()
    wrong = moe_combine(y=inputs["y"], topk_ids=inputs["topk_ids"], experts=EXPERTS).double()
    assert ((wrong - value).abs() > bound).float().mean() > 0.5


@pytest.mark.parametrize("run", RUNS)
def test_what_is_below_the_smallest_becomes_the_zero_of_its_sign(
    run: Callable[..., Tensor],
) -> None:
    smallest = 2.0**-133
    y = torch.tensor([-smallest, smallest, -smallest, smallest]).bfloat16()[:, None, None]
    weights = torch.tensor([[0.25], [0.25], [0.75], [1.0]])
    ids = torch.zeros(4, 1, dtype=torch.int64)
    out = run(y=y, topk_ids=ids, topk_weights=weights, experts=1).flatten()
    assert out.view(torch.int16).tolist() == [-0x8000, 0, -0x7FFF, 1]


@pytest.mark.slow  # reserves 13 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    hidden = (1 << 30) + 16
    y = torch.from_numpy(np.zeros(2 * hidden + 2 * hidden, np.int16))
    out = torch.from_numpy(np.zeros(2 * hidden, np.int16))
    inputs = inputs_at(1, 2, 16)
    y[2 * hidden : 2 * hidden + 16], y[3 * hidden : 3 * hidden + 16] = inputs["y"].view(
        torch.int16
    )[0]
    ids = torch.zeros(2, 2, dtype=torch.int64)
    weights = inputs["topk_weights"].expand(2, 2).contiguous()
    sizes = {"TOP_K": 2, "ROWS": 1, "BLOCK": 16}
    kernel = combine_weighted_triton.combine_weighted_kernel
    launch(kernel, (2, 1), y, ids, weights, out, 2, hidden, 1, 0, **sizes)
    expected = moe_combine_weighted(**{**inputs, "topk_ids": ids[:1]}, experts=1)
    assert torch.equal(out[hidden : hidden + 16], expected.view(torch.int16)[0])


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["random", "exponents", "padding"])
@pytest.mark.parametrize("run", RUNS)
def test_the_result_lies_within_the_bound(run: Callable[..., Tensor], case: str) -> None:
    inputs = inputs_at(33, 6, 64, case)
    value, bound = moe_combine_weighted_float64(**inputs, experts=EXPERTS)
    assert value.isfinite().all()
    assert ((run(**inputs, experts=EXPERTS).double() - value).abs() <= bound).all()
    # The control: an eighth too large.
    wrong = run(**inputs, experts=EXPERTS).double() * 1.125
    assert ((wrong - value).abs() > bound).float().mean() > 0.3


def test_the_bound_is_about_one_rounding() -> None:
    value, bound = moe_combine_weighted_float64(**inputs_at(33, 4, 64), experts=EXPERTS)
    assert bound.mean() < 1.01 * 2.0**-8 * value.abs().mean()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 0}, "experts of 1 to 2147483647, an int, got 0"),
        ({"experts": 10**400}, "an int, got an integer of 1329 bits"),
        ({"topk_weights": torch.zeros(2, 4).bfloat16()}, "topk_weights in float32, got bfloat16"),
        ({"topk_weights": torch.zeros(2, 3)}, "topk_weights: expected axis top_k of 4, got 3"),
        ({"topk_ids": torch.zeros(2, 4, dtype=torch.int32)}, "topk_ids in int64, got int32"),
        ({"y": torch.zeros(2, 4, 5)}, "y in bfloat16, got float32"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(
    run: Callable[..., Tensor], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=f"moe_combine_weighted: .*{message}"):
        run(**{**inputs_at(2, 4, 5), "experts": EXPERTS, **change})


def test_an_output_over_an_input_is_refused() -> None:
    inputs = inputs_at(4, 1, 8)
    with pytest.raises(UsageError, match="expected out apart from y"):
        combine_weighted_triton.moe_combine_weighted(
            **inputs, experts=EXPERTS, out=inputs["y"].view(4, 8)
        )


def test_the_suite_has_the_shapes_of_the_plain_sum() -> None:
    shapes = [(one.axes, one.case) for one in WORKLOADS]
    assert shapes == [(one.axes, one.case) for one in MOE_COMBINE.suites["default"]]
