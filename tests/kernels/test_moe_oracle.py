"""The float64 oracle: its bound holds for the real thing, and is tight enough to refuse faults."""

from collections.abc import Iterator

import pytest
import torch

from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.experts import experts_loop
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.spec import Tensors

WORKLOADS = {point.key: point for suite in MOE_EXPERTS.suites.values() for point in suite}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outside(inputs: Tensors, actual: torch.Tensor, limit: float = 10.0) -> int:
    value, bound = experts_float64(**inputs, swiglu_limit=limit)
    return int(((actual.double() - value).abs() > bound).sum())


@pytest.mark.parametrize("key", WORKLOADS)
def test_the_loop_lies_within_the_bound(key: str) -> None:
    inputs = MOE_EXPERTS.make_inputs(WORKLOADS[key], 0)
    assert outside(inputs, experts_loop(**inputs, swiglu_limit=10.0)) == 0


def test_the_oracle_knows_the_integer_fixtures() -> None:
    for case in MOE_EXPERTS.integer_cases():
        value, bound = experts_float64(**case.inputs, **case.constants)
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
def test_the_bound_refuses_a_fault(fault: str) -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][2], 0)
    wrong = experts_loop(**faulty(inputs, fault), swiglu_limit=10.0)
    assert outside(inputs, wrong) > wrong.numel() // 50


def test_the_bound_is_not_vacuous() -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][2], 0)
    value, bound = experts_float64(**inputs, swiglu_limit=10.0)
    assert bound.mean() < 0.2 * value.abs().mean()
