"""moe_gemm: what it is given besides rows and weights, and how those may lie in memory."""

from typing import Any

import pytest
import torch

from bitgate.kernels.arithmetic import round_bf16
from bitgate.kernels.loading import load
from bitgate.kernels.moe.gemm import MOE_GEMM
from bitgate.kernels.moe.gemm_reference import moe_gemm as by_tile
from bitgate.kernels.moe.gemm_triton import moe_gemm as by_triton
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

CONSTANTS = dict(MOE_GEMM.constants)
RUNS = [load(one.target) for one in MOE_GEMM.implementations]
NAMES = [one.name for one in MOE_GEMM.implementations]


def inputs_at(case: str = "random") -> Tensors:
    shape = {"experts": 3, "top_k": 2, "tokens": 9, "k": 96, "n": 80}
    axes = tuple(sorted(shape.items()))
    return MOE_GEMM.make_inputs(Workload(op="moe_gemm", axes=axes, dtype="bfloat16", case=case), 0)


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("gemm", expected, actual)
    assert result.equal, result.mismatches
    assert result.compared == 2


def differing(left: torch.Tensor, right: torch.Tensor) -> float:
    """The share of the elements whose bits differ."""
    return float((left.view(torch.int16) != right.view(torch.int16)).double().mean())


# --- memory --------------------------------------------------------------------------------------


def strided(value: torch.Tensor) -> torch.Tensor:
    return torch.stack([value, value], dim=-1)[..., 0]


def test_inputs_need_not_be_contiguous() -> None:
    inputs = inputs_at()
    others = {name: value if name == "w" else strided(value) for name, value in inputs.items()}
    expected = by_tile(**inputs, **CONSTANTS)
    actual = by_triton(**others, **CONSTANTS)
    assert_same(MOE_GEMM.named_outputs(expected), MOE_GEMM.named_outputs(actual))


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_weights_whose_rows_lie_apart_are_read_where_they_lie(run: Any) -> None:
    """As engines pad them; what lies between the rows is poison."""
    inputs = inputs_at()
    padded = {}
    for name in ("a", "w"):
        wide = torch.full((*inputs[name].shape[:-1], 128), float("nan")).bfloat16()
        padded[name] = wide[..., :96].copy_(inputs[name])
    # Experts further apart than their rows take, too.
    padded["w"] = torch.cat([padded["w"], torch.full((3, 7, 96), float("nan")).bfloat16()], 1)
    padded["w"] = padded["w"][:, :80]
    expected = by_tile(**inputs, **CONSTANTS)
    actual = run(**(inputs | padded), **CONSTANTS)
    assert_same(MOE_GEMM.named_outputs(expected), MOE_GEMM.named_outputs(actual))


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_weights_whose_elements_lie_apart_are_refused(run: Any) -> None:
    inputs = inputs_at()
    with pytest.raises(UsageError, match="the elements of a row of w to be adjacent"):
        run(**(inputs | {"w": strided(inputs["w"])}), **CONSTANTS)


# --- bias and weights ----------------------------------------------------------------------------


def test_a_bias_of_zeros_changes_no_bit() -> None:
    """The accumulator is never -0, so none and zeros are one."""
    inputs = inputs_at("padding")
    inputs["a"][:4] = -0.0
    zeros = inputs | {"bias": torch.zeros_like(inputs["bias"])}
    without = {name: value for name, value in inputs.items() if name != "bias"}
    for run in RUNS:
        both_ways = [
            MOE_GEMM.named_outputs(run(**given, **CONSTANTS)) for given in (zeros, without)
        ]
        assert_same(*both_ways)


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_a_bias_in_bfloat16_is_widened(run: Any) -> None:
    inputs = inputs_at()
    inputs["bias"] = inputs["bias"].bfloat16()
    widened = inputs | {"bias": inputs["bias"].float()}
    one, other = (MOE_GEMM.named_outputs(run(**given, **CONSTANTS)) for given in (inputs, widened))
    assert_same(one, other)


def test_the_bias_comes_before_the_weight() -> None:
    """Planted: an epilogue that weights first; the accumulator cannot tell, the result does."""
    inputs = inputs_at()
    out, acc = by_triton(**inputs, **CONSTANTS)
    expert = torch.full((18,), -1)
    for named, chosen in zip(
        inputs["sorted_pairs"].reshape(-1, 16).tolist(), inputs["expert_ids"].tolist(), strict=True
    ):
        expert[[pair for pair in named if pair < 18]] = chosen
    assert (expert >= 0).all()
    bias, weights = inputs["bias"][expert], inputs["weights"][:, None]
    assert torch.equal(out, round_bf16((acc + bias) * weights))
    assert differing(out, round_bf16(acc * weights + bias)) > 0.5


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_weights_of_dropped_pairs_are_not_looked_at(run: Any) -> None:
    inputs = inputs_at("padding")
    named = inputs["sorted_pairs"]
    dropped = sorted(set(range(18)) - set(named.tolist()))
    assert dropped
    inputs["weights"][dropped] = float("nan")
    out, _ = run(**inputs, **CONSTANTS)
    assert not out[dropped].view(torch.int16).any()
