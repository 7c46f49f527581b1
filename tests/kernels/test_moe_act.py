"""moe_act: where it rounds, what it clamps and writes, and how far from float64 it may be."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import act_triton
from bitgate.kernels.moe.act import MOE_ACT
from bitgate.kernels.moe.act_reference import clamped, moe_act, moe_act_float64
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ACT.implementations]


def inputs_at(rows: int, intermediate: int, case: str = "random") -> Tensors:
    axes = (("intermediate", intermediate), ("rows", rows))
    workload = Workload(op="moe_act", axes=axes, dtype="bfloat16", case=case)
    return MOE_ACT.make_inputs(workload, 0)


def differing(a: Tensor, b: Tensor) -> float:
    """The share of elements whose bits differ."""
    return (a.view(torch.int16) != b.view(torch.int16)).float().mean().item()


# --- mutants: each must change bits --------------------------------------------------------------


def halves(gate_up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return clamped(gate, up, limit)


def quotient(gate: Tensor) -> Tensor:
    return gate / (1.0 + arithmetic.exp(0.0 - gate))


def fp32_product(gate_up: Tensor, limit: float) -> Tensor:
    """SGLang's: no rounding between silu and the product."""
    gate, up = halves(gate_up, limit)
    return arithmetic.round_bf16(quotient(gate) * up)


def swapped(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return moe_act(gate_up=torch.cat([up, gate], -1), swiglu_limit=limit)


def clamped_after(gate_up: Tensor, limit: float) -> Tensor:
    """Step models': silu first, then its limit."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    silu, up = clamped(quotient(gate), up, limit)
    return arithmetic.round_bf16(arithmetic.round_bf16(silu).float() * up)


def not_clamped(gate_up: Tensor, limit: float) -> Tensor:
    del limit
    return moe_act(gate_up=gate_up, swiglu_limit=float("inf"))


def gate_clamped_below(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return moe_act(gate_up=torch.cat([gate.clamp(min=-limit), up], -1), swiglu_limit=limit)


def truncating(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = halves(gate_up, limit)
    product = arithmetic.round_bf16(quotient(gate)).float() * up
    return (product.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


# What it is, a limit, and the least and the largest share of outputs that it changes. At 10 a clamp
# after silu has the bits of one before it: silu(10) rounds to 10.
MUTANTS: dict[str, tuple[Callable[[Tensor, float], Tensor], float, float, float]] = {
    "fp32 product": (fp32_product, 10.0, 0.2, 0.35),
    "swapped halves": (swapped, 10.0, 0.9, 1.0),
    "clamped after silu": (clamped_after, 2.0, 0.01, 0.2),
    "not clamped": (not_clamped, 10.0, 0.005, 0.2),
    "gate clamped below": (gate_clamped_below, 10.0, 0.005, 0.2),
    "truncating": (truncating, 10.0, 0.3, 0.7),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_show(name: str) -> None:
    mutant, limit, least, most = MUTANTS[name]
    inputs = inputs_at(64, 256)
    share = differing(moe_act(**inputs, swiglu_limit=limit), mutant(inputs["gate_up"], limit))
    assert least < share < most


def test_another_form_of_silu_shows_before_it_is_rounded() -> None:
    """x times sigmoid(x) instead of x / (1 + exp(-x)): bfloat16 hides it, float32 does not."""
    gate, _ = halves(inputs_at(64, 256)["gate_up"], 10.0)
    other = gate * arithmetic.sigmoid(gate)
    assert 0.2 < (other != quotient(gate)).float().mean() < 0.5


# --- published faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("width", [1, 7, 255, 257, 511, 768, 1408])
def test_every_channel_is_written(run: Callable[..., Tensor], width: int) -> None:
    """A published kernel left the channels from 257 on unwritten at the width 768."""
    inputs = inputs_at(2, width)
    expected = moe_act(**inputs, swiglu_limit=7.0)
    if "out" in run.__code__.co_varnames[: run.__code__.co_kwonlyargcount]:
        out = torch.full((2, width), -7.5, dtype=torch.bfloat16)
        run(**inputs, swiglu_limit=7.0, out=out)
    else:
        out = run(**inputs, swiglu_limit=7.0)
    assert differing(out, expected) == 0
    assert not (out == -7.5).any()


@pytest.mark.slow  # reserves 10 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    intermediate = (1 << 30) + 16
    gate_up = torch.from_numpy(np.zeros(3 * intermediate + 16, np.int16))
    out = torch.from_numpy(np.zeros(intermediate + 16, np.int16))
    values = inputs_at(1, 16)["gate_up"].view(torch.int16)[0]
    gate_up[2 * intermediate : 2 * intermediate + 16] = values[:16]
    gate_up[3 * intermediate : 3 * intermediate + 16] = values[16:]
    sizes = {"ROWS": 1, "BLOCK": 16}
    launch(act_triton.act_kernel, (2, 1), gate_up, out, 2, intermediate, 10.0, 0, **sizes)
    expected = moe_act(gate_up=values[None].view(torch.bfloat16), swiglu_limit=10.0)
    assert torch.equal(out[intermediate:], expected.view(torch.int16)[0])


@pytest.mark.parametrize("run", RUNS)
def test_a_nan_is_stored_as_the_canonical_one(run: Callable[..., Tensor]) -> None:
    inputs = inputs_at(3, 8)
    bits = inputs["gate_up"].view(torch.int16)
    bits[1, 2], bits[2, 8 + 5] = -1, 0x7FFF  # of both signs, with a payload
    out = run(**inputs, swiglu_limit=10.0)
    assert out.view(torch.int16)[1, 2] == out.view(torch.int16)[2, 5] == 0x7FC0
    assert out.isnan().sum() == 2


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10.0, 7.0, float("inf")])
@pytest.mark.parametrize("run", RUNS)
def test_the_result_lies_within_the_bound(run: Callable[..., Tensor], limit: float) -> None:
    cases = [inputs_at(33, 96)] if limit == float("inf") else [inputs_at(33, 96, "edges")]
    for inputs in (inputs_at(5, 768), *cases):
        value, bound = moe_act_float64(**inputs, swiglu_limit=limit)
        assert ((run(**inputs, swiglu_limit=limit).double() - value).abs() <= bound).all()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "swapped halves": lambda x: swapped(x, 10.0),
    "not clamped": lambda x: not_clamped(x, 10.0),
    "no activation": lambda x: arithmetic.round_bf16(torch.mul(*halves(x, 10.0))),
    "gelu": lambda x: (functional.gelu(halves(x, 10.0)[0]) * halves(x, 10.0)[1]).bfloat16(),
    "an eighth too large": lambda x: moe_act(gate_up=x, swiglu_limit=10.0) * 1.125,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bound_refuses_a_fault(fault: str) -> None:
    inputs = inputs_at(64, 256)
    value, bound = moe_act_float64(**inputs, swiglu_limit=10.0)
    wrong = FAULTS[fault](inputs["gate_up"]).double()
    assert ((wrong - value).abs() > bound).float().mean() > 0.005


def test_the_bound_is_two_roundings() -> None:
    value, bound = moe_act_float64(**inputs_at(64, 256), swiglu_limit=10.0)
    large = value.abs() > 1e-20
    assert large.float().mean() > 0.9
    assert (bound[large] < 2.01 * 2.0**-8 * value[large].abs()).all()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_limit": 0.0}, "to be a positive number, or inf for none, got 0.0"),
        ({"swiglu_limit": float("nan")}, "to be a positive number, or inf for none, got nan"),
        ({"swiglu_limit": True}, "to be a positive number, or inf for none, got True"),
        ({"swiglu_limit": "10"}, "to be a positive number, or inf for none, got '10'"),
        ({"swiglu_limit": 10.3}, "that bfloat16 holds exactly, got 10.3; the nearest is 10.3125"),
        ({"gate_up": torch.zeros(2, 7, dtype=torch.bfloat16)}, r"2\*intermediate of 6, got 7"),
        ({"gate_up": torch.zeros(2, 8)}, "gate_up in bfloat16, got float32"),
        ({"gate_up": torch.zeros(8, dtype=torch.bfloat16)}, r"as \[rows, 2\*intermediate\]"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(
    run: Callable[..., Tensor], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{**inputs_at(2, 4), "swiglu_limit": 10.0, **change})


@pytest.mark.parametrize(
    ("dtype", "case"), [("float32", "random"), ("bfloat16", "nothing")], ids=["dtype", "case"]
)
def test_a_workload_that_cannot_be_made(dtype: str, case: str) -> None:
    axes = (("intermediate", 4), ("rows", 1))
    with pytest.raises(UsageError, match="expected dtype bfloat16 and a case of random, edges"):
        MOE_ACT.make_inputs(Workload(op="moe_act", axes=axes, dtype=dtype, case=case), 0)
