"""The integer fixtures: what they compute is exact, and each planted fault changes a value."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels.moe.experts_fixtures import integer_cases
from bitgate.kernels.spec import IntegerCase

CASES = {case.name: case for case in integer_cases()}
Expert = Callable[[Tensor, Tensor, float], Tensor]


def activate(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return functional.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)


def experts(
    inputs: dict[str, Tensor],
    limit: float,
    *,
    act: Expert = activate,
    choose: Callable[[int, int], int] = lambda expert, experts: expert,
    weighted: bool = True,
    slots: slice = slice(None),
    first_token: int = 0,
) -> Tensor:
    """The definition, pair by pair in float32, with places to plant one fault."""
    x, ids, weights = (inputs[name].float() for name in ("x", "topk_ids", "topk_weights"))
    w_gate_up, w_down = inputs["w_gate_up"].float(), inputs["w_down"].float()
    count = len(w_down)
    out = torch.zeros_like(x)
    for token in range(first_token, len(x)):
        for slot in range(ids.shape[1])[slots]:
            expert = int(ids[token, slot])
            if not 0 <= expert < count:
                continue
            chosen = choose(expert, count)
            gate, up = (w_gate_up[chosen] @ x[token]).chunk(2)
            term = w_down[chosen] @ act(gate, up, limit)
            out[token] += term * (weights[token, slot] if weighted else 1)
    return out.to(torch.bfloat16)


FAULTS = {
    "swapped halves": {"act": lambda gate, up, limit: activate(up, gate, limit)},
    "no activation": {"act": lambda gate, up, limit: gate.clamp(max=limit) * up},
    "relu of up": {"act": lambda gate, up, limit: activate(gate, up.relu(), limit)},
    "wrong expert": {"choose": lambda expert, count: (expert + 1) % count},
    "no routing weight": {"weighted": False},
    "no reduction, first slot": {"slots": slice(0, 1)},
    "no reduction, last slot": {"slots": slice(-1, None)},
    "dropped token": {"first_token": 1},
}
CLAMPS = {
    "no clamp": {"act": lambda gate, up, limit: activate(gate, up, float("inf"))},
    "up not clamped below": {
        "act": lambda gate, up, limit: functional.silu(gate.clamp(max=limit)) * up.clamp(max=limit)
    },
    "gate not clamped": {
        "act": lambda gate, up, limit: functional.silu(gate) * up.clamp(min=-limit, max=limit)
    },
}


def caught(case: IntegerCase, fault: dict[str, object]) -> bool:
    result = experts(case.inputs, case.constants["swiglu_limit"], **fault)
    return not torch.equal(result, case.expected["out"])


@pytest.mark.parametrize("name", CASES)
def test_a_correct_computation_in_another_order_meets_the_fixture(name: str) -> None:
    assert not caught(CASES[name], {})


@pytest.mark.parametrize("name", ["small", "one-token", "wide", "padding"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(name: str, fault: str) -> None:
    assert caught(CASES[name], FAULTS[fault])


@pytest.mark.parametrize("fault", CLAMPS)
def test_a_missing_clamp_is_caught(fault: str) -> None:
    assert caught(CASES["clamped"], CLAMPS[fault])


@pytest.mark.parametrize("name", CASES)
def test_every_token_and_nearly_every_value_counts(name: str) -> None:
    out = CASES[name].expected["out"]
    assert (out != 0).any(dim=1).all()
    assert (out != 0).float().mean() > 0.8
    assert len(torch.unique(out)) > 5


def test_padding_is_among_the_fixtures() -> None:
    ids = CASES["padding"].inputs["topk_ids"]
    assert {-1, 4} <= set(ids.flatten().tolist())
