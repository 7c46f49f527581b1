"""moe_act: where it rounds, what it clamps and writes, and how far from float64 it may be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import act_triton
from bitgate.kernels.moe.act import ALPHA, MOE_ACT, Activation
from bitgate.kernels.moe.act_reference import activated, halves, moe_act, moe_act_float64
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
SENTINEL = -7.5
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ACT.implementations]


def inputs_at(rows: int, intermediate: int, case: str = "random") -> Tensors:
    axes = (("intermediate", intermediate), ("rows", rows))
    workload = Workload(op="moe_act", axes=axes, dtype="bfloat16", case=case)
    return MOE_ACT.make_inputs(workload, 0)


def differing(a: Tensor, b: Tensor) -> float:
    """The share of elements whose bits differ."""
    return (a.view(torch.int16) != b.view(torch.int16)).float().mean().item()


# --- mutants: each must change bits --------------------------------------------------------------


def clamped(gate_up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate.clamp(max=limit), up.clamp(-limit, limit)


def quotient(gate: Tensor) -> Tensor:
    return gate / (1.0 + arithmetic.exp(0.0 - gate))


def fp32_product(gate_up: Tensor, limit: float) -> Tensor:
    """SGLang's: no rounding between silu and the product."""
    return moe_act(gate_up=gate_up, swiglu_limit=limit, round_between=0)


def swapped(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return moe_act(gate_up=torch.cat([up, gate], -1), swiglu_limit=limit)


def clamped_after(gate_up: Tensor, limit: float) -> Tensor:
    """Step models': silu first, then its limit."""
    return moe_act(gate_up=gate_up, swiglu_limit=limit, kind="swiglu-step")


def not_clamped(gate_up: Tensor, limit: float) -> Tensor:
    del limit
    return moe_act(gate_up=gate_up, swiglu_limit=float("inf"))


def gate_clamped_below(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return moe_act(gate_up=torch.cat([gate.clamp(min=-limit), up], -1), swiglu_limit=limit)


def truncating(gate_up: Tensor, limit: float) -> Tensor:
    gate, up = clamped(gate_up, limit)
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
    gate, _ = clamped(inputs_at(64, 256)["gate_up"], 10.0)
    other = gate * arithmetic.sigmoid(gate)
    assert 0.2 < (other != quotient(gate)).float().mean() < 0.5


# --- the kinds -----------------------------------------------------------------------------------

# Kind, round_between, alpha.
KINDS = [
    ("silu", 1, ALPHA),
    ("silu", 0, ALPHA),
    ("swiglu-oai", 0, ALPHA),
    ("swiglu-oai", 0, 0.5),
    ("swiglu-step", 0, ALPHA),
    ("swiglu-step", 1, ALPHA),
]


def constants(kind: tuple[str, int, float], limit: float) -> dict[str, Any]:
    name, round_between, alpha = kind
    return {
        "swiglu_limit": limit,
        "kind": name,
        "round_between": round_between,
        "alpha": alpha,
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_bit_differs_from_the_replay(kind: tuple[str, int, float]) -> None:
    for limit, inputs in ((7.0, inputs_at(5, 257)), (2.0, inputs_at(9, 448, "edges"))):
        chosen = constants(kind, limit)
        assert differing(moe_act(**inputs, **chosen), act_triton.moe_act(**inputs, **chosen)) == 0
    # The control: the clamp of the other limit shows.
    assert differing(moe_act(**inputs, **chosen), moe_act(**inputs, **constants(kind, 7.0))) > 0


def test_every_kind_has_other_bits() -> None:
    inputs = inputs_at(16, 256)
    outputs = [moe_act(**inputs, **constants(kind, 2.0)) for kind in KINDS]
    shares = [differing(a, b) for n, a in enumerate(outputs) for b in outputs[:n]]
    assert min(shares) > 0.002


def torch_form(gate_up: Tensor, kind: str, limit: float) -> Tensor:
    """The published formulas by torch's own functions, in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if kind == "swiglu-oai":
        gate, up = gate_up.double()[..., ::2], gate_up.double()[..., 1::2]
        gate = gate.clamp(max=limit)
        return (up.clamp(-limit, limit) + 1) * (gate * torch.sigmoid(gate * 1.702))
    if kind == "swiglu-step":
        return functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[2] == ALPHA], ids=str)
@pytest.mark.parametrize("limit", [1.0, 7.0])
def test_a_kind_is_the_published_formula(kind: tuple[str, int, float], limit: float) -> None:
    inputs = inputs_at(16, 256)
    value, bound = moe_act_float64(**inputs, **constants(kind, limit))
    expected = torch_form(inputs["gate_up"], kind[0], limit)
    # The bound, less alpha's rounding to float32 and float64's own.
    assert ((value - expected).abs() <= 2.0**-19 * expected.abs() + 1e-30).all()
    # Another kind is refused where the limit is small: silu(7) is 7 within one rounding.
    for other in {"silu", "swiglu-oai", "swiglu-step"} - {kind[0]} if limit == 1.0 else ():
        wrong = torch_form(inputs["gate_up"], other, limit)
        assert ((wrong - value).abs() > bound).float().mean() > 0.005


def test_a_rounded_silu_is_clamped_to_the_same_bits_before_and_after() -> None:
    """The limit is a bfloat16, so an engine may round before the clamp of swiglu-step, or after."""
    gate = inputs_at(64, 256, "edges")["gate_up"].float()
    silu = quotient(gate)
    after = arithmetic.round_bf16(silu.clamp(max=2.0)).float()
    assert torch.equal(after, arithmetic.round_bf16(silu).float().clamp(max=2.0))


def test_what_others_share_is_the_operator() -> None:
    inputs = inputs_at(3, 40)
    for kind in KINDS:
        settings = Activation(**constants(kind, 7.0), op="another")
        product = activated(*halves(inputs["gate_up"].float(), settings), settings)
        assert product.dtype is torch.float32
        expected = moe_act(**inputs, **constants(kind, 7.0))
        assert differing(arithmetic.round_bf16(product), expected) == 0


# --- published faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("width", [1, 255, 257, 448, 511, 768, 1408])
@pytest.mark.parametrize("kind", ["silu", "swiglu-oai"])
def test_every_channel_is_written(run: Callable[..., Tensor], width: int, kind: str) -> None:
    """A published kernel left the channels from 257 on unwritten at the width 768."""
    inputs = inputs_at(2, width)
    chosen = constants((kind, 0, ALPHA), 7.0)
    expected = moe_act(**inputs, **chosen)
    if "out" in run.__code__.co_varnames[: run.__code__.co_kwonlyargcount]:
        out = torch.full((2, width), SENTINEL, dtype=torch.bfloat16)
        run(**inputs, **chosen, out=out)
    else:
        out = run(**inputs, **chosen)
    assert differing(out, expected) == 0
    assert not (out == SENTINEL).any()


@pytest.mark.slow  # reserves 10 GB of addresses, of which some pages are used
@pytest.mark.parametrize("kind", ["silu", "swiglu-oai"])
def test_offsets_beyond_32_bits(kind: str) -> None:
    intermediate = (1 << 30) + 16
    settings = Activation(**constants((kind, 0, ALPHA), 10.0))
    gate_up = torch.from_numpy(np.zeros(3 * intermediate + 16, np.int16))
    out = torch.from_numpy(np.zeros(intermediate + 16, np.int16))
    values = inputs_at(1, 16)["gate_up"].view(torch.int16)[0]
    row = gate_up[2 * intermediate :]
    if settings.interleaved:
        row[:32] = values
    else:
        row[:16], row[intermediate : intermediate + 16] = values[:16], values[16:]
    sizes = {"ROWS": 1, "BLOCK": 16, "KIND": settings.number, "ROUND_BETWEEN": 0}
    numbers = (2, intermediate, settings.limit, settings.slope, 0)
    launch(act_triton.act_kernel, (2, 1), gate_up, out, *numbers, **sizes)
    row = values[None].view(torch.bfloat16)
    expected = moe_act(gate_up=row, **constants((kind, 0, ALPHA), 10.0))
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
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_result_lies_within_the_bound(kind: tuple[str, int, float], limit: float) -> None:
    cases = [inputs_at(33, 96)] if limit == float("inf") else [inputs_at(33, 96, "edges")]
    for inputs in (inputs_at(5, 768), *cases):
        value, bound = moe_act_float64(**inputs, **constants(kind, limit))
        assert value.isfinite().all()
        for run in (moe_act, act_triton.moe_act):
            out = run(**inputs, **constants(kind, limit))
            assert ((out.double() - value).abs() <= bound).all()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "swapped halves": lambda x: swapped(x, 10.0),
    "not clamped": lambda x: not_clamped(x, 10.0),
    "no activation": lambda x: arithmetic.round_bf16(torch.mul(*clamped(x, 10.0))),
    "gelu": lambda x: (functional.gelu(clamped(x, 10.0)[0]) * clamped(x, 10.0)[1]).bfloat16(),
    "an eighth too large": lambda x: moe_act(gate_up=x, swiglu_limit=10.0) * 1.125,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bound_refuses_a_fault(fault: str) -> None:
    inputs = inputs_at(64, 256)
    value, bound = moe_act_float64(**inputs, swiglu_limit=10.0)
    wrong = FAULTS[fault](inputs["gate_up"]).double()
    assert ((wrong - value).abs() > bound).float().mean() > 0.005


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_bound_is_one_rounding_or_two(kind: tuple[str, int, float]) -> None:
    value, bound = moe_act_float64(**inputs_at(64, 256), **constants(kind, 10.0))
    large = value.abs() > 1e-20
    assert large.float().mean() > 0.9
    roundings = 1 + kind[1]
    assert (bound[large] < 1.01 * roundings * 2.0**-8 * value[large].abs()).all()


# --- refusals ------------------------------------------------------------------------------------

OAI = {"kind": "swiglu-oai", "round_between": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_limit": 0.0}, "to be a positive number, or inf for none, got 0.0"),
        ({"swiglu_limit": float("nan")}, "to be a positive number, or inf for none, got nan"),
        ({"swiglu_limit": True}, "to be a positive number, or inf for none, got True"),
        ({"swiglu_limit": "10"}, "to be a positive number, or inf for none, got '10'"),
        ({"swiglu_limit": None}, "to be a positive number, or inf for none, got None"),
        ({"swiglu_limit": 10**5000}, "exactly, got an integer of 16610 bits; the nearest is inf"),
        ({"swiglu_limit": -(10**400)}, "or inf for none, got an integer of 1329 bits"),
        ({"swiglu_limit": 10.3}, "that bfloat16 holds exactly, got 10.3; the nearest is 10.3125"),
        ({"kind": "gelu"}, "a kind of silu, swiglu-oai, swiglu-step, got 'gelu'"),
        ({"kind": 0}, "a kind of silu, swiglu-oai, swiglu-step, got 0"),
        ({"round_between": True}, "round_between of 0 or 1, an int, got True"),
        ({"round_between": 2}, "round_between of 0 or 1, an int, got 2"),
        ({"kind": "swiglu-oai"}, "round_between of 0 for swiglu-oai, which rounds once, got 1"),
        ({"alpha": 1.0}, "no alpha beside silu, got 1.0; it is swiglu-oai's"),
        ({**OAI, "alpha": 0.0}, "alpha to be a positive float32, got 0.0"),
        ({**OAI, "alpha": 1e-60}, "alpha to be a positive float32, got 1e-60"),
        ({**OAI, "alpha": 10**400}, "alpha to be a positive float32, got an integer of 1329 bits"),
        ({**OAI, "alpha": None}, "alpha to be a positive float32, got None"),
        ({**OAI, "alpha": "1"}, "alpha to be a positive float32, got '1'"),
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
