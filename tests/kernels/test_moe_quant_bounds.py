"""moe_quant: how far it lies from its input, and that faults leave that bound or change bits."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.loading import load
from bitgate.kernels.moe import quant_reference, quant_rules
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.moe.quant_reference import (
    codes_of,
    dequantised,
    error_bound,
    moe_quant,
    scale_of,
    tiled,
)
from bitgate.parity.bits import words
from bitgate.records.types import Workload

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_QUANT.implementations]
RULES = list(product(quant_rules.SCALE_RULES, quant_rules.ROUNDINGS))


def inputs_at(rows: int, k: int, case: str = "random") -> Tensor:
    axes = (("group", 128), ("k", k), ("rows", rows))
    workload = Workload(op="moe_quant", axes=axes, dtype="bfloat16", case=case)
    return MOE_QUANT.make_inputs(workload, 0)["x"]


def quant(x: Tensor, run: Callable[..., Pair] = moe_quant, **other: object) -> Pair:
    constants = {"scheme": "group", "group": 128, "scale_rule": "amax", "rounding": "divide"}
    return run(x=x, **constants | other)


def differing(a: Tensor, b: Tensor) -> float:
    return (words(a) != words(b)).float().mean().item()


# --- mutants: each must change bits --------------------------------------------------------------


def swapped(codes: Tensor, scales: Tensor) -> Tensor:
    """Dequantised with the scales of two groups exchanged."""
    return dequantised(codes, scales.roll(1, 1), 1, 128)


def stride_zero(codes: Tensor, scales: Tensor) -> Tensor:
    """Dequantised with every scale read where the first one lies."""
    return dequantised(codes, scales[:1, :1].expand_as(scales), 1, 128)


@pytest.mark.parametrize("fault", [swapped, stride_zero])
def test_a_scale_of_another_group_leaves_the_bound(fault: Callable[..., Tensor]) -> None:
    x = inputs_at(16, 512)
    x = torch.ldexp(x, torch.arange(4).repeat_interleave(128) - 2)
    codes, scales = quant(x)
    bound = error_bound(x, scales, 1, 128)
    assert ((dequantised(codes, scales, 1, 128) - x.double()).abs() <= bound).all()
    assert ((fault(codes, scales) - x.double()).abs() > bound).float().mean() > 0.5


def times_448_over_amax(tiles: Tensor, amax: Tensor) -> Tensor:
    return arithmetic.round_e4m3(tiles * (448.0 / amax))


def of_float16(tiles: Tensor, amax: Tensor) -> Tensor:
    return codes_of(tiles, (amax / 448.0).half().float(), "divide")


def rounded_away_from_zero(tiles: Tensor, amax: Tensor) -> Tensor:
    codes = codes_of(tiles, amax / 448.0, "divide").view(torch.uint8)
    exact = tiles.double() / (amax / 448.0).double()
    short = codes.view(torch.float8_e4m3fn).double().abs() < exact.abs()
    return (codes + short).view(torch.float8_e4m3fn)


# What it is, and the least and the largest share of codes that it changes.
MUTANTS = {
    "448 over amax": (times_448_over_amax, 0.0002, 0.003),
    "float16 scale": (of_float16, 0.001, 0.1),
    "rounded up": (rounded_away_from_zero, 0.2, 0.7),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_show(name: str) -> None:
    mutant, least, most = MUTANTS[name]
    x = inputs_at(256, 1024)
    tiles = tiled(x.float(), "group", 128)
    amax = quant_reference.amax_of(tiles)[..., None]
    share = differing(quant(x)[0].flatten(), mutant(tiles, amax).flatten())
    assert least < share < most


def test_scales_of_float32_are_not_those_of_a_rounded_reciprocal() -> None:
    """The quotient that torch makes on a GPU where the divisor is a number and no tensor."""
    amax = integer_tensor(IntegerStream(1), (4096,), high=255).float().abs()
    scales = scale_of(amax, quant_rules.SCHEMES["tensor"], "amax")
    assert 0.1 < differing(scales, amax * torch.tensor(1 / 448)) < 0.9


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tensor", "token", "group"])
@pytest.mark.parametrize(("scale_rule", "rounding"), RULES)
@pytest.mark.parametrize("run", RUNS)
def test_the_result_lies_within_the_bound(
    run: Callable[..., Pair], scale_rule: str, rounding: str, scheme: str
) -> None:
    for x in (inputs_at(33, 96), inputs_at(9, 448, "edges")):
        codes, scales = quant(x, run, scheme=scheme, scale_rule=scale_rule, rounding=rounding)
        block = {"tensor": x.shape, "token": (1, x.shape[1]), "group": (1, 128)}[scheme]
        error = (dequantised(codes, scales, *block) - x.double()).abs()
        assert (error <= error_bound(x, scales, *block)).all()


def test_the_bound_is_half_a_unit_of_the_code() -> None:
    x = inputs_at(64, 256)
    codes, scales = quant(x)
    error = (dequantised(codes, scales, 1, 128) - x.double()).abs()
    assert (error / error_bound(x, scales, 1, 128)).max() > 0.99


# --- the integer fixtures ------------------------------------------------------------------------


def signed_maximum(x: Tensor, **constants: object) -> Pair:
    """The largest element instead of the largest magnitude: only what is positive decides."""
    _, scales = moe_quant(x=x.clamp(min=0), **constants)
    return with_scales(x, scales, **constants)


def group_of_the_other_size(x: Tensor, group: int, **constants: object) -> Pair:
    codes, scales = moe_quant(x=x, group=192 - group, **constants)
    _, right = moe_quant(x=x, group=group, **constants)
    return codes, scales if scales.shape == right.shape else right


def scale_of_the_neighbour(x: Tensor, **constants: object) -> Pair:
    _, scales = moe_quant(x=x, **constants)
    return with_scales(x, scales.roll(1, 1).roll(1, 0), **constants)


def with_scales(x: Tensor, scales: Tensor, **constants: object) -> Pair:
    """The codes of x in units of scales that are given."""
    rows, k = x.shape
    block = (rows, k) if scales.numel() == 1 else (1, -(-k // scales.shape[1]))
    if constants["scheme"] == "group":
        block = (1, int(constants["group"]))
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :k]
    return codes_of(x.float(), wide, "divide"), scales


def without_signs(x: Tensor, **constants: object) -> Pair:
    return moe_quant(x=x.abs(), **constants)


def of_447(x: Tensor, **constants: object) -> Pair:
    _, scales = moe_quant(x=x, **constants)
    return with_scales(x, scales * (448 / 447), **constants)


FIXTURE_FAULTS = (
    signed_maximum,
    group_of_the_other_size,
    scale_of_the_neighbour,
    without_signs,
    of_447,
)


def misses(run: Callable[..., Pair]) -> list[str]:
    """The fixtures that a computation does not meet."""
    found = []
    for case in MOE_QUANT.integer_cases():
        outputs = MOE_QUANT.named_outputs(run(**case.inputs, **case.constants))
        if any(differing(outputs[name], case.expected[name]) for name in outputs):
            found.append(case.name)
    return found


@pytest.mark.parametrize("fault", FIXTURE_FAULTS)
def test_a_fault_misses_an_integer_fixture(fault: Callable[..., Pair]) -> None:
    assert misses(moe_quant) == []
    assert misses(fault)


def test_the_integer_fixtures_hold_under_either_rounding_and_scale_rule() -> None:
    for scale_rule, rounding in RULES:
        rules = {"scale_rule": scale_rule, "rounding": rounding}
        assert misses(lambda rules=rules, **given: moe_quant(**given | rules)) == []
