"""moe-bf16/1 as a whole: the Triton pipeline against the tiles, boundary by boundary."""

import json
import platform
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from bitgate.kernels.moe import MOE_BF16_1, MOE_EXPERTS, gemm_triton, staged_triton
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.kernels.moe.staged_triton import TRITON, experts_triton
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.provenance import process_environment
from bitgate.records.types import Workload

BOUNDARIES = [
    "sorted_pairs",
    "expert_ids",
    "padded",
    "gate_up_acc",
    "gate_up",
    "activated",
    "weighted_acc",
    "weighted",
    "out",
]
SMALLER = TileConfig(block_n=32, block_k=32)


def point(case: str = "random", **axes: int) -> Workload:
    shape = {"hidden": 96, "intermediate": 40, "experts": 4, "top_k": 2, "tokens": 9} | axes
    return Workload(
        op="moe_experts", axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case
    )


def tapped(
    inputs: Tensors, config: TileConfig = DEFAULT_CONFIG, limit: float = 10.0
) -> tuple[Tensors, Tensors]:
    expected: Tensors = {}
    actual: Tensors = {}
    experts_tile(**inputs, swiglu_limit=limit, config=config, tap=expected.__setitem__)
    experts_triton(**inputs, swiglu_limit=limit, config=config, tap=actual.__setitem__)
    return expected, actual


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("stages", expected, actual)
    assert result.equal, result.mismatches
    assert list(actual) == BOUNDARIES


@pytest.mark.parametrize("config", [DEFAULT_CONFIG, SMALLER], ids=["default", "smaller"])
@pytest.mark.parametrize("case", ["random", "padding"])
def test_no_bit_differs_at_any_boundary(case: str, config: TileConfig) -> None:
    assert_same(*tapped(MOE_EXPERTS.make_inputs(point(case), 0), config))


def test_without_a_limit_and_with_a_low_one() -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 1)
    results = [tapped(inputs, limit=limit) for limit in (float("inf"), 0.5)]
    for expected, actual in results:
        assert_same(expected, actual)
    assert not torch.equal(results[0][0]["activated"], results[1][0]["activated"])


@pytest.mark.slow
@pytest.mark.parametrize("workload", MOE_EXPERTS.suites["default"], ids=lambda one: one.key)
@pytest.mark.parametrize("block_k", [16, 64, 128])
def test_no_bit_differs_on_the_suite(workload: Workload, block_k: int) -> None:
    config = TileConfig(block_m=32, block_k=block_k)
    for index in range(3):
        assert_same(*tapped(MOE_EXPERTS.make_inputs(workload, index), config))


def test_the_first_boundary_that_differs_is_the_first_wrong_one() -> None:
    """Planted: another order of K; the sums over slots may hide what the accumulators show."""
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    expected, _ = tapped(inputs)
    wrong: Tensors = {}
    experts_triton(**inputs, swiglu_limit=10.0, config=SMALLER, tap=wrong.__setitem__)
    mismatches = compare_tensors("stages", expected, wrong).mismatches
    assert mismatches[0].tensor == "gate_up_acc"
    assert mismatches[0].differing > mismatches[0].total // 10


def test_a_tap_changes_no_bit() -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    expected, _ = tapped(inputs)
    for run in (experts_tile, experts_triton):
        out = run(**inputs, swiglu_limit=10.0)
        assert compare_tensors("out", {"out": expected["out"]}, {"out": out}).equal


def test_accumulators_are_stored_for_a_tap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = []

    def gemm(call: object, out: torch.Tensor, acc: torch.Tensor | None) -> None:
        stored.append(acc is not None)
        gemm_triton.grouped(call, out, acc)

    monkeypatch.setattr(staged_triton, "TRITON", replace(TRITON, gemm=gemm))
    inputs = MOE_EXPERTS.make_inputs(point(tokens=1), 0)
    experts_triton(**inputs, swiglu_limit=10.0)
    experts_triton(**inputs, swiglu_limit=10.0, tap=lambda *_: None)
    assert stored == [False, False, True, True]


@pytest.mark.parametrize("top_k", [2, 3])
def test_an_expert_that_a_token_names_twice(top_k: int) -> None:
    inputs = MOE_EXPERTS.make_inputs(point(top_k=top_k), 1)
    inputs["topk_ids"][:, 1:] = inputs["topk_ids"][:, :1]
    assert_same(*tapped(inputs))


def test_weights_in_bfloat16_are_widened() -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    inputs["topk_weights"] = inputs["topk_weights"].bfloat16()
    widened = inputs | {"topk_weights": inputs["topk_weights"].float()}
    expected, actual = tapped(inputs)
    assert_same(expected, actual)
    out = experts_tile(**widened, swiglu_limit=10.0)
    assert compare_tensors("out", {"out": out}, {"out": actual["out"]}).equal


def test_all_pairs_dropped_give_zeros() -> None:
    inputs = MOE_EXPERTS.make_inputs(point(), 0)
    inputs["topk_ids"][:, 0], inputs["topk_ids"][:, 1] = -1, 4
    expected, actual = tapped(inputs)
    assert_same(expected, actual)
    assert not actual["out"].view(torch.int16).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_m": 24}, "block_m to be a power of two from 16 to 1024, got 24"),
        ({"block_n": 8}, "block_n to be a power of two from 16"),
        ({"block_k": 2048}, "block_k to be a power of two from 16 to 1024, got 2048"),
        ({"num_warps": 32}, "num_warps to be a power of two from 1 to 16, got 32"),
        ({"num_stages": 0}, "num_stages of at least 1, got 0"),
        ({"group_m": 0}, "group_m of at least 1, got 0"),
    ],
)
def test_tiles_that_no_kernel_takes(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TileConfig(**change)


# --- the contract's claims, and what it does not claim -------------------------------------------

ALONE = """
import json
from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.records.types import Workload

axes = {"hidden": 200, "intermediate": 72, "experts": 2, "top_k": 2, "tokens": 24}
point = Workload(op="moe_experts", axes=tuple(sorted(axes.items())), dtype="bfloat16")
inputs = MOE_EXPERTS.make_inputs(point, 0)
rows = ("x", "topk_ids", "topk_weights")
together, moved = {}, 0
experts_tile(**inputs, swiglu_limit=10.0, tap=together.__setitem__)
for row in range(24):
    mine = {n: v[row : row + 1] if n in rows else v for n, v in inputs.items()}
    alone = {}
    experts_tile(**mine, swiglu_limit=10.0, tap=alone.__setitem__)
    pairs = slice(2 * row, 2 * row + 2)
    moved += int((alone["gate_up_acc"] != together["gate_up_acc"][pairs]).sum())
print(json.dumps(moved))
"""


def openblas() -> bool:
    libraries = np.show_config(mode="dicts")["Build Dependencies"]
    return platform.machine() == "x86_64" and "openblas" in libraries["blas"]["name"].lower()


@pytest.mark.slow  # two fresh processes, and no code of ours can change what they find
@pytest.mark.skipif(not openblas(), reason="chooses among OpenBLAS's kernels for x86-64")
def test_whether_a_row_alone_has_the_bits_it_has_in_its_batch_is_the_hosts_choice() -> None:
    """Why moe-bf16/1 does not claim batch invariance: it holds with one BLAS kernel, not another.

    Both run on every x86-64 host: Nehalem's, the oldest, and Haswell's, which Zen takes, too.
    """
    processes = {
        kernels: subprocess.Popen(
            [sys.executable, "-c", ALONE],
            env=process_environment({"OPENBLAS_CORETYPE": kernels}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for kernels in ("Nehalem", "Haswell")
    }
    moved = {}
    for kernels, process in processes.items():
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        moved[kernels] = json.loads(text)
    assert moved["Nehalem"] == 0
    assert moved["Haswell"] > 0
    assert not MOE_BF16_1.batch_invariant
    assert not MOE_BF16_1.cross_device
