"""The proof of FP8: stage by stage exact, bounded, and able to fail.

It runs where the tests run: interpreted on a CPU, or, with TRITON_INTERPRET=0 on a node with a GPU
or an XPU, on that. Nothing below knows which. Every check is a name, and every control is a defect
that was seen in an engine or a profiler, with the checks that must catch it and those that are
blind to it:

    codes, scales    the quantiser, bit for bit, against the order in plain torch
    acc, out         the matmul at one pinned tile and from identical codes and scales, bit for bit:
                     against parts that one launch each sums without scales, promoted by torch on
                     the same device; on a CPU against the tile-order reference, too
    fixture          integers that any order sums exactly
    bound            the proved bound around the float64 value of the dequantised operands
    rms              the error's root mean square: what a bound that holds for every order allows
                     is far more than what an order of ours makes
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.interpreter import interpreting
from bitgate.kernels.moe import gemm_fp8_triton, quant_reference, quant_triton
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.experts_data import spread
from bitgate.kernels.moe.gemm_fp8 import MOE_GEMM_FP8, ScaledMatmul
from bitgate.kernels.moe.gemm_fp8_data import quantised_rows, quantised_weights, uneven
from bitgate.kernels.moe.gemm_fp8_reference import HOPPER_FP8, grouped_float64
from bitgate.kernels.moe.gemm_fp8_reference import moe_gemm_fp8 as by_tile
from bitgate.kernels.moe.quant_data import make_inputs as quant_inputs
from bitgate.kernels.spec import Tensors
from bitgate.records.types import Workload

TOKENS, K, N, EXPERTS, TOP_K = 12, 320, 160, 2, 2
# About twice what a bit-accurate model of Hopper's instructions (microsoft/MMA-Sim, c785138) gives
# over K = 256: 8e-5 with a promotion every 64, 1.2e-4 every 128, 2.7e-4 without any.
RMS_PROMOTED, RMS_UNPROMOTED = 2e-4, 4e-4
EXACT: Final = ("codes", "scales", "acc", "out")


@pytest.fixture(scope="module")
def device() -> str:
    """The CPU where Triton interprets, else the accelerator: never silently another one."""
    if interpreting():
        return "cpu"
    found = torch.accelerator.current_accelerator()
    assert found is not None, "Triton compiles here, and torch finds no device for it"
    return found.type


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One pinned point: what is quantised, what is multiplied, and at which tile."""

    x: Tensor
    tensors: Tensors
    ids: Tensor
    tile: TileConfig
    group_k: int

    @property
    def call(self) -> ScaledMatmul:
        return ScaledMatmul(
            **self.tensors, top_k=TOP_K, apply_weights=1, config=self.tile, group_k=self.group_k
        )


@cache
def case_on(device: str, *, block_m: int = 16, block_k: int = 128, group_k: int = 128) -> Case:
    stream = IntegerStream(20)
    x = uneven(stream, spread(stream, (TOKENS, K), scale_log2=6), 1, group_k)
    w = uneven(stream, spread(stream, (EXPERTS, N, K), scale_log2=8), 128, group_k)
    ids = torch.from_numpy(stream.integers((TOKENS * TOP_K,), 0, EXPERTS - 1))
    codes, scales = quantised_rows(x, group_k)
    w_codes, w_scales = quantised_weights(w, 128, group_k)
    tensors = {
        "a": codes,
        "a_scales": scales,
        "w": w_codes,
        "w_scales": w_scales,
        **aligned(ids.tolist(), range(EXPERTS), block_m),
        "weights": torch.from_numpy(stream.integers((len(ids),), 1, 1 << 16) * 2.0**-16).float(),
        "bias": torch.from_numpy(stream.integers((EXPERTS, N), -999, 999) * 2.0**-10).float(),
    }
    return Case(
        x=x.to(device),
        tensors={name: tensor.to(device) for name, tensor in tensors.items()},
        ids=ids.to(device),
        tile=TileConfig(block_m=block_m, block_n=256, block_k=block_k),
        group_k=group_k,
    )


# --- the two stages, and what they must be --------------------------------------------------------


def quantised(x: Tensor, group_k: int, rounding: str = "divide") -> Tensors:
    codes, scales = quant_triton.moe_quant(
        x=x, scheme="group", group=group_k, scale_rule="amax", rounding=rounding
    )
    return {"codes": codes, "scales": scales}


def multiplied(call: ScaledMatmul) -> Tensors:
    out, acc = call.new(torch.bfloat16), call.new(torch.float32)
    gemm_fp8_triton.grouped(call, out, acc)
    return {"acc": acc, "out": out}


def promoted(case: Case) -> Tensors:
    """The matmul by hand: a launch for the sum of each step, everything else by torch."""
    call, ids = case.call, case.ids
    step, ones = call.step, torch.ones(1, 1, 1, device=ids.device)
    row = torch.arange(len(ids), device=ids.device) // TOP_K
    acc = call.new(torch.float32)
    for start in range(0, K, step):
        part = slice(start, start + step)
        unscaled = replace(
            call,
            a=call.a[:, part],
            w=call.w[:, :, part],
            a_scales=ones[0],
            w_scales=ones.expand(EXPERTS, 1, 1),
            scheme="whole",
            config=replace(call.config, block_k=step),
        )
        group = start // call.group_k
        a = call.a_scales[row, group][:, None]
        b = call.w_scales[ids, :, group].repeat_interleave(call.group_n, 1)[:, :N]
        acc = acc + (multiplied(unscaled)["acc"] * a) * b
    assert call.bias is not None
    out = arithmetic.round_bf16((acc + call.bias[ids]) * call.weights[:, None])
    return {"acc": acc, "out": out}


@cache
def truth(case: Case) -> Tensors:
    codes, scales = quant_reference.moe_quant(
        x=case.x, scheme="group", group=case.group_k, scale_rule="amax", rounding="divide"
    )
    return {"codes": codes, "scales": scales, **promoted(case)}


def bits(tensor: Tensor) -> Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def share(left: Tensor, right: Tensor) -> float:
    """Of all elements, those whose bits differ; there must be elements, and finite ones."""
    assert left.shape == right.shape
    assert left.numel()
    return float((bits(left) != bits(right)).double().mean())


def relative_rms(actual: Tensor, exact: Tensor) -> float:
    error = actual.double().cpu() - exact
    return float((error.square().sum() / exact.square().sum()).sqrt())


@cache
def float64(case: Case) -> dict[str, tuple[Tensor, Tensor]]:
    call = case.call
    tensors = {name: tensor.cpu() for name, tensor in call.inputs.items()}
    # An accelerator's own float8 instructions keep fewer bits than float32.
    unit = 2.0**-24 if interpreting() else HOPPER_FP8
    return grouped_float64(replace(call, **tensors), unit)


def failed(case: Case, outputs: Tensors) -> set[str]:
    """The names of the checks that these outputs fail."""
    expected, exact = truth(case), float64(case)
    found = {name for name in EXACT if share(outputs[name], expected[name]) > 0}
    for name in ("acc", "out"):
        value, bound = exact[name]
        if not bool(((outputs[name].double().cpu() - value).abs() <= bound).all()):
            found.add("bound")
    if not relative_rms(outputs["acc"], exact["acc"][0]) <= RMS_PROMOTED:
        found.add("rms")
    return found


def honest(case: Case) -> Tensors:
    return {**quantised(case.x, case.group_k), **multiplied(case.call)}


# --- the proof ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block_m", "block_k", "group_k"), [(16, 128, 128), (64, 64, 128), (64, 128, 64)]
)
def test_every_check_passes(device: str, block_m: int, block_k: int, group_k: int) -> None:
    case = case_on(device, block_m=block_m, block_k=block_k, group_k=group_k)
    outputs = honest(case)
    assert failed(case, outputs) == set()
    assert case.tensors["padded"].item() < len(case.tensors["sorted_pairs"])
    if device == "cpu":
        tile = {name: getattr(case.tile, name) for name in ("block_m", "block_n", "block_k")}
        by_hand = by_tile(**case.tensors, **tile, top_k=TOP_K, apply_weights=1, group_k=group_k)
        assert share(outputs["out"], by_hand[0]) == share(outputs["acc"], by_hand[1]) == 0


@pytest.mark.parametrize("group", [64, 128])
def test_the_quantiser_is_exact_on_ties_powers_floors_and_subnormals(
    device: str, group: int
) -> None:
    axes = (("group", group), ("k", 704), ("rows", 24))
    point = Workload(op="moe_quant", axes=axes, dtype="bfloat16", case="edges")
    x = quant_inputs(point, 0)["x"]
    x[0, 5], x[1, 7], x[2, 200] = float("inf"), float("-inf"), float("nan")
    x[3], x[4] = 0, 448.0
    x = x.to(device)
    for rounding in ("divide", "reciprocal"):
        codes, scales = quant_reference.moe_quant(
            x=x, scheme="group", group=group, scale_rule="amax", rounding=rounding
        )
        actual = quantised(x, group, rounding)
        assert share(actual["codes"], codes) == share(actual["scales"], scales) == 0


def test_scales_of_whole_rows_are_exact_in_the_epilogue_and_close_without_promotion(
    device: str,
) -> None:
    case = case_on(device, block_m=64)
    tensors = dict(case.tensors)
    generator = torch.arange(1, TOKENS + 1, device=device)
    tensors["a_scales"] = (generator.float().sqrt() / 64)[:, None]
    columns = torch.arange(1, EXPERTS * N + 1, device=device)
    tensors["w_scales"] = (columns.float().sqrt() / 512).view(EXPERTS, N, 1)
    whole = replace(case, tensors=tensors)
    call = ScaledMatmul(**tensors, top_k=TOP_K, apply_weights=1, config=whole.tile, scheme="whole")
    actual = multiplied(call)
    a = tensors["a_scales"].repeat_interleave(TOP_K, 0)
    total = (actual["acc"] * a) * tensors["w_scales"][case.ids, :, 0]
    out = (total + tensors["bias"][case.ids]) * tensors["weights"][:, None]
    assert share(actual["out"], arithmetic.round_bf16(out)) == 0
    on_cpu = replace(call, **{name: tensor.cpu() for name, tensor in call.inputs.items()})
    exact = grouped_float64(on_cpu)["acc"][0]
    assert relative_rms(actual["acc"], exact) <= RMS_UNPROMOTED


def fixtures_caught(device: str, names: set[str], change: Callable[[Tensors], Tensors]) -> set[str]:
    caught = set()
    for one in MOE_GEMM_FP8.integer_cases():
        given = {name: tensor.to(device) for name, tensor in one.inputs.items()}
        if names and one.name not in names:
            continue
        outputs = gemm_fp8_triton.moe_gemm_fp8(**given | change(given), **one.constants)
        named = MOE_GEMM_FP8.named_outputs(outputs)
        if any(share(named[name].cpu(), value) for name, value in one.expected.items()):
            caught.add(one.name)
    return caught


def other_scales(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda given: {name: change(given[name])}


def test_integer_fixtures_hold_and_catch_a_wrong_scale(device: str) -> None:
    assert fixtures_caught(device, set(), lambda _: {}) == set()
    some = {"narrow-groups"}
    for name in ("a_scales", "w_scales"):
        for change in (swapped, stride_0):
            assert fixtures_caught(device, some, other_scales(name, change)) == some


# --- the controls ---------------------------------------------------------------------------------


def swapped(scales: Tensor) -> Tensor:
    """Two neighbouring groups' scales exchanged."""
    return torch.cat([scales[..., 1:2], scales[..., :1], scales[..., 2:]], dim=-1)


def stride_0(scales: Tensor) -> Tensor:
    """The first group's scale for all groups."""
    return scales[..., :1].expand_as(scales)


def with_scales(case: Case, name: str, change: Callable[[Tensor], Tensor]) -> Tensors:
    wrong = replace(case, tensors=case.tensors | {name: change(case.tensors[name])})
    return honest(case) | multiplied(wrong.call)


@pytest.mark.parametrize(("pinned", "other"), [(64, 128), (128, 64)])
def test_control_another_promotion_interval(device: str, pinned: int, other: int) -> None:
    """A profiler that looks its tile up under another dtype. The accumulator alone is sure to."""
    case = case_on(device, block_k=pinned)
    wrong = replace(case, tile=replace(case.tile, block_k=other))
    outputs = honest(case) | multiplied(wrong.call)
    assert failed(case, outputs) - {"out"} == {"acc"}
    expected = truth(case)
    assert share(outputs["acc"], expected["acc"]) > 0.3
    assert share(outputs["out"], expected["out"]) < 0.005


def test_control_fp16_as_compute_type(device: str) -> None:
    """A compute type of float16 into buffers of bfloat16: rounded twice, and infinite at 65504."""
    case = case_on(device)
    expected = truth(case)

    def twice(acc: Tensor, bias: Tensor) -> Tensor:
        total = (acc + bias[case.ids]) * case.tensors["weights"][:, None]
        return total.to(torch.float16).to(torch.bfloat16)

    wrong = honest(case) | {"out": twice(expected["acc"], case.tensors["bias"])}
    assert failed(case, wrong) - {"bound"} == {"out"}
    assert 0.02 < share(wrong["out"], expected["out"]) < 0.2
    # Beyond the largest float16 the bound sees it as well.
    large = case.tensors | {"bias": case.tensors["bias"] + 3e6}
    far = replace(case, tensors=large)
    outputs = honest(far)
    assert failed(far, outputs) == set()
    overflown = outputs | {"out": twice(outputs["acc"], large["bias"])}
    assert overflown["out"].isinf().any()
    assert failed(far, overflown) == {"out", "bound"}


def test_control_reciprocal_for_division_in_the_quantiser(device: str) -> None:
    """vLLM 0.33 against 0.10.2: one code in two thousand, and every scale alike."""
    case = case_on(device)
    stream = IntegerStream(5)
    wide = replace(case, x=spread(stream, (256, K), scale_log2=6).to(device))
    wrong = honest(wide) | quantised(wide.x, 128, "reciprocal")
    assert failed(wide, wrong) == {"codes"}
    found = share(wrong["codes"], truth(wide)["codes"])
    assert 1e-4 < found < 2e-3
    # Fed into the matmul the few codes show in the accumulator.
    codes, scales = (quantised(wide.x, 128, rule)["codes"] for rule in ("reciprocal", "divide"))
    assert (bits(codes) != bits(scales)).any(1).sum() > 10


@pytest.mark.parametrize("change", [swapped, stride_0])
@pytest.mark.parametrize("name", ["a_scales", "w_scales"])
def test_control_scales_of_another_group(
    device: str, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    """Two groups exchanged, or all read with a stride of 0: every check of the matmul sees it."""
    case = case_on(device)
    assert failed(case, with_scales(case, name, change)) == {"acc", "out", "bound", "rms"}


def test_control_the_scales_of_the_first_expert_for_all(device: str) -> None:
    case = case_on(device)
    outputs = with_scales(case, "w_scales", lambda scales: scales[:1].expand_as(scales))
    assert failed(case, outputs) == {"acc", "out", "bound", "rms"}


@pytest.mark.parametrize("form", ["mul-fma", "scale-product"])
def test_control_another_accumulate_form(device: str, form: str) -> None:
    """Contracted or with the scales multiplied first: what the compiler may make of one source."""
    case = case_on(device)
    outputs = honest(case) | multiplied(replace(case.call, accumulate=form))
    assert failed(case, outputs) - {"out"} == {"acc"}


def test_nothing_passes_by_absence(device: str) -> None:
    case = case_on(device)
    outputs: dict[str, Any] = honest(case)
    for name in EXACT:
        poison = torch.full_like(outputs[name], float("nan"))
        assert name in failed(case, outputs | {name: poison})
        with pytest.raises(AssertionError):
            failed(case, outputs | {name: outputs[name][:0]})
