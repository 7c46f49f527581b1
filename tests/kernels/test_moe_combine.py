"""moe_combine: the order of its additions, its masks, its zeros, and how far from float64 it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import combine_triton
from bitgate.kernels.moe.combine import MOE_COMBINE
from bitgate.kernels.moe.combine_reference import moe_combine, moe_combine_float64
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_COMBINE.implementations]
EXPERTS = dict(MOE_COMBINE.constants)["experts"]
NAN = float("nan")


def inputs_at(tokens: int, top_k: int, hidden: int, case: str = "random") -> Tensors:
    axes = (("hidden", hidden), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_combine", axes=axes, dtype="bfloat16", case=case)
    return MOE_COMBINE.make_inputs(workload, 0)


def differing(a: Tensor, b: Tensor) -> float:
    """The share of elements whose bits differ."""
    return (a.view(torch.int16) != b.view(torch.int16)).float().mean().item()


# --- mutants: each must change bits --------------------------------------------------------------


def slots(y: Tensor, topk_ids: Tensor) -> Tensor:
    """Float32 terms, +0 where the slot is masked."""
    kept = (topk_ids >= 0) & (topk_ids < EXPERTS)
    return torch.where(kept[:, :, None], y.float(), 0.0)


def bf16_step(y: Tensor, topk_ids: Tensor) -> Tensor:
    """vLLM's up to 0.10.2: rounded to bfloat16 after each of two to four slots."""
    terms = slots(y, topk_ids)
    acc = torch.zeros_like(y[:, 0])
    for slot in range(y.shape[1]):
        acc = arithmetic.round_bf16(acc.float() + terms[:, slot])
    return acc


def reversed_slots(y: Tensor, topk_ids: Tensor) -> Tensor:
    return moe_combine(y=y.flip(1), topk_ids=topk_ids.flip(1), experts=EXPERTS)


def by_expert(y: Tensor, topk_ids: Tensor) -> Tensor:
    """Experts ascending, as a loop over the experts adds."""
    order = topk_ids.argsort(dim=1, stable=True)
    terms = y.gather(1, order[:, :, None].expand_as(y))
    return moe_combine(y=terms, topk_ids=topk_ids.gather(1, order), experts=EXPERTS)


def pairwise(y: Tensor, topk_ids: Tensor) -> Tensor:
    terms = slots(y, topk_ids)
    padded = torch.nn.functional.pad(terms, (0, 0, 0, 8 - terms.shape[1]))
    return arithmetic.round_bf16(arithmetic.tree(padded.mT.contiguous()))


def once_rounded(y: Tensor, topk_ids: Tensor) -> Tensor:
    return slots(y, topk_ids).double().sum(1).float().bfloat16()


MUTANTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bf16 step": bf16_step,
    "reversed slots": reversed_slots,
    "experts ascending": by_expert,
    "pairwise": pairwise,
    "float64": once_rounded,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_order_show_where_terms_cancel(name: str) -> None:
    inputs = inputs_at(64, 6, 64, "exponents")
    mutant = MUTANTS[name](inputs["y"], inputs["topk_ids"])
    assert differing(moe_combine(**inputs, experts=EXPERTS), mutant) > 0.02


@pytest.mark.parametrize("name", [name for name in MUTANTS if name != "bf16 step"])
def test_terms_of_one_size_hide_the_order(name: str) -> None:
    """Why there is a case with exponents: float32 holds most sums of eight bfloat16 exactly."""
    inputs = inputs_at(64, 8, 64)
    mutant = MUTANTS[name](inputs["y"], inputs["topk_ids"])
    assert differing(moe_combine(**inputs, experts=EXPERTS), mutant) == 0


@pytest.mark.parametrize(("top_k", "least", "most"), [(2, 0, 0), (4, 0.2, 0.45), (8, 0.35, 0.65)])
def test_a_step_in_bfloat16_shows_from_three_slots_on(
    top_k: int, least: float, most: float
) -> None:
    inputs = inputs_at(64, top_k, 64)
    share = differing(moe_combine(**inputs, experts=EXPERTS), bf16_step(**inputs))
    assert least <= share <= most


@pytest.mark.parametrize("case", ["random", "exponents", "padding"])
@pytest.mark.parametrize("top_k", [2, 3, 4])
@pytest.mark.parametrize("run", RUNS)
def test_bf16_step_rounds_after_every_slot(
    run: Callable[..., Tensor], top_k: int, case: str
) -> None:
    inputs = inputs_at(33, top_k, 33, case)
    out = run(**inputs, experts=EXPERTS, accumulate="bf16-step")
    assert differing(out, bf16_step(**inputs)) == 0
    assert (differing(out, run(**inputs, experts=EXPERTS)) > 0) == (top_k > 2)


@pytest.mark.parametrize("run", RUNS)
def test_a_small_term_beside_a_large_one(run: Callable[..., Tensor]) -> None:
    rows = [[1e20, -1e20, 3.0], [1e20, 3.0, -1e20], [3.0, 1e20, -1e20], [-1e20, 3.0, 1e20]]
    y = torch.tensor(rows).bfloat16()[:, :, None]
    out = run(y=y, topk_ids=torch.zeros(4, 3, dtype=torch.int64), experts=1)
    assert out.flatten().tolist() == [3.0, 0.0, 0.0, 0.0]


# --- masks and zeros -----------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [NAN, float("inf"), 7.0])
@pytest.mark.parametrize("run", RUNS)
def test_masked_rows_do_not_leak(run: Callable[..., Tensor], poison: float) -> None:
    inputs = inputs_at(9, 4, 40, "padding")
    y, ids = inputs["y"], inputs["topk_ids"]
    masked = (ids < 0) | (ids >= EXPERTS)
    assert masked.any()
    assert not masked.all()
    y = torch.where(masked[:, :, None], poison, y)
    clean = torch.where(masked[:, :, None], 0.0, y)
    out = run(y=y, topk_ids=ids, experts=EXPERTS)
    assert differing(out, run(y=clean, topk_ids=ids, experts=EXPERTS)) == 0
    assert out.isfinite().all()
    # The control: a mask that lets one side through.
    shifted = ids.clamp(max=EXPERTS - 1)
    assert differing(out, moe_combine(y=y, topk_ids=shifted, experts=EXPERTS)) > 0


@pytest.mark.parametrize("run", RUNS)
def test_no_slot_and_minus_zeros_give_plus_zero(run: Callable[..., Tensor]) -> None:
    y = torch.full((4, 2, 3), -0.0).bfloat16()
    y[2] = NAN
    y[3, 0], y[3, 1] = 2.5, -2.5
    ids = torch.tensor([[0, 1], [-1, 0], [-1, 2], [0, 0]])
    out = run(y=y, topk_ids=ids, experts=2)
    assert out.view(torch.int16).count_nonzero() == 0


@pytest.mark.parametrize("run", RUNS)
def test_a_sum_that_is_not_zero_does_not_round_to_it(run: Callable[..., Tensor]) -> None:
    smallest = torch.tensor([1, -0x7FFF], dtype=torch.int16).view(torch.bfloat16)  # +-2^-133
    for value in smallest:
        y = torch.zeros(1, 3, 1).bfloat16()
        y[0, 1] = value
        assert run(y=y, topk_ids=torch.zeros(1, 3, dtype=torch.int64), experts=1).item() == value


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("top_k", [1, 3, 9, 16])
def test_other_numbers_of_slots(run: Callable[..., Tensor], top_k: int) -> None:
    inputs = inputs_at(3, top_k, 5)
    expected = moe_combine(**inputs, experts=EXPERTS)
    assert differing(run(**inputs, experts=EXPERTS), expected) == 0
    # bfloat16 sums of so few numbers of one size are exact in float64 and in float32.
    assert differing(once_rounded(**inputs), expected) == 0


@pytest.mark.slow  # reserves 13 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    hidden = (1 << 30) + 16
    y = torch.from_numpy(np.zeros(2 * hidden + 2 * hidden, np.int16))
    out = torch.from_numpy(np.zeros(2 * hidden, np.int16))
    values = inputs_at(1, 2, 16)["y"].view(torch.int16)[0]
    y[2 * hidden : 2 * hidden + 16], y[3 * hidden : 3 * hidden + 16] = values
    ids = torch.zeros(2, 2, dtype=torch.int64)
    sizes = {"TOP_K": 2, "STEP": 0, "ROWS": 1, "BLOCK": 16}
    launch(combine_triton.combine_kernel, (2, 1), y, ids, out, 2, hidden, 1, **sizes)
    expected = moe_combine(y=values[None].view(torch.bfloat16), topk_ids=ids[:1], experts=1)
    assert torch.equal(out[hidden : hidden + 16], expected.view(torch.int16)[0])


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["random", "exponents", "padding"])
@pytest.mark.parametrize("run", RUNS)
def test_the_result_lies_within_the_bound(run: Callable[..., Tensor], case: str) -> None:
    inputs = inputs_at(33, 6, 64, case)
    value, bound = moe_combine_float64(**inputs, experts=EXPERTS)
    assert value.isfinite().all()
    assert ((run(**inputs, experts=EXPERTS).double() - value).abs() <= bound).all()


@pytest.mark.parametrize("case", ["random", "exponents", "padding"])
@pytest.mark.parametrize("run", RUNS)
def test_a_step_in_bfloat16_lies_within_its_own_bound(
    run: Callable[..., Tensor], case: str
) -> None:
    inputs = inputs_at(33, 4, 64, case)
    step = {"experts": EXPERTS, "accumulate": "bf16-step"}
    value, bound = moe_combine_float64(**inputs, **step)
    distance = (run(**inputs, **step).double() - value).abs()
    assert (distance <= bound).all()
    # The control: float32's is too tight for it.
    assert (distance > moe_combine_float64(**inputs, experts=EXPERTS)[1]).any()


@pytest.mark.parametrize(
    "fault", ["a slot left out", "a slot twice", "a mask off by one", "an eighth too large"]
)
def test_the_bound_refuses_a_fault(fault: str) -> None:
    inputs = inputs_at(33, 4, 64)
    value, bound = moe_combine_float64(**inputs, experts=EXPERTS)
    y, ids, experts, factor = inputs["y"].clone(), inputs["topk_ids"], EXPERTS, 1.0
    if fault == "a slot left out":
        y[:, 3] = 0.0
    elif fault == "a slot twice":
        y[:, 3] = y[:, 2]
    elif fault == "a mask off by one":
        experts -= 1
    else:
        factor = 1.125
    wrong = moe_combine(y=y, topk_ids=ids, experts=experts).double() * factor
    assert ((wrong - value).abs() > bound).float().mean() > 0.05


def test_the_bound_is_about_one_rounding() -> None:
    value, bound = moe_combine_float64(**inputs_at(33, 4, 64), experts=EXPERTS)
    assert bound.mean() < 1.01 * 2.0**-8 * value.abs().mean()


# --- refusals ------------------------------------------------------------------------------------

STEP = {"accumulate": "bf16-step"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 0}, "experts of 1 to 2147483647, an int, got 0"),
        ({"experts": 2**70}, f"experts of 1 to 2147483647, an int, got {2**70}"),
        ({"experts": 10**5000}, "experts of 1 to 2147483647, an int, got an integer of 16610 bits"),
        (
            {"experts": -(10**5000)},
            "experts of 1 to 2147483647, an int, got an integer of 16610 bits",
        ),
        ({"experts": True}, "experts of 1 to 2147483647, an int, got True"),
        ({"experts": None}, "experts of 1 to 2147483647, an int, got None"),
        ({"experts": "4"}, "experts of 1 to 2147483647, an int, got '4'"),
        ({"accumulate": "bf16"}, "accumulate of fp32 or bf16-step, got 'bf16'"),
        ({"accumulate": None}, "accumulate of fp32 or bf16-step, got None"),
        ({**inputs_at(2, 5, 5), **STEP}, "a top_k of 2, 3 or 4 for bf16-step, got 5"),
        ({**inputs_at(2, 1, 5), **STEP}, "a top_k of 2, 3 or 4 for bf16-step, got 1"),
        ({"experts": 4.0}, r"experts of 1 to 2147483647, an int, got 4\.0"),
        ({"topk_ids": torch.zeros(2, 4, dtype=torch.int32)}, "topk_ids in int64, got int32"),
        ({"topk_ids": torch.zeros(2, 3, dtype=torch.int64)}, "axis top_k of 4, got 3"),
        ({"y": torch.zeros(8, 5).bfloat16()}, r"y as \[tokens, top_k, hidden\], got \[8, 5\]"),
        ({"y": torch.zeros(2, 4, 5)}, "y in bfloat16, got float32"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(
    run: Callable[..., Tensor], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{**inputs_at(2, 4, 5), "experts": EXPERTS, **change})


def test_a_workload_that_cannot_be_made() -> None:
    with pytest.raises(UsageError, match="a case of random, exponents, padding"):
        inputs_at(2, 4, 5, "nothing")
