"""moe_quant: what each scheme scales, where it rounds, and what its rules change."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import quant_data, quant_reference, quant_rules, quant_triton
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.moe.quant_reference import (
    moe_quant,
    tiled,
)
from bitgate.parity.bits import words
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_QUANT.implementations]
RULES = list(product(quant_rules.SCALE_RULES, quant_rules.ROUNDINGS))
DYNAMIC = ("tensor", "token", "group")


def inputs_at(rows: int, k: int, case: str = "random", group: int = 128) -> Tensor:
    axes = (("group", group), ("k", k), ("rows", rows))
    workload = Workload(op="moe_quant", axes=axes, dtype="bfloat16", case=case)
    return MOE_QUANT.make_inputs(workload, 0)["x"]


def quant(x: Tensor, run: Callable[..., Pair] = moe_quant, **other: object) -> Pair:
    constants = {"scheme": "group", "group": 128, "scale_rule": "amax", "rounding": "divide"}
    return run(x=x, **constants | other)


def same(a: Tensor, b: Tensor) -> bool:
    """Of one shape and dtype, with the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(words(a), words(b))


def differing(a: Tensor, b: Tensor) -> float:
    return (words(a) != words(b)).float().mean().item()


# --- the truth, computed in another way ----------------------------------------------------------


def in_numpy(x: Tensor, scheme: str, group: int, scale_rule: str, rounding: str) -> Pair:
    """Tile by tile: NumPy's float32 quotients, frexp for the power, a table's nearest number."""
    rows, k = x.shape
    values = x.float().numpy()
    numbers, ties = quant_data.magnitudes(), quant_data.midpoints()
    down, width = {"tensor": (rows, k), "token": (1, k), "group": (1, group)}[scheme]
    scales = np.empty((-(-rows // down), -(-k // width)), np.float32)
    codes = np.empty((rows, k), np.uint8)
    for i, j in np.ndindex(*scales.shape):
        part = (slice(i * down, (i + 1) * down), slice(j * width, (j + 1) * width))
        amax = np.abs(values[part]).max()
        if scheme == "group":
            amax = max(amax, np.float32(1e-10))
        scale = np.float32(amax) / np.float32(448)
        if scheme == "token":
            scale = max(scale, np.float32(1) / np.float32(448 * 512))
        if scale_rule == "ue8m0":
            fraction, exponent = np.frexp(max(scale, np.float32(1e-10)))
            scale = np.float32(np.ldexp(1.0, exponent - (fraction == 0.5)))
        divisor = np.float32(scale or 1)
        quotient = (
            values[part] / divisor
            if rounding == "divide"
            else values[part] * (np.float32(1) / divisor)
        )
        size = np.minimum(np.abs(quotient), 448).astype(np.float64)
        below = np.searchsorted(ties, size)  # a tie stays with the lower number
        tie = (below < len(ties)) & (ties[np.minimum(below, len(ties) - 1)] == size)
        code = np.where(tie & (below % 2 == 1), below + 1, below)
        assert (
            np.abs(numbers[code] - size) <= np.abs(numbers[np.maximum(code - 1, 0)] - size)
        ).all()
        codes[part] = code | np.where(np.signbit(quotient), 0x80, 0)
        scales[i, j] = scale
    return torch.from_numpy(codes).view(torch.float8_e4m3fn), torch.from_numpy(scales)


@pytest.mark.parametrize("scheme", DYNAMIC)
@pytest.mark.parametrize(("scale_rule", "rounding"), RULES)
@pytest.mark.parametrize("run", RUNS)
def test_no_bit_differs_from_another_computation(
    run: Callable[..., Pair], scale_rule: str, rounding: str, scheme: str
) -> None:
    for x, group in ((inputs_at(9, 300), 128), (inputs_at(24, 200, "edges", 64), 64)):
        rules = {"scheme": scheme, "group": group, "scale_rule": scale_rule, "rounding": rounding}
        for found, expected in zip(quant(x, run, **rules), in_numpy(x, **rules), strict=True):
            assert same(found, expected)


@pytest.mark.parametrize("rounding", quant_rules.ROUNDINGS)
@pytest.mark.parametrize("run", RUNS)
def test_a_given_scale_is_used_as_it_is(run: Callable[..., Pair], rounding: str) -> None:
    x = inputs_at(5, 96)
    for scale in (0.37109375, 2.0**-3, float(np.float32(1 / 3))):
        codes, scales = quant(x, run, scheme="static", scale=scale, rounding=rounding)
        assert scales.tolist() == [[scale]]
        divisor = torch.full_like(x.float(), scale)
        value = x.float() / divisor if rounding == "divide" else x.float() * (1 / divisor)
        assert same(codes, value.clamp(-448, 448).to(torch.float8_e4m3fn))
    assert (codes.double().abs() == 448).sum() == 0
    clipped, _ = quant(x, run, scheme="static", scale=2.0**-8)
    assert (clipped.double().abs() == 448).float().mean() > 0.1


@pytest.mark.parametrize("row", quant_rules.QUANTISERS, ids=str)
def test_every_engine_of_the_table_can_be_asked_for(row: quant_rules.Quantiser) -> None:
    x = inputs_at(2, 200)
    rules = {"scheme": row.scheme, "scale_rule": row.scale_rule, "rounding": row.rounding}
    assert all(map(same, quant(x, quant_triton.moe_quant, **rules), quant(x, **rules)))
    keys = [(r.engine, r.version, r.scheme, r.scale_rule) for r in quant_rules.QUANTISERS]
    assert len(set(keys)) == len(keys)


def test_the_floors_are_the_float32_numbers_that_they_are_named_for() -> None:
    one = np.float32(1)
    assert quant_rules.SCHEMES["token"].scale == one / np.float32(448 * 512)
    assert quant_rules.SCHEMES["group"].amax == np.float32(1e-10) == quant_rules.UE8M0_FLOOR
    assert quant_rules.WEIGHT_FLOORS.amax == np.float32(1e-4)


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
def test_zeros(run: Callable[..., Pair]) -> None:
    x = torch.zeros(3, 200, dtype=torch.bfloat16)
    x[1] = -0.0
    floors = {"group": np.float32(1e-10) / np.float32(448), "token": 2.0**-9 / 448, "tensor": 0.0}
    for scheme, scale in floors.items():
        codes, scales = quant(x, run, scheme=scheme)
        assert (scales == np.float32(scale)).all()
        assert codes.view(torch.uint8).tolist() == [[0] * 200, [0x80] * 200, [0] * 200]
    _, scales = quant(x, run, scale_rule="ue8m0")
    assert (scales.view(torch.int32) >> 23 == 94).all()
    assert (scales == 2.0**-33).all()


@pytest.mark.parametrize("run", RUNS)
def test_power_of_two_scales_stay_below_twice_and_reach_448(run: Callable[..., Pair]) -> None:
    for n in (-20, -3, 0, 7, 90):
        x = torch.zeros(3, 64, dtype=torch.bfloat16)
        # 448 * 2^n, the next number above it, and a power of two.
        x[:, 5] = torch.tensor([448.0, 450.0, 256.0]) * 2.0**n
        codes, scales = quant(x, run, group=64, scale_rule="ue8m0")
        assert scales[:, 0].tolist() == [2.0**n, 2.0 ** (n + 1), 2.0**n]
        assert codes[:, 5].double().tolist() == [448.0, 224.0, 256.0]


@pytest.mark.parametrize("run", RUNS)
def test_what_is_not_finite_marks_its_tile_alone(run: Callable[..., Pair]) -> None:
    x = inputs_at(4, 256)
    clean = quant(x, run)
    x[1, 3], x[2, 200], x[2, 201] = float("nan"), float("inf"), float("-inf")
    x.view(torch.int16)[1, 4] = -1  # a NaN of the other sign, with a payload
    for rounding in quant_rules.ROUNDINGS:
        codes, scales = quant(x, run, rounding=rounding)
        assert (codes[1, :128].view(torch.uint8) == 0x7F).all()
        assert scales.view(torch.int32)[1, 0] == 0x7FC00000
        assert scales[2, 1] == float("inf")
        assert (codes[2, 200:202].view(torch.uint8) == 0x7F).all()
        assert (codes[2, 128:200].double() == 0).all()
    codes, scales = quant(x, run)
    untouched = torch.tensor([True, False, True, True])
    assert same(codes[untouched, :128], clean[0][untouched, :128])
    assert same(scales[[0, 3]], clean[1][[0, 3]])


@pytest.mark.parametrize("scheme", ["token", "group"])
@pytest.mark.parametrize("scale_rule", quant_rules.SCALE_RULES)
def test_divide_and_reciprocal(scheme: str, scale_rule: str) -> None:
    """Under amax they differ in about one code of 2000, under powers of two in none."""
    x = inputs_at(4096, 128)
    divided = quant(x, scheme=scheme, scale_rule=scale_rule)
    multiplied = quant(x, scheme=scheme, scale_rule=scale_rule, rounding="reciprocal")
    assert same(divided[1], multiplied[1])
    share = differing(divided[0], multiplied[0])
    assert share == 0 if scale_rule == "ue8m0" else 0.0001 < share < 0.002


def test_a_tie_shows_where_the_nearest_does_not() -> None:
    """Beside 448 * 2^n every midpoint of float8 stays one, and goes to the even code."""
    ties = torch.from_numpy(quant_data.midpoints()).bfloat16()
    x = torch.cat([ties, torch.tensor([448.0], dtype=torch.bfloat16)])[None]
    codes, scales = quant(x, scheme="token")
    assert scales.item() == 1.0
    assert (codes.view(torch.uint8) % 2 == 0).all()
    for neighbour, odd in ((-1, 63), (1, 63)):
        moved = (ties.view(torch.int16) + neighbour).view(torch.bfloat16)
        near, _ = quant(torch.cat([moved, x[0, -1:]])[None], scheme="token")
        assert (near.view(torch.uint8) % 2).sum() == odd


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("scheme", DYNAMIC)
def test_only_a_scale_of_the_tensor_depends_on_the_other_tokens(
    run: Callable[..., Pair], scheme: str
) -> None:
    """One token's outlier changes the codes of its neighbours under scheme tensor alone."""
    x = inputs_at(6, 200)
    before, _ = quant(x, run, scheme=scheme)
    x[5, 7] = 3000.0
    after, _ = quant(x, run, scheme=scheme)
    alone, _ = quant(x[2:3], run, scheme=scheme)
    if scheme == "tensor":
        assert differing(before[:5], after[:5]) > 0.5
        assert differing(alone, after[2:3]) > 0.5
    else:
        assert same(before[:5], after[:5])
        assert same(alone, after[2:3])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("scheme", ["static", *DYNAMIC])
def test_no_rows(run: Callable[..., Pair], scheme: str) -> None:
    codes, scales = quant(inputs_at(0, 200), run, scheme=scheme)
    assert codes.shape == (0, 200)
    assert codes.dtype == torch.float8_e4m3fn
    expected = {"static": [[1.0]], "tensor": [[0.0]], "token": [], "group": []}
    assert scales.tolist() == expected[scheme]
    assert scales.shape[1] == (2 if scheme == "group" else 1)


@pytest.mark.parametrize("scheme", ["static", "tensor", "token"])
def test_outputs_of_the_caller_are_filled_whole(scheme: str) -> None:
    """Under the other schemes, too."""
    x = inputs_at(7, 300)
    expected = quant(x, scheme=scheme)
    for poison in (-1, 0x7F):
        given = [torch.empty_like(one) for one in expected]
        for one in given:
            one.view(torch.int8).fill_(poison)
        quant(x, quant_triton.moe_quant, scheme=scheme, codes=given[0], scales=given[1])
        assert all(map(same, given, expected))


@pytest.mark.parametrize("scheme", ["static", "tensor", "token"])
def test_tiles_of_a_device_change_no_bit(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs_at(30, 300)
    expected = quant(x, scheme=scheme)
    monkeypatch.setattr(quant_triton, "rows_of", lambda width: max(1, 1024 // width))
    monkeypatch.setattr(quant_triton.quant_whole_triton, "interpreting", lambda: False)
    assert all(map(same, quant(x, quant_triton.moe_quant, scheme=scheme), expected))


# --- published faults ----------------------------------------------------------------------------


@pytest.mark.slow  # reserves 7 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    k = (1 << 30) + 16
    x = torch.from_numpy(np.zeros(2 * k + 16, np.int16))
    codes = torch.from_numpy(np.zeros(2 * k + 16, np.int8))
    scales = torch.zeros(3)
    values = inputs_at(1, 16)
    x[2 * k :] = values.view(torch.int16)[0]
    # A row is one group, of which the first WIDTH elements are looked at.
    sizes = {"TILE": 4, "WIDTH": 16, "UE8M0": False, "RECIPROCAL": False}
    launch(quant_triton.group_kernel, (1,), x, codes, scales, 3, k, k, 0.0, 0.0, **sizes)
    expected = quant(values, scheme="token")
    assert torch.equal(codes[2 * k :].view(torch.uint8), expected[0].view(torch.uint8)[0])
    assert scales[2] == expected[1][0, 0]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "block"}, "expected scheme of static, tensor, token, group, got 'block'"),
        ({"group": 32}, "expected group of 64, 128, got 32"),
        ({"group": 128.0}, "expected group of 64, 128, got 128.0"),
        ({"scale_rule": "floor"}, "expected scale_rule of amax, ue8m0, got 'floor'"),
        ({"rounding": True}, "expected rounding of divide, reciprocal, got True"),
        ({"scale": 0.0}, "expected scale to be positive, finite and exact in float32, got 0.0"),
        ({"scale": 0.1}, "expected scale to be positive, finite and exact in float32, got 0.1"),
        ({"scale": float("inf")}, "exact in float32, got inf"),
        ({"scale": 2**128}, "exact in float32, got an integer of 129 bits"),
        ({"scale": 10**400}, "exact in float32, got an integer of 1329 bits"),
        ({"x": torch.zeros(2, 8)}, "x in bfloat16, got float32"),
        ({"x": torch.zeros(8, dtype=torch.bfloat16)}, r"as \[rows, k\], got \[8\]"),
        ({"x": torch.zeros(8, 0, dtype=torch.bfloat16)}, "k of at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(
    run: Callable[..., Pair], change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        quant(**{"x": inputs_at(2, 4), "run": run, **change})


@pytest.mark.parametrize(
    ("scheme", "shape"), [("tensor", (3, 1)), ("token", (1, 1)), ("group", (3, 1))]
)
def test_scales_of_another_scheme_are_refused(scheme: str, shape: tuple[int, int]) -> None:
    x = inputs_at(3, 200)
    with pytest.raises(UsageError, match="moe_quant: scales: expected axis"):
        quant(x, quant_triton.moe_quant, scheme=scheme, scales=torch.empty(shape))


@pytest.mark.parametrize(
    ("dtype", "case"), [("float32", "random"), ("bfloat16", "nothing")], ids=["dtype", "case"]
)
def test_a_workload_that_cannot_be_made(dtype: str, case: str) -> None:
    axes = (("group", 128), ("k", 4), ("rows", 1))
    with pytest.raises(UsageError, match="expected dtype bfloat16 and a case of random, edges"):
        MOE_QUANT.make_inputs(Workload(op="moe_quant", axes=axes, dtype=dtype, case=case), 0)


def test_the_edges_are_among_the_inputs() -> None:
    tiles = tiled(inputs_at(64, 512, "edges").float(), "group", 128)
    amax = quant_reference.amax_of(tiles)
    fraction, _ = np.frexp(amax.numpy())
    kinds = {
        "zeros": amax == 0,
        "powers of two": torch.from_numpy(fraction == 0.5),
        "448 times one": torch.from_numpy(fraction == 448 / 512),
        "subnormal": (amax > 0) & (amax < 2.0**-126),
        "below the floor": (amax > 1e-20) & (amax < 1e-10),
        "above the floor": (amax >= 1e-10) & (amax < 2e-10),
        "largest": amax > 1e38,
    }
    assert {name: bool(found.sum() > 3) for name, found in kinds.items()} == dict.fromkeys(
        kinds, True
    )
