"""moe_gemm: the Triton kernel against the tile-order reference, accumulator and result."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import gemm_triton
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import MOE_GEMM, GroupedMatmul
from bitgate.kernels.moe.gemm_reference import grouped_float64
from bitgate.kernels.moe.gemm_reference import moe_gemm as by_tile
from bitgate.kernels.moe.gemm_triton import moe_gemm as by_triton
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

CONSTANTS = dict(MOE_GEMM.constants)
RUNS = [load(one.target) for one in MOE_GEMM.implementations]
NAMES = [one.name for one in MOE_GEMM.implementations]
CASES = {case.name: case for case in MOE_GEMM.integer_cases()}


def inputs_at(case: str = "random", *, block_m: int = 16, index: int = 0, **axes: int) -> Tensors:
    shape = {"experts": 3, "top_k": 2, "tokens": 9, "k": 96, "n": 80} | axes
    workload = Workload(
        op="moe_gemm", axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case
    )
    inputs = MOE_GEMM.make_inputs(workload, index)
    return inputs if block_m == 16 else inputs | realigned(inputs, shape["experts"], block_m)


def realigned(inputs: Tensors, experts: int, block_m: int) -> Tensors:
    """The same pairs in blocks of another size."""
    ids = [-1] * len(inputs["weights"])
    for named, expert in zip(
        inputs["sorted_pairs"].reshape(-1, 16).tolist(), inputs["expert_ids"].tolist(), strict=True
    ):
        for pair in named:
            if pair < len(ids):
                ids[pair] = expert
    return aligned(ids, range(experts), block_m)


def both(inputs: Tensors, **constants: int) -> tuple[Tensors, Tensors]:
    chosen = CONSTANTS | constants
    expected, actual = by_tile(**inputs, **chosen), by_triton(**inputs, **chosen)
    return MOE_GEMM.named_outputs(expected), MOE_GEMM.named_outputs(actual)


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("gemm", expected, actual)
    assert result.equal, result.mismatches
    assert result.compared == 2


@pytest.mark.parametrize("block_k", [16, 32, 64, 128])
@pytest.mark.parametrize("k", [128, 72, 200])
def test_no_bit_differs_from_the_tile_order(k: int, block_k: int) -> None:
    inputs = inputs_at(k=k)
    expected, actual = both(inputs, block_k=block_k)
    assert_same(expected, actual)
    # The sums were rounded on the way: exact ones would be the same in every order.
    exact = grouped_float64(call(inputs, block_k=block_k))["acc"][0]
    assert (expected["acc"].double() != exact).float().mean() > 0.2


@pytest.mark.parametrize(("block_m", "block_n"), [(32, 16), (64, 128)])
def test_other_tiles(block_m: int, block_n: int) -> None:
    assert_same(*both(inputs_at(block_m=block_m, tokens=40), block_m=block_m, block_n=block_n))


@pytest.mark.parametrize("apply_weights", [0, 1])
@pytest.mark.parametrize("case", ["random", "padding"])
def test_both_matmuls_of_the_experts(case: str, apply_weights: int) -> None:
    inputs = inputs_at(case, top_k=3, tokens=7)
    expected, actual = both(inputs, top_k=3, apply_weights=apply_weights)
    assert_same(expected, actual)
    named = inputs["sorted_pairs"][inputs["sorted_pairs"] < 21].long()
    dropped = sorted(set(range(21)) - set(named.tolist()))
    assert bool(dropped) == (case == "padding")
    assert not actual["acc"][dropped].view(torch.int32).any()
    assert not actual["out"][dropped].view(torch.int16).any()


@pytest.mark.slow
@pytest.mark.parametrize("block_k", [16, 32, 64, 128])
@pytest.mark.parametrize("block_n", [16, 64, 256])
@pytest.mark.parametrize("block_m", [16, 64, 128])
def test_no_bit_differs_on_a_grid_of_tiles(block_m: int, block_n: int, block_k: int) -> None:
    for index, k in enumerate((64, 300)):
        inputs = inputs_at(block_m=block_m, index=index, k=k, tokens=70, n=144)
        assert_same(*both(inputs, block_m=block_m, block_n=block_n, block_k=block_k))


def differing(left: torch.Tensor, right: torch.Tensor) -> float:
    """The share of the elements whose bits differ."""
    kind = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[left.dtype]
    return float((left.view(kind) != right.view(kind)).double().mean())


def test_a_wrong_order_of_k_is_found_by_the_accumulator() -> None:
    """Planted: the kernel is made to sum the steps of K from the last to the first."""
    inputs = inputs_at(experts=2, tokens=24, k=512, n=128)
    backwards = {
        name: torch.cat(inputs[name].split(64, dim=-1)[::-1], dim=-1).contiguous()
        for name in ("a", "w")
    }
    expected = MOE_GEMM.named_outputs(by_tile(**inputs, **CONSTANTS))
    wrong = MOE_GEMM.named_outputs(by_triton(**(inputs | backwards), **CONSTANTS))
    assert differing(expected["acc"], wrong["acc"]) > 0.5
    assert differing(expected["out"], wrong["out"]) < 0.01
    result = compare_tensors("gemm", expected, wrong)
    assert "acc" in {mismatch.tensor for mismatch in result.mismatches}


def test_another_block_k_is_another_order() -> None:
    inputs = inputs_at(experts=2, tokens=24, k=256, n=64)
    one, other = (by_tile(**inputs, **(CONSTANTS | {"block_k": size})) for size in (32, 128))
    assert differing(one[1], other[1]) > 0.2
    assert differing(one[0], other[0]) < 0.01


def call(inputs: Tensors, **constants: int) -> GroupedMatmul:
    chosen = CONSTANTS | constants
    blocks = {name: chosen.pop(name) for name in ("block_m", "block_n", "block_k")}
    return GroupedMatmul(**inputs, **chosen, config=TileConfig(**blocks))


def test_without_the_store_of_the_accumulator_the_result_is_the_same() -> None:
    grouped = call(inputs_at())
    stored, unstored, acc = (grouped.new(kind) for kind in (torch.bfloat16,) * 2 + (torch.float32,))
    weights = grouped.weights.clone()
    gemm_triton.grouped(grouped, stored, acc)
    gemm_triton.grouped(grouped, unstored, None)
    assert differing(stored, unstored) == 0
    assert acc.count_nonzero()
    # Without a store the kernel is given other memory in its place.
    assert torch.equal(weights, grouped.weights)


def test_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *_, **options: seen.append({"grid": grid, **options})

    monkeypatch.setattr(gemm_triton, "gemm_kernel", Recorder())
    config = TileConfig(block_m=64, block_n=32, block_k=128, group_m=4, num_warps=8, num_stages=2)
    inputs = inputs_at(block_m=64)
    constants = {"top_k": 2, "apply_weights": 1}
    grouped = GroupedMatmul(**inputs, **constants, config=config)
    gemm_triton.grouped(grouped, grouped.new(torch.bfloat16), None)
    assert seen == [
        {
            "grid": (3 * len(inputs["expert_ids"]),),
            "BLOCK_M": 64,
            "BLOCK_N": 32,
            "BLOCK_K": 128,
            "GROUP_M": 4,
            "APPLY_WEIGHTS": 1,
            "BIAS": True,
            "STORE_ACC": False,
            "num_warps": 8,
            "num_stages": 2,
            "enable_fp_fusion": False,
        }
    ]


@pytest.mark.parametrize("group_m", [1, 3, 64])
def test_every_tile_is_computed_in_any_grouping(group_m: int) -> None:
    inputs = inputs_at(experts=5, tokens=33, k=16, n=40)
    grouped = GroupedMatmul(
        **inputs,
        top_k=2,
        apply_weights=0,
        config=TileConfig(block_n=16, block_k=16, group_m=group_m),
    )
    out, acc = grouped.new(torch.bfloat16), grouped.new(torch.float32)
    gemm_triton.grouped(grouped, out, acc)
    expected = by_tile(**inputs, **(CONSTANTS | {"apply_weights": 0, "block_n": 16, "block_k": 16}))
    assert_same(MOE_GEMM.named_outputs(expected), {"out": out, "acc": acc})


def test_a_nan_is_stored_as_the_canonical_one() -> None:
    inputs = inputs_at()
    inputs["a"].view(torch.int16)[4, 7] = -1  # a NaN with sign and payload
    expected, actual = both(inputs)
    assert_same(expected, actual)
    assert set(actual["acc"][8:10].view(torch.int32).flatten().tolist()) == {0x7FC00000}
    assert set(actual["out"][8:10].view(torch.int16).flatten().tolist()) == {0x7FC0}
    others = [pair for pair in range(18) if pair not in (8, 9)]
    assert not actual["acc"][others].isnan().any()


# --- the float64 oracle --------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_both_results_lie_within_their_bounds(run: Any) -> None:
    inputs = inputs_at("padding", k=200, tokens=20)
    outputs = MOE_GEMM.named_outputs(run(**inputs, **CONSTANTS))
    for name, (value, bound) in grouped_float64(call(inputs)).items():
        assert ((outputs[name].double() - value).abs() <= bound).all()
        # No vacuous bound: an accumulator is known to 1 in 10,000, a result to a bfloat16.
        assert bound.sum() < {"acc": 2e-4, "out": 6e-3}[name] * value.abs().sum()


@pytest.mark.parametrize("name", ["a", "w", "weights"])
def test_the_bound_refuses_values_that_are_off(name: str) -> None:
    inputs = inputs_at(k=200, tokens=20)
    wrong = inputs | {name: inputs[name] * 1.03125}
    out, _ = by_tile(**wrong, **CONSTANTS)
    value, bound = grouped_float64(call(inputs))["out"]
    assert ((out.double() - value).abs() > bound).double().mean() > 0.5


# --- the integer fixtures ------------------------------------------------------------------------

FAULTS: dict[str, Callable[[IntegerCase], dict[str, Any]]] = {
    "wrong expert": lambda case: {
        "expert_ids": (case.inputs["expert_ids"] + 1) % len(case.inputs["w"])
    },
    "another token's row": lambda case: {"a": case.inputs["a"].roll(1, 0)},
    "last element left out": lambda case: {
        "a": torch.cat([case.inputs["a"][:, :-1], 0 * case.inputs["a"][:, -1:]], dim=1)
    },
    "last column left out": lambda case: {
        "w": torch.cat([case.inputs["w"][:, :-1], 0 * case.inputs["w"][:, -1:]], dim=1)
    },
    "weights where none belong, none where they do": lambda case: {
        "apply_weights": 1 - case.constants["apply_weights"]
    },
    "no bias": lambda _: {"bias": None},
    "bias of another expert": lambda case: {"bias": case.inputs["bias"].roll(1, 0)},
    "weight of another pair": lambda case: {"weights": 5 - case.inputs["weights"]},
    "last block left out": lambda case: {
        "padded": case.inputs["padded"] - case.constants["block_m"]
    },
    "skipped experts computed": lambda case: {
        "expert_ids": case.inputs["expert_ids"].clamp(0, len(case.inputs["w"]) - 1)
    },
    "blocks behind the last computed": lambda case: {
        "padded": torch.tensor([len(case.inputs["sorted_pairs"])], dtype=torch.int32),
        "expert_ids": case.inputs["expert_ids"].clamp(min=0),
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_a_fixture(fault: str) -> None:
    caught = []
    for name, case in CASES.items():
        arguments = {**case.inputs, **case.constants} | FAULTS[fault](case)
        outputs = MOE_GEMM.named_outputs(by_tile(**arguments))
        if not compare_tensors(f"moe_gemm#integer/{name}", case.expected, outputs).equal:
            caught.append(name)
    everywhere = {"wrong expert", "another token's row", "last column left out"}
    if fault in everywhere:
        assert set(caught) >= CASES.keys() - {"skipped-blocks"}
    elif fault.startswith(("skipped", "blocks behind")):
        assert caught == ["skipped-blocks"]
    else:
        assert caught


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a", lambda t: t.float(), "expected a in bfloat16, got float32"),
        ("w", lambda t: t[:, :, :-1], "w: expected axis k of 96, got 95"),
        ("sorted_pairs", lambda t: t[:-16], r"expert_ids: expected axis blocks"),
        ("sorted_pairs", lambda t: t[:-1], r"sorted_pairs: expected axis blocks\*block_m"),
        ("padded", lambda t: t.repeat(2), "padded: expected axis one of 1, got 2"),
        ("weights", lambda t: t[:-1], r"weights: expected axis tokens\*top_k of 18, got 17"),
        ("weights", lambda t: t.bfloat16(), "expected weights in float32"),
        ("top_k", lambda _: 0, "top_k of at least 1, an int, got 0"),
        ("apply_weights", lambda _: 2, "apply_weights of 0 or 1, an int, got 2"),
        ("apply_weights", lambda _: True, "apply_weights of 0 or 1, an int, got True"),
        ("bias", lambda t: t.double(), "expected bias in float32, got float64"),
        ("bias", lambda t: t[:, :-1], "bias: expected axis n of 80, got 79"),
        ("block_k", lambda _: 48, "block_k to be a power of two from 16"),
    ],
)
def test_wrong_arguments_are_named(run: Any, name: str, change: Any, message: str) -> None:
    arguments = {**inputs_at(), **CONSTANTS}
    with pytest.raises(UsageError, match=message):
        run(**(arguments | {name: change(arguments[name])}))


def test_given_outputs_are_filled_whole() -> None:
    inputs = inputs_at("padding")
    expected = by_tile(**inputs, **CONSTANTS)
    out, acc = (torch.full_like(value, float("nan")) for value in expected)
    returned = by_triton(**inputs, **CONSTANTS, out=out, acc=acc)
    assert returned[0] is out
    assert returned[1] is acc
    assert_same(MOE_GEMM.named_outputs(expected), MOE_GEMM.named_outputs(returned))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"out": torch.zeros(18, 79).bfloat16()}, "out: expected axis n of 80, got 79"),
        ({"out": torch.zeros(18, 80)}, "expected out in bfloat16"),
        ({"acc": torch.zeros(18, 160)[:, ::2]}, "acc to be contiguous"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Tensors, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        by_triton(**inputs_at(), **CONSTANTS, **outputs)


def test_an_output_over_an_input_is_refused() -> None:
    inputs = inputs_at(k=80, n=80, top_k=1, tokens=18)
    with pytest.raises(UsageError, match="expected out apart from a"):
        by_triton(**inputs, **(CONSTANTS | {"top_k": 1}), out=inputs["a"])


@pytest.mark.slow
def test_offsets_beyond_32_bits() -> None:
    """Rows, weights and results of more than 2**31 elements each; only touched pages exist."""
    tokens, experts, size = (1 << 23) + 1, (1 << 15) + 1, 256

    def vast(*shape: int) -> torch.Tensor:
        return torch.from_numpy(np.zeros(shape, np.int16)).view(torch.bfloat16)

    a, w, out = vast(tokens, size), vast(experts, size, size), vast(tokens, size)
    assert min(tensor.numel() for tensor in (a, w, out)) > 1 << 31
    a[-1], w[-1] = 1, 0.5
    pairs = torch.full((16,), tokens, dtype=torch.int32)
    pairs[0] = tokens - 1
    grouped = GroupedMatmul(
        a=a,
        w=w,
        sorted_pairs=pairs,
        expert_ids=torch.tensor([experts - 1], dtype=torch.int32),
        padded=torch.tensor([16], dtype=torch.int32),
        weights=torch.from_numpy(np.zeros(tokens, np.float32)),
        top_k=1,
        apply_weights=0,
        config=TileConfig(block_n=256, block_k=256),
    )
    gemm_triton.grouped(grouped, out, None)
    assert set(out[-1].tolist()) == {128.0}
