"""moe_gemm_fp8: the Triton kernel against the tile-order reference, fixtures, bounds, refusals."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.loading import load
from bitgate.kernels.moe import gemm_fp8_triton
from bitgate.kernels.moe.contract import TileConfig, promotion_interval
from bitgate.kernels.moe.gemm_fp8 import ACCUMULATE, MOE_GEMM_FP8, ScaledMatmul
from bitgate.kernels.moe.gemm_fp8_reference import grouped_float64
from bitgate.kernels.moe.gemm_fp8_reference import moe_gemm_fp8 as by_tile
from bitgate.kernels.moe.gemm_fp8_triton import moe_gemm_fp8 as by_triton
from bitgate.kernels.moe.quant_reference import moe_quant
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

CONSTANTS = dict(MOE_GEMM_FP8.constants)
RUNS = [load(one.target) for one in MOE_GEMM_FP8.implementations]
NAMES = [one.name for one in MOE_GEMM_FP8.implementations]
CASES = {case.name: case for case in MOE_GEMM_FP8.integer_cases()}


def inputs_at(case: str = "random", *, index: int = 0, **axes: int) -> Tensors:
    shape = {"experts": 2, "top_k": 2, "tokens": 9, "k": 192, "n": 80}
    shape |= {"group_n": 128, "group_k": 128} | axes
    point = tuple(sorted(shape.items()))
    workload = Workload(op="moe_gemm_fp8", axes=point, dtype="float8_e4m3fn", case=case)
    return {name: tensor.clone() for name, tensor in made(workload, index).items()}


@cache
def made(workload: Workload, index: int) -> Tensors:
    return MOE_GEMM_FP8.make_inputs(workload, index)


def whole(inputs: Tensors, *, a: str = "token", w: str = "channel") -> Tensors:
    """The same codes with scales of whole rows or operands, some of them negative powers."""
    rows = len(inputs["a"]) if a == "token" else 1
    experts, n, _ = inputs["w"].shape
    columns = n if w == "channel" else 1
    a_scales = torch.arange(3, 3 + rows).float().sqrt()[:, None] / 64
    w_scales = torch.arange(5, 5 + experts * columns).float().sqrt().view(experts, columns, 1) / 512
    return inputs | {"a_scales": a_scales, "w_scales": w_scales}


def both(inputs: Tensors, **constants: Any) -> tuple[Tensors, Tensors]:
    chosen = CONSTANTS | constants
    expected, actual = by_tile(**inputs, **chosen), by_triton(**inputs, **chosen)
    return MOE_GEMM_FP8.named_outputs(expected), MOE_GEMM_FP8.named_outputs(actual)


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("gemm", expected, actual)
    assert result.equal, result.mismatches
    assert result.compared == 2


def differing(left: torch.Tensor, right: torch.Tensor) -> float:
    """The share of the elements whose bits differ."""
    kind = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[left.dtype]
    return float((left.view(kind) != right.view(kind)).double().mean())


def call(inputs: Tensors, **constants: Any) -> ScaledMatmul:
    chosen = CONSTANTS | constants
    blocks = {name: chosen.pop(name) for name in ("block_m", "block_n", "block_k")}
    return ScaledMatmul(**inputs, **chosen, config=TileConfig(**blocks))


@pytest.mark.parametrize("workload", MOE_GEMM_FP8.suites["default"], ids=lambda one: one.key)
def test_samples_can_tell_scales_apart(workload: Workload) -> None:
    inputs = MOE_GEMM_FP8.make_inputs(workload, 0)
    for name in ("a_scales", "w_scales"):
        assert len(inputs[name].unique()) > inputs[name].numel() // 3


# --- the tile order ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "block_k"),
    [(192, 32), (448, 64), (704, 128), (2880, 128), pytest.param(2880, 64, marks=pytest.mark.slow)],
)
def test_no_bit_differs_from_the_tile_order(k: int, block_k: int) -> None:
    inputs = inputs_at(k=k)
    expected, actual = both(inputs, block_k=block_k)
    assert_same(expected, actual)
    # The sums were rounded on the way: exact ones would be the same in every order.
    exact = grouped_float64(call(inputs, block_k=block_k))["acc"][0]
    assert (expected["acc"].double() != exact).double().mean() > 0.2


@pytest.mark.parametrize(
    ("group_n", "group_k", "block_n", "block_k"),
    [(128, 64, 64, 128), (64, 128, 256, 128), (64, 64, 256, 32)],
)
def test_no_bit_differs_where_tiles_and_groups_do_not_meet(
    group_n: int, group_k: int, block_n: int, block_k: int
) -> None:
    """Tiles longer than a group, tiles over two groups of columns, ragged last groups."""
    inputs = inputs_at(group_n=group_n, group_k=group_k, n=200, k=200, tokens=5)
    groups = {"group_n": group_n, "group_k": group_k, "block_n": block_n, "block_k": block_k}
    assert_same(*both(inputs, **groups))


@pytest.mark.parametrize(
    ("a", "w"), [("token", "channel"), ("token", "tensor"), ("tensor", "channel")]
)
def test_no_bit_differs_with_scales_of_whole_rows(a: str, w: str) -> None:
    inputs = whole(inputs_at("padding", k=200, n=72), a=a, w=w)
    expected, actual = both(inputs, scheme="whole")
    assert_same(expected, actual)
    # The accumulator is the sum of the codes alone.
    plain = inputs | {"a_scales": torch.ones(1, 1), "w_scales": torch.ones(2, 1, 1)}
    assert differing(expected["acc"], by_tile(**plain, **CONSTANTS | {"scheme": "whole"})[1]) == 0


@pytest.mark.parametrize("accumulate", ACCUMULATE[1:])
def test_every_accumulate_form_is_another_order(accumulate: str) -> None:
    inputs = inputs_at(k=320, n=128)
    expected, actual = both(inputs, accumulate=accumulate)
    assert_same(expected, actual)
    ours = by_tile(**inputs, **CONSTANTS)[1]
    assert 0.3 < differing(expected["acc"], ours) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("apply_weights", [0, 1])
@pytest.mark.parametrize("block_k", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("block_n", [16, 64, 256])
@pytest.mark.parametrize("groups", [(128, 128), (128, 64), (64, 128)])
def test_no_bit_differs_on_a_grid(
    groups: tuple[int, int], block_n: int, block_k: int, apply_weights: int
) -> None:
    group_n, group_k = groups
    inputs = inputs_at("padding", group_n=group_n, group_k=group_k, k=300, n=150, tokens=40)
    chosen = {"group_n": group_n, "group_k": group_k, "block_n": block_n, "block_k": block_k}
    assert_same(*both(inputs, **chosen, apply_weights=apply_weights))


def test_a_wrong_order_of_the_groups_is_found_by_the_accumulator() -> None:
    """Planted: the kernel is made to sum the groups of K from the last to the first."""
    inputs = inputs_at(k=640, n=128)
    backwards = {
        name: torch.cat(inputs[name].split(128, dim=-1)[::-1], dim=-1).contiguous()
        for name in ("a", "w")
    } | {name: inputs[name].flip(-1).contiguous() for name in ("a_scales", "w_scales")}
    constants = CONSTANTS | {"block_k": 128}
    expected = MOE_GEMM_FP8.named_outputs(by_tile(**inputs, **constants))
    wrong = MOE_GEMM_FP8.named_outputs(by_triton(**(inputs | backwards), **constants))
    assert differing(expected["acc"], wrong["acc"]) > 0.4
    assert differing(expected["out"], wrong["out"]) < 0.01
    result = compare_tensors("gemm", expected, wrong)
    assert "acc" in {mismatch.tensor for mismatch in result.mismatches}


def test_the_promotion_interval_belongs_to_the_order() -> None:
    inputs = inputs_at(tokens=24, k=512, n=64)
    one, other = (by_tile(**inputs, **(CONSTANTS | {"block_k": size})) for size in (64, 128))
    assert differing(one[1], other[1]) > 0.3
    assert differing(one[0], other[0]) < 0.01


@pytest.mark.parametrize(
    ("block_k", "block", "expected"),
    [(128, (128, 128), 128), (128, (128, 64), 64), (256, (128, 128), 128), (32, (128, 64), 32)],
)
def test_tiles_are_clamped_to_the_block_shape_as_in_vllm(
    block_k: int, block: tuple[int, int], expected: int
) -> None:
    assert promotion_interval(block_k, *block) == expected


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_a_longer_tile_than_a_group_has_the_bits_of_the_clamped_one(run: Any) -> None:
    inputs = inputs_at(group_k=64, k=256)
    long, short = (run(**inputs, **CONSTANTS | {"group_k": 64, "block_k": n}) for n in (256, 64))
    assert differing(long[1], short[1]) == 0


def test_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *_, **options: seen.append({"grid": grid, **options})

    monkeypatch.setattr(gemm_fp8_triton, "gemm_fp8_kernel", Recorder())
    config = TileConfig(block_n=32, block_k=256, group_m=4, num_warps=8, num_stages=2)
    grouped = replace(call(inputs_at(n=96), accumulate="mul-fma"), config=config)
    gemm_fp8_triton.grouped(grouped, grouped.new(torch.bfloat16), None)
    assert seen == [
        {
            "grid": (3 * len(grouped.expert_ids),),
            "BLOCK_M": 16,
            "BLOCK_N": 32,
            "BLOCK_K": 128,
            "GROUP_M": 4,
            "PROMOTE": True,
            "ACCUMULATE": 1,
            "APPLY_WEIGHTS": 1,
            "BIAS": True,
            "STORE_ACC": False,
            "num_warps": 8,
            "num_stages": 2,
            "enable_fp_fusion": False,
        }
    ]


def test_a_nan_code_or_scale_reaches_its_own_rows_alone() -> None:
    inputs = inputs_at(k=192)
    inputs["a"].view(torch.uint8)[4, 150] = 0xFF
    inputs["a_scales"][6, 0] = float("nan")
    expected, actual = both(inputs)
    assert_same(expected, actual)
    wrong = [8, 9, 12, 13]
    assert set(actual["acc"][wrong].view(torch.int32).flatten().tolist()) == {0x7FC00000}
    assert not actual["acc"][[pair for pair in range(18) if pair not in wrong]].isnan().any()


def test_a_fused_multiply_add_rounds_once() -> None:
    """arithmetic.fma against rational numbers, on ties and near them."""
    from fractions import Fraction

    base = torch.arange(1, 400).float()
    x, y = 1 + base * 2.0**-12, 1 + base.flip(0) * 2.0**-12
    for z in (base * 2.0**-24, -x * y, -x, x * 2.0**30, -(x * y) + 2.0**-30):
        fused = arithmetic.fma(x, y, z)
        for one, a, b, c in zip(fused.tolist(), x.tolist(), y.tolist(), z.tolist(), strict=True):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            near = torch.tensor([one]).float()
            for other in (float("-inf"), float("inf")):
                neighbour = torch.nextafter(near, torch.tensor(other)).item()
                assert abs(Fraction(one) - exact) <= abs(Fraction(neighbour) - exact)
    twice = x * y - x
    assert (arithmetic.fma(x, y, -x) != twice).any()


# --- the float64 oracle --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["block", "whole"])
@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_both_results_lie_within_their_bounds(run: Any, scheme: str) -> None:
    inputs = inputs_at("padding", k=200)
    if scheme == "whole":
        inputs = whole(inputs)
    outputs = MOE_GEMM_FP8.named_outputs(run(**inputs, **CONSTANTS | {"scheme": scheme}))
    for name, (value, bound) in grouped_float64(call(inputs, scheme=scheme)).items():
        assert ((outputs[name].double() - value).abs() <= bound).all()
        # No vacuous bound: an accumulator is known to 1 in 1000, a result to a bfloat16.
        assert bound.sum() < {"acc": 1e-3, "out": 6e-3}[name] * value.abs().sum()


@pytest.mark.parametrize("name", ["a_scales", "w_scales", "weights"])
def test_the_bound_refuses_values_that_are_off(name: str) -> None:
    inputs = inputs_at(k=200, tokens=20)
    wrong = inputs | {name: inputs[name] * 1.03125}
    out, _ = by_tile(**wrong, **CONSTANTS)
    value, bound = grouped_float64(call(inputs))["out"]
    assert ((out.double() - value).abs() > bound).double().mean() > 0.3


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a", lambda t: t.view(torch.int8), "expected a in float8_e4m3fn, got int8"),
        ("a", lambda t: t.view(torch.float8_e5m2), "expected a in float8_e4m3fn, got float8_e5m2"),
        ("a_scales", lambda t: t.bfloat16(), "expected a_scales in float32, got bfloat16"),
        ("a_scales", lambda t: t[:, :1], r"a_scales of \[9, 2\] under scheme block .*\[9, 1\]"),
        ("w_scales", lambda t: t.bfloat16(), "expected w_scales in float32, got bfloat16"),
        ("w_scales", lambda t: t[..., :1], r"w_scales of \[2, 1, 2\] under scheme block"),
        ("w_scales", lambda t: t[:1], "w_scales: expected axis experts of 2, got 1"),
        ("w", lambda t: t[:, :, :-1], "w: expected axis k of 192, got 191"),
        ("scheme", lambda _: "tensor", "scheme of block, whole, got 'tensor'"),
        ("scheme", lambda _: "whole", r"a_scales of \[9, 1\] or \[1, 1\] under scheme whole"),
        ("accumulate", lambda _: "fma", "accumulate of mul-mul-add, mul-fma, scale-product"),
        ("group_k", lambda _: 96, "group_k to be a power of two from 16 to 1024, got 96"),
        ("group_n", lambda _: True, "group_n to be a power of two .* got True"),
        ("block_n", lambda _: 96, "block_n to be a power of two from 16 to 1024, got 96"),
        ("top_k", lambda _: 0, "top_k of at least 1, an int, got 0"),
    ],
)
def test_wrong_arguments_are_named(run: Any, name: str, change: Any, message: str) -> None:
    arguments = {**inputs_at(), **CONSTANTS}
    with pytest.raises(UsageError, match=message):
        run(**(arguments | {name: change(arguments[name])}))


def test_inputs_may_lie_apart_and_outputs_are_filled_whole() -> None:
    inputs = inputs_at("padding")
    expected = by_tile(**inputs, **CONSTANTS)
    apart = {}
    for name, value in inputs.items():
        wide = value.new_zeros(*value.shape[:-1], value.shape[-1] + 16)
        apart[name] = wide[..., : value.shape[-1]].copy_(value)
    out, acc = (torch.full_like(value, float("nan")) for value in expected)
    returned = by_triton(**apart, **CONSTANTS, out=out, acc=acc)
    assert returned[0] is out
    assert returned[1] is acc
    assert_same(*(MOE_GEMM_FP8.named_outputs(one) for one in (expected, returned)))


def test_outputs_that_do_not_fit_are_refused() -> None:
    inputs = inputs_at()
    for outputs, message in (
        ({"out": torch.zeros(18, 79).bfloat16()}, "out: expected axis n of 80, got 79"),
        ({"acc": torch.zeros(18, 160)[:, ::2]}, "acc to be contiguous"),
    ):
        with pytest.raises(UsageError, match=message):
            by_triton(**inputs, **CONSTANTS, **outputs)


def test_rows_may_be_none() -> None:
    inputs = inputs_at()
    codes, scales = moe_quant(
        x=torch.zeros(0, 192).bfloat16(),
        scheme="group",
        group=128,
        scale_rule="amax",
        rounding="divide",
    )
    empty = inputs | {"a": codes, "a_scales": scales, "weights": torch.zeros(0)}
    empty |= {"padded": torch.zeros(1, dtype=torch.int32)}
    expected, actual = both(empty)
    assert [one.shape for one in (*expected.values(), *actual.values())] == [(0, 80)] * 4
