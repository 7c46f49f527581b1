"""moe_gemm_fp8: what its integer fixtures catch, and that they are exact for every order."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bitgate.kernels.moe import gemm_fp8_data
from bitgate.kernels.moe.gemm_fp8 import ACCUMULATE, MOE_GEMM_FP8
from bitgate.kernels.moe.gemm_fp8_reference import moe_gemm_fp8 as by_tile
from bitgate.kernels.spec import IntegerCase
from bitgate.parity.compare import compare_tensors

CASES = {case.name: case for case in MOE_GEMM_FP8.integer_cases()}


def swapped(scales: torch.Tensor) -> torch.Tensor:
    """Two neighbouring groups' scales exchanged."""
    return torch.cat([scales[..., 1:2], scales[..., :1], scales[..., 2:]], dim=-1)


FAULTS: dict[str, Callable[[IntegerCase], dict[str, Any]]] = {
    "wrong expert": lambda case: {
        "expert_ids": (case.inputs["expert_ids"] + 1) % len(case.inputs["w"])
    },
    "another token's scales": lambda case: {"a_scales": case.inputs["a_scales"].roll(1, 0)},
    "scales of rows swapped between two groups": lambda case: {
        "a_scales": swapped(case.inputs["a_scales"])
    },
    "scales of weights swapped between two groups": lambda case: {
        "w_scales": swapped(case.inputs["w_scales"])
    },
    "scales of rows read with stride 0": lambda case: {
        "a_scales": case.inputs["a_scales"][:, :1].expand_as(case.inputs["a_scales"])
    },
    "every expert has the first one's scales": lambda case: {
        "w_scales": case.inputs["w_scales"][:1].expand_as(case.inputs["w_scales"])
    },
    "every column has the first block's scale": lambda case: {
        "w_scales": case.inputs["w_scales"][:, :1].expand_as(case.inputs["w_scales"])
    },
    "no scales of weights": lambda case: {"w_scales": torch.ones_like(case.inputs["w_scales"])},
    "bias of another expert": lambda case: {"bias": case.inputs["bias"].roll(1, 0)},
    "weights where none belong, none where they do": lambda case: {
        "apply_weights": 1 - case.constants["apply_weights"]
    },
}
# Where a fault changes nothing: operands of one group, one block of columns, or one scale.
CATCH = {
    "wrong expert": set(CASES),
    "another token's scales": set(CASES) - {"tensor-tensor"},
    "scales of rows swapped between two groups": {
        "first",
        "second",
        "narrow-groups",
        "tile-over-groups",
        "larger-blocks",
    },
    "scales of weights swapped between two groups": {
        "first",
        "second",
        "narrow-groups",
        "tile-over-groups",
        "larger-blocks",
    },
    "scales of rows read with stride 0": {
        "first",
        "second",
        "narrow-groups",
        "tile-over-groups",
        "larger-blocks",
    },
    "every expert has the first one's scales": set(CASES),
    "every column has the first block's scale": {
        "first",
        "narrow-groups",
        "tile-over-groups",
        "token-channel",
    },
    "no scales of weights": set(CASES),
    "bias of another expert": {"second", "larger-blocks", "token-channel"},
    "weights where none belong, none where they do": set(CASES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_a_fixture(fault: str) -> None:
    caught = set()
    for name, case in CASES.items():
        arguments = {**case.inputs, **case.constants} | FAULTS[fault](case)
        outputs = MOE_GEMM_FP8.named_outputs(by_tile(**arguments))
        if not compare_tensors(f"moe_gemm_fp8#integer/{name}", case.expected, outputs).equal:
            caught.add(name)
    assert caught == CATCH[fault]


@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_fixtures_hold_for_every_interval_and_accumulate_form(accumulate: str) -> None:
    for case in CASES.values():
        for block_k in (16, 64, 256):
            changed = case.constants | {"block_k": block_k, "accumulate": accumulate}
            outputs = MOE_GEMM_FP8.named_outputs(by_tile(**case.inputs, **changed))
            result = compare_tensors(case.name, case.expected, outputs)
            assert result.equal, result.mismatches


def test_a_fixture_whose_sums_need_more_bits_is_refused() -> None:
    large = replace(gemm_fp8_data._SHAPES[0], k=6400, n=16, scales="token-tensor")
    with pytest.raises(ValueError, match=r"a group's terms add up to \d+, more than the 8192"):
        gemm_fp8_data._case(large)
