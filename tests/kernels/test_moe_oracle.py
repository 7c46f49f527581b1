"""The float64 oracle: its bound holds for the real thing, and is tight enough to refuse faults."""

import pytest
import torch

from bitgate.kernels.catalogue import implementation
from bitgate.kernels.loading import load
from bitgate.kernels.mhc.contract import MHC_C1
from bitgate.kernels.moe import MOE_BF16_1, MOE_EXPERTS, MOE_TORCH_1
from bitgate.kernels.moe.experts import experts_loop
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.kernels.spec import Contract, Tensors
from bitgate.records.errors import UsageError

CONTRACTS = [pytest.param(one, id=one.name) for one in (MOE_TORCH_1, MOE_BF16_1)]
WORKLOADS = {point.key: point for suite in MOE_EXPERTS.suites.values() for point in suite}


def outside(inputs: Tensors, actual: torch.Tensor, contract: Contract = MOE_TORCH_1) -> int:
    value, bound = experts_float64(**inputs, swiglu_limit=10.0, contract=contract)
    return int(((actual.double() - value).abs() > bound).sum())


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("key", WORKLOADS)
def test_the_reference_lies_within_the_bound(key: str, contract: Contract) -> None:
    run = load(implementation(MOE_EXPERTS.references[contract.name]).target)
    inputs = MOE_EXPERTS.make_inputs(WORKLOADS[key], 0)
    assert outside(inputs, run(**inputs, swiglu_limit=10.0), contract) == 0


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_oracle_knows_the_integer_fixtures(contract: Contract) -> None:
    for case in MOE_EXPERTS.integer_cases():
        value, bound = experts_float64(**case.inputs, **case.constants, contract=contract)
        # In float64 silu(32) is not quite 32.
        assert ((value - case.expected["out"].double()).abs() < 1e-9).all()
        assert (bound > 1e-9).all()


def faulty(inputs: Tensors, fault: str) -> Tensors:
    changed = dict(inputs)
    if fault == "wrong expert":
        changed["topk_ids"] = (inputs["topk_ids"] + 1) % len(inputs["w_down"])
    elif fault == "no routing weight":
        changed["topk_weights"] = torch.ones_like(inputs["topk_weights"])
    elif fault == "swapped halves":
        changed["w_gate_up"] = inputs["w_gate_up"].roll(inputs["w_down"].shape[2], dims=1)
    else:
        changed["w_down"] = inputs["w_down"] * 1.125
    return changed


@pytest.mark.parametrize(
    "fault", ["wrong expert", "no routing weight", "swapped halves", "an eighth too large"]
)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_bound_refuses_a_fault(contract: Contract, fault: str) -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][2], 0)
    run = load(implementation(MOE_EXPERTS.references[contract.name]).target)
    wrong = run(**faulty(inputs, fault), swiglu_limit=10.0)
    assert outside(inputs, wrong, contract) > wrong.numel() // 50


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_bound_is_not_vacuous(contract: Contract) -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][2], 0)
    value, bound = experts_float64(**inputs, swiglu_limit=10.0, contract=contract)
    assert bound.mean() < 0.2 * value.abs().mean()


def test_fewer_roundings_have_a_smaller_bound() -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][-1], 0)
    (value, often), (same, once) = (
        experts_float64(**inputs, swiglu_limit=10.0, contract=one)
        for one in (MOE_TORCH_1, MOE_BF16_1)
    )
    assert torch.equal(value, same)
    assert (once <= often).all()
    # The two orders agree as far as both may be off, and no further.
    torch_bits, tile_bits = (
        run(**inputs, swiglu_limit=10.0) for run in (experts_loop, experts_tile)
    )
    apart = (torch_bits.double() - tile_bits.double()).abs()
    assert (apart <= often + once).all()
    assert apart.count_nonzero() > 0


def test_a_contract_without_a_bound_is_refused() -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][0], 0)
    with pytest.raises(UsageError, match="no error bound is known for mhc-c1"):
        experts_float64(**inputs, swiglu_limit=10.0, contract=MHC_C1)
