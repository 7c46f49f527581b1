"""moe-fp8/1 as a whole: tiles, Triton and the fused quantiser, boundary by boundary."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from bitgate.kernels.arithmetic import E4M3_MAX
from bitgate.kernels.loading import load
from bitgate.kernels.moe.act import Activation
from bitgate.kernels.moe.contract import FP8_CONFIG, TileConfig
from bitgate.kernels.moe.experts_dense import experts_dense
from bitgate.kernels.moe.experts_fp8 import MOE_EXPERTS_FP8
from bitgate.kernels.moe.experts_fp8_oracle import (
    exact_rows,
    exact_weights,
    experts_fp8_float64,
)
from bitgate.kernels.moe.quant_reference import moe_quant
from bitgate.kernels.moe.staged import Scaling, Settings, run
from bitgate.kernels.moe.staged_reference import TILE, experts_fp8_tile
from bitgate.kernels.moe.staged_triton import TRITON, experts_fp8_fused, experts_fp8_triton
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

LIMIT = 10.0
# One tile for all columns: the interpreter counts programs.
WIDE = TileConfig(block_n=256, block_k=128)
BOUNDARIES = [
    "sorted_pairs",
    "expert_ids",
    "padded",
    "x_codes",
    "x_scales",
    "gate_up_acc",
    "gate_up",
    "activated",
    "activated_codes",
    "activated_scales",
    "weighted_acc",
    "weighted",
    "out",
]
RUNS = [load(one.target) for one in MOE_EXPERTS_FP8.implementations]
NAMES = [one.name for one in MOE_EXPERTS_FP8.implementations]


def inputs_at(case: str = "random", **axes: int) -> Tensors:
    shape = {"hidden": 160, "intermediate": 72, "experts": 2, "top_k": 2, "tokens": 5}
    shape |= {"block_n": 128, "block_k": 128} | axes
    point = tuple(sorted(shape.items()))
    workload = Workload(op="moe_experts_fp8", axes=point, dtype="bfloat16", case=case)
    return {name: tensor.clone() for name, tensor in made(workload).items()}


@cache
def made(workload: Workload) -> Tensors:
    return MOE_EXPERTS_FP8.make_inputs(workload, 0)


def whole(inputs: Tensors, weights: str) -> Tensors:
    """The same weights with a scale for each of their rows, or for each expert."""
    changed = dict(inputs)
    for name in ("gate_up", "down"):
        exact = exact_weights(inputs[f"w_{name}"], inputs[f"{name}_scales"], Scaling())
        axes = (2,) if weights == "channel" else (1, 2)
        scales = (exact.abs().amax(axes, keepdim=True) / E4M3_MAX).float()
        changed[f"w_{name}"] = (exact / scales).float().to(torch.float8_e4m3fn)
        changed[f"{name}_scales"] = scales
    return changed


def tapped(
    run_one: Any, inputs: Tensors, *, config: TileConfig = WIDE, **constants: Any
) -> Tensors:
    seen: Tensors = {}
    tap = partial(seen.__setitem__)
    run_one(**inputs, swiglu_limit=LIMIT, config=config, **constants, tap=tap)
    return seen


def assert_same(expected: Tensors, actual: Tensors, boundaries: list[str] = BOUNDARIES) -> None:
    assert list(actual) == boundaries
    kept = {name: expected[name] for name in boundaries}
    result = compare_tensors("stages", kept, actual)
    assert result.equal, result.mismatches
    assert result.compared == len(boundaries)


UNFUSED = [name for name in BOUNDARIES if name != "activated"]


@pytest.mark.parametrize(
    ("case", "constants", "config"),
    [
        ("random", {}, FP8_CONFIG),
        (
            "padding",
            {"block_k": 64, "scale_rule": "ue8m0"},
            TileConfig(block_m=32, block_n=256, block_k=64),
        ),
    ],
    ids=["default", "128x64"],
)
def test_no_bit_differs_at_any_boundary(
    case: str, constants: dict[str, Any], config: TileConfig
) -> None:
    inputs = inputs_at(case, block_k=constants.get("block_k", 128))
    expected = tapped(experts_fp8_tile, inputs, **constants, config=config)
    assert_same(expected, tapped(experts_fp8_triton, inputs, **constants, config=config))
    fused = tapped(experts_fp8_fused, inputs, **constants, config=config)
    assert_same(expected, fused, UNFUSED)


@pytest.mark.parametrize(("scheme", "weights"), [("token", "channel"), ("tensor", "tensor")])
def test_no_bit_differs_with_scales_of_whole_rows(scheme: str, weights: str) -> None:
    inputs = whole(inputs_at(), weights)
    expected = tapped(experts_fp8_tile, inputs, scheme=scheme)
    assert_same(expected, tapped(experts_fp8_triton, inputs, scheme=scheme))
    rows = 1 if scheme == "tensor" else 10
    assert expected["activated_scales"].shape == (rows, 1)
    # A scale of the whole tensor cannot be fused, and has the same bits all the same.
    fused = tapped(experts_fp8_fused, inputs, scheme=scheme)
    assert_same(expected, fused, BOUNDARIES if scheme == "tensor" else UNFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("block_k", [32, 64, 128])
@pytest.mark.parametrize("intermediate", [192, 448, 704])
def test_no_bit_differs_at_the_sizes_of_shards(intermediate: int, block_k: int) -> None:
    inputs = inputs_at("padding", hidden=256, intermediate=intermediate, tokens=17)
    config = TileConfig(block_k=block_k)
    expected = tapped(experts_fp8_tile, inputs, config=config)
    assert_same(expected, tapped(experts_fp8_triton, inputs, config=config))
    assert_same(expected, tapped(experts_fp8_fused, inputs, config=config), UNFUSED)


def test_the_quantised_rows_are_those_of_the_quantiser() -> None:
    inputs = inputs_at()
    seen = tapped(experts_fp8_triton, inputs)
    for name, rows in (("x", inputs["x"]), ("activated", seen["activated"])):
        codes, scales = moe_quant(
            x=rows, scheme="group", group=128, scale_rule="amax", rounding="divide"
        )
        expected = {"codes": codes, "scales": scales}
        actual = {part: seen[f"{name}_{part}"] for part in expected}
        assert compare_tensors("b3", expected, actual).equal


@pytest.mark.parametrize(
    ("constants", "first"),
    [
        ({"config": TileConfig(block_k=64)}, "gate_up_acc"),
        ({"scale_rule": "ue8m0"}, "x_codes"),
    ],
    ids=["interval", "scales"],
)
def test_the_first_boundary_that_differs_is_the_first_wrong_one(
    constants: dict[str, Any], first: str
) -> None:
    inputs = inputs_at()
    expected = tapped(experts_fp8_tile, inputs)
    mismatches = compare_tensors(
        "stages", expected, tapped(experts_fp8_triton, inputs, **constants)
    ).mismatches
    assert mismatches[0].tensor == first


def test_a_tap_changes_no_bit_and_dropped_rows_are_zeros() -> None:
    inputs = inputs_at("padding")
    for one in (experts_fp8_tile, experts_fp8_fused):
        out = one(**inputs, swiglu_limit=LIMIT, config=WIDE)
        seen = tapped(one, inputs)
        assert compare_tensors("out", {"out": seen["out"]}, {"out": out}).equal
        ids = inputs["topk_ids"].reshape(-1)
        dropped = (ids < 0) | (ids >= 2)
        assert dropped.any()
        for name in ("gate_up_acc", "gate_up", "activated_codes", "weighted_acc", "weighted"):
            assert not seen[name][dropped].view(torch.uint8).any()


def test_a_rank_of_an_expert_parallel_layer_computes_its_own_experts() -> None:
    inputs = inputs_at("padding", experts=4)
    mine = [2, 0]
    expert_map = torch.tensor([1, -1, 0, -1], dtype=torch.int32)
    weights = {name: inputs[name][mine] for name in inputs if inputs[name].dim() == 3}
    settings = Settings(act={"swiglu_limit": LIMIT}, scaling=Scaling(), config=FP8_CONFIG)
    elsewhere = torch.full((6,), -1)
    ids = torch.cat([expert_map, elsewhere.int()])[inputs["topk_ids"]].long()
    expected = experts_fp8_tile(**inputs | weights | {"topk_ids": ids}, swiglu_limit=LIMIT)
    for stages in (TILE, TRITON):
        on_rank = run(stages, inputs | weights | {"expert_map": expert_map}, settings)
        assert torch.equal(on_rank, expected)


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["group", "token", "tensor"])
def test_the_result_lies_within_its_bound(scheme: str) -> None:
    inputs = inputs_at("padding", tokens=17, hidden=160)
    if scheme != "group":
        inputs = whole(inputs, "channel")
    scaling = Scaling(scheme=scheme)
    out = experts_fp8_tile(**inputs, swiglu_limit=LIMIT, scheme=scheme)
    value, bound = experts_fp8_float64(**inputs, swiglu_limit=LIMIT, scaling=scaling)
    assert ((out.double() - value).abs() <= bound).all()
    assert bound.mean() < 0.6 * value.abs().mean()
    # Scales of another expert, and the weights of one, are refused.
    for name in ("gate_up_scales", "topk_ids"):
        wrong = inputs | {name: inputs[name].roll(1, 0)}
        other = experts_fp8_tile(**wrong, swiglu_limit=LIMIT, scheme=scheme)
        assert ((other.double() - value).abs() > bound).any(), name


def test_the_dense_loop_is_the_value_of_the_oracle() -> None:
    """Float64 without tiles, over what the operands are worth; in float32 six digits of it."""
    inputs = inputs_at("padding")
    scaling = Scaling()
    codes, scales = moe_quant(x=inputs["x"], **scaling.quantiser)
    given = {
        "x": exact_rows(codes, scales, scaling),
        "topk_ids": inputs["topk_ids"],
        "topk_weights": inputs["topk_weights"],
        "w_gate_up": exact_weights(inputs["w_gate_up"], inputs["gate_up_scales"], scaling),
        "w_down": exact_weights(inputs["w_down"], inputs["down_scales"], scaling),
        "activation": Activation(swiglu_limit=LIMIT),
    }
    value, _ = experts_fp8_float64(**inputs, swiglu_limit=LIMIT, scaling=scaling)
    dense = experts_dense(**given)
    assert (dense - value).abs().max() < 1e-12 * value.abs().max()
    single = experts_dense(**given, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert 0 < (single - value).abs().max() < 1e-5 * value.abs().max()
    out = experts_fp8_tile(**inputs, swiglu_limit=LIMIT)
    error = (out.double() - value).square().mean().sqrt() / value.square().mean().sqrt()
    # The quantised activation has 3 stored bits: 2 to 3 in 100.
    assert 0.01 < error < 0.04
    with pytest.raises(UsageError, match="float32 or float64 to compute in"):
        experts_dense(**given, dtype=torch.bfloat16)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", RUNS, ids=NAMES)
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda t: t.float(), "expected x in bfloat16, got float32"),
        ("w_down", lambda t: t.view(torch.uint8), "expected w_down in float8_e4m3fn, got uint8"),
        ("gate_up_scales", lambda t: t.bfloat16(), "expected gate_up_scales in float32"),
        ("down_scales", lambda t: t[:, :1], r"down_scales of \[2, 2, 1\] under scheme block"),
        ("topk_ids", lambda t: t + 9, r"topk_ids: expected 0 to 1 .*got 9 to 10"),
        ("scheme", lambda _: "static", "group, token, tensor, got 'static'"),
        ("scheme", lambda _: "token", r"gate_up_scales of \[2, 144, 1\] or \[2, 1, 1\]"),
        ("rounding", lambda _: "nearest", "rounding of divide, reciprocal"),
        ("block_n", lambda _: 96, "block_n of 64, 128, got 96"),
        ("swiglu_limit", lambda _: True, "swiglu_limit to be a positive number"),
    ],
)
def test_wrong_arguments_are_named(one: Any, name: str, change: Any, message: str) -> None:
    arguments: dict[str, Any] = {**inputs_at(), **dict(MOE_EXPERTS_FP8.constants)}
    with pytest.raises(UsageError, match=message):
        one(**(arguments | {name: change(arguments[name])}))


def test_stages_without_float8_are_refused() -> None:
    inputs = inputs_at()
    settings = Settings(act={"swiglu_limit": LIMIT}, scaling=Scaling())
    for stages, message in (
        (replace(TILE, quant=None), "stages with a quantiser for float8 weights"),
        (replace(TRITON, gemm_fp8=None), "stages with a float8 matmul"),
    ):
        with pytest.raises(UsageError, match=message):
            run(stages, inputs, settings)
