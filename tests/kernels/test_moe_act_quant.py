"""moe_act_quant: bit for bit moe_act and then moe_quant, and what the fused form may differ in."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import (
    act_quant_triton,
    act_reference,
    act_triton,
    quant_reference,
    quant_rules,
    quant_triton,
)
from bitgate.kernels.moe.act import ALPHA, Activation
from bitgate.kernels.moe.act_quant import MOE_ACT_QUANT
from bitgate.kernels.moe.act_quant_reference import moe_act_quant
from bitgate.kernels.moe.quant_data import midpoints
from bitgate.parity.bits import words
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Run = Callable[..., Pair]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ACT_QUANT.implementations]
SCHEMES = ("token", "group")
RULES = list(product(SCHEMES, quant_rules.SCALE_RULES, quant_rules.ROUNDINGS))
ACTIVATIONS = [("silu", 1), ("silu", 0), ("swiglu-oai", 0), ("swiglu-step", 1)]
FUSED = {"round_between": 0, "round_product": 0}


def inputs_at(rows: int, intermediate: int, case: str = "random") -> Tensor:
    axes = (("group", 128), ("intermediate", intermediate), ("rows", rows))
    workload = Workload(op="moe_act_quant", axes=axes, dtype="bfloat16", case=case)
    return MOE_ACT_QUANT.make_inputs(workload, 0)["gate_up"]


def act_quant(gate_up: Tensor, run: Run = moe_act_quant, **other: object) -> Pair:
    constants = {
        "swiglu_limit": 7.0,
        "scheme": "group",
        "group": 128,
        "scale_rule": "amax",
        "rounding": "divide",
    }
    return run(gate_up=gate_up, **constants | other)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(words(a), words(b))


def differing(a: Tensor, b: Tensor) -> float:
    return (words(a) != words(b)).float().mean().item()


# --- the composition -----------------------------------------------------------------------------


# Every rule of the quantiser beside silu, and every activation beside one rule.
COMPOSED = [
    *((*rules, "silu", 1) for rules in RULES),
    *(("group", "amax", "reciprocal", *activation) for activation in ACTIVATIONS[1:]),
]


@pytest.mark.parametrize(
    ("scheme", "scale_rule", "rounding", "kind", "round_between"), COMPOSED, ids=str
)
@pytest.mark.parametrize("run", RUNS)
def test_it_is_the_activation_and_then_the_quantiser(
    run: Run, scheme: str, scale_rule: str, rounding: str, kind: str, round_between: int
) -> None:
    """Of the replay and of Triton's, each with its own two halves."""
    stages = {moe_act_quant: (act_reference, quant_reference)}
    act, quant = stages.get(run, (act_triton, quant_triton))
    gate_up = inputs_at(5, 200)
    rules = {"scheme": scheme, "group": 64, "scale_rule": scale_rule, "rounding": rounding}
    activation = {"swiglu_limit": 7.0, "kind": kind, "round_between": round_between}
    between = act.moe_act(gate_up=gate_up, **activation)
    expected = quant.moe_quant(x=between, **rules)
    assert all(map(same, run(gate_up=gate_up, **activation, **rules), expected))


@pytest.mark.parametrize(("kind", "round_between"), ACTIVATIONS)
@pytest.mark.parametrize("case", ["random", "edges"])
@pytest.mark.parametrize("run", RUNS)
def test_without_the_rounding_the_float32_product_is_quantised(
    run: Run, case: str, kind: str, round_between: int
) -> None:
    gate_up = inputs_at(6, 300, case)
    settings = Activation(swiglu_limit=7.0, kind=kind, round_between=round_between)
    product = act_reference.activated(*act_reference.halves(gate_up.float(), settings), settings)
    for group in (64, 128):
        tiles = quant_reference.tiled(product, "group", group)
        scales = tiles.abs().amax(-1).clamp(min=np.float32(1e-10)).numpy() / np.float32(448)
        expected = torch.from_numpy(scales)
        values = (tiles / expected[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        constants = {"kind": kind, "round_between": round_between, "round_product": 0}
        found = act_quant(gate_up, run, group=group, **constants)
        assert same(found[1], expected)
        assert same(found[0], values.flatten(1)[:, :300].contiguous())


@pytest.mark.parametrize("run", RUNS)
def test_ties_of_float8_survive_the_activation(run: Run) -> None:
    """Where silu is the identity, at 32: every midpoint goes to the even code."""
    ties = torch.from_numpy(midpoints())
    up = torch.cat([ties, torch.tensor([448.0])]).bfloat16()[None]
    gate_up = torch.cat([torch.full_like(up, 32.0), up], 1)
    for round_product in (0, 1):
        constants = {"swiglu_limit": 448.0, "scheme": "token", "round_product": round_product}
        codes, scales = act_quant(gate_up, run, **constants)
        assert scales.item() == 32.0
        assert (codes.view(torch.uint8) % 2 == 0).all()


def test_vllm_has_two_quantised_activations_that_differ() -> None:
    """The modular path rounds silu and the product to bfloat16, the fused kernel rounds neither."""
    gate_up = inputs_at(64, 512)
    modular, scales = act_quant(gate_up)
    shares = {}
    for name, constants in {
        "product": {"round_product": 0},
        "silu": {"round_between": 0},
        "both": FUSED,
    }.items():
        codes, other = act_quant(gate_up, **constants)
        shares[name] = differing(modular, codes)
        assert differing(scales, other) > 0.1
    assert 0.003 < shares["product"] < 0.1
    assert 0.003 < shares["silu"] < 0.1
    assert 0.003 < shares["both"] < 0.1


# --- mutants: each must change bits --------------------------------------------------------------


def amax_of_the_gate(gate_up: Tensor) -> Pair:
    gate, up = gate_up.float().chunk(2, -1)
    settings = Activation(swiglu_limit=7.0)
    tiles, of_gate = (
        quant_reference.tiled(one, "group", 128)
        for one in (act_reference.activated(gate, up, settings), gate)
    )
    floors = quant_rules.SCHEMES["group"]
    scales = quant_reference.scale_of(quant_reference.amax_of(of_gate), floors, "amax")
    return quant_reference.codes_of(tiles, scales[..., None], "divide").flatten(1), scales


def bf16_scales_of_a_float32_product(gate_up: Tensor) -> Pair:
    """The maximum of what was rounded, the codes of what was not."""
    settings = Activation(swiglu_limit=7.0)
    product = act_reference.activated(*gate_up.float().chunk(2, -1), settings)
    _, scales = act_quant(gate_up)
    tiles = quant_reference.tiled(product, "group", 128)
    return quant_reference.codes_of(tiles, scales[..., None], "divide").flatten(1), scales


def not_activated(gate_up: Tensor) -> Pair:
    gate, up = gate_up.float().chunk(2, -1)
    return quant_reference.moe_quant(
        x=arithmetic.round_bf16(gate * up),
        scheme="group",
        group=128,
        scale_rule="amax",
        rounding="divide",
    )


# What it is, and the least share of codes that it changes.
MUTANTS: dict[str, tuple[Callable[[Tensor], Pair], float]] = {
    "amax of the gate": (amax_of_the_gate, 0.5),
    "bf16 scales of a float32 product": (bf16_scales_of_a_float32_product, 0.002),
    "not activated": (not_activated, 0.5),
    "not clamped": (lambda x: act_quant(x, swiglu_limit=float("inf")), 0.2),
    "groups of 64": (lambda x: act_quant(x, group=64), 0.2),
    "by reciprocal": (lambda x: act_quant(x, rounding="reciprocal"), 0.0001),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_show(name: str) -> None:
    mutant, least = MUTANTS[name]
    gate_up = inputs_at(128, 512)
    assert differing(act_quant(gate_up)[0], mutant(gate_up)[0]) > least


# --- published faults ----------------------------------------------------------------------------


@pytest.mark.slow  # reserves 10 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    """A published kernel had 32-bit offsets, which twice the intermediate size exceeds first."""
    intermediate = (1 << 30) + 16
    gate_up = torch.from_numpy(np.zeros(5 * intermediate + 16, np.int16))
    codes = torch.from_numpy(np.zeros(2 * intermediate + 16, np.int8))
    scales = torch.zeros(3)
    values = inputs_at(1, 16)
    gate_up[4 * intermediate : 4 * intermediate + 16] = values.view(torch.int16)[0, :16]
    gate_up[5 * intermediate :] = values.view(torch.int16)[0, 16:]
    # A row is one group, of which the first WIDTH elements are looked at.
    rules = {"KIND": 0, "ROUND_BETWEEN": 1, "ROUND_PRODUCT": 1, "UE8M0": 0, "RECIPROCAL": 0}
    sizes = (3, intermediate, intermediate)
    given = (gate_up, codes, scales, *sizes, 7.0, ALPHA, 0.0, 0.0, 0)
    launch(act_quant_triton.act_quant_kernel, (1,), *given, **rules, TILE=4, WIDTH=16)
    expected = act_quant(values, scheme="token")
    assert torch.equal(codes[2 * intermediate :].view(torch.uint8), words(expected[0]))
    assert scales[2] == expected[1][0, 0]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("scheme", "floor"), [("token", 1 / (448 * 512)), ("group", 1e-10 / 448)])
def test_nothing_has_the_least_scale_of_its_scheme(run: Run, scheme: str, floor: float) -> None:
    _, scales = act_quant(torch.zeros(2, 256, dtype=torch.bfloat16), run, scheme=scheme)
    assert scales.flatten().tolist() == pytest.approx([floor, floor], rel=1e-6)


@pytest.mark.parametrize("run", RUNS)
def test_a_nan_marks_its_group_alone(run: Run) -> None:
    gate_up = inputs_at(3, 256)
    clean = act_quant(gate_up, run)
    gate_up.view(torch.int16)[1, 2], gate_up.view(torch.int16)[2, 256 + 130] = -1, 0x7FFF
    for round_product in (1, 0):
        codes, scales = act_quant(gate_up, run, round_product=round_product)
        if round_product:
            assert same(codes[0], clean[0][0])
            assert same(scales[0], clean[1][0])
        for row, columns, group in ((1, slice(0, 128), 0), (2, slice(128, 256), 1)):
            assert (codes[row, columns].view(torch.uint8) == 0x7F).all()
            assert scales.view(torch.int32)[row, group] == 0x7FC00000
        assert scales.isnan().sum() == 2


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "tensor"}, "expected scheme of token, group, got 'tensor'; .* use moe_act"),
        ({"scheme": "static"}, "expected scheme of token, group, got 'static'"),
        ({"scheme": "block"}, "expected scheme of static, tensor, token, group, got 'block'"),
        ({"group": 1}, "expected group of 64, 128, got 1"),
        ({"round_product": 2}, "expected round_product of 0 or 1, an int, got 2"),
        ({"round_product": True}, "expected round_product of 0 or 1, an int, got True"),
        ({"swiglu_limit": 0.0}, "moe_act_quant: expected swiglu_limit to be a positive number"),
        ({"kind": "gelu"}, "moe_act_quant: expected a kind of silu"),
        ({"gate_up": torch.zeros(2, 8)}, "gate_up in bfloat16, got float32"),
        ({"gate_up": torch.zeros(2, 7, dtype=torch.bfloat16)}, r"2\*intermediate of 6, got 7"),
        ({"gate_up": torch.zeros(2, 0, dtype=torch.bfloat16)}, "intermediate of at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(run: Run, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        act_quant(**{"gate_up": inputs_at(2, 4), "run": run, **change})
