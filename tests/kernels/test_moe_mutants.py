"""Removing the activation or the reduction from any MoE implementation is caught, by gate G2.

Every implementation of moe_experts is made wrong in every way of the fault catalogue's STAGES:
through the functions that it calls, or, where that cannot express the fault, its arguments. Gate
G2, the integer fixtures, must fail it and name the fixture; the implementation itself must pass.

The first fault is a published one (a profiler of an engine's low-level experts): the gate half went
into the second matmul without activation, and the slots were never added.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels.catalogue import implementation
from bitgate.kernels.loading import load
from bitgate.kernels.moe import (
    MOE_EXPERTS,
    experts,
    fused_triton,
    staged_reference,
    staged_triton,
)
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.spec import Constants, Implementation, Tensors
from bitgate.parity.digests import digest
from bitgate.parity.faults.experts_faults import STAGES
from bitgate.parity.gates import GATES, Budget, Subject
from bitgate.parity.gates.session import Session
from bitgate.parity.instance import Instance, Placement
from bitgate.parity.settings import settings
from bitgate.parity.worker import Facts, Launch, Reply
from bitgate.records import provenance
from bitgate.records.closure import PACKAGE_ROOT
from bitgate.records.types import Candidate, Evidence, GateResult

Run = Callable[..., Tensor]

# No fault below leaves a setting behind, and looking takes longer than the experts.
SETTINGS = settings()
G2 = next(gate for gate in GATES if gate.id == "G2")
ALL = [one.name for one in MOE_EXPERTS.implementations]
# Interpreted, each of the others takes a second for what the test of the catalogue shows, too.
QUICK = ("experts_loop", "experts_tile")


def in_stages(module: Any, name: str) -> Callable[[pytest.MonkeyPatch, str, Run], Run]:
    def plant(patch: pytest.MonkeyPatch, fault: str, run: Run) -> Run:
        patch.setattr(module, name, STAGES[fault](getattr(module, name)))
        return run

    return plant


def in_fused(patch: pytest.MonkeyPatch, fault: str, run: Run) -> Run:
    """The stages that the fused form calls; another activation follows its first matmul."""
    real = staged_triton.TRITON
    wrong = STAGES[fault](real)

    def gemm_act(call: GroupedMatmul, activation: Any) -> Tensor:
        gate_up = call.new(torch.bfloat16)
        real.gemm(call, gate_up, None)
        return wrong.act(gate_up=gate_up, swiglu_limit=activation.limit)

    for name, stage, function in (
        ("align_triton", "moe_align", wrong.align),
        ("gemm_triton", "grouped", wrong.gemm),
        ("combine_triton", "moe_combine", wrong.combine),
    ):
        patch.setattr(
            fused_triton, name, Overlaid(getattr(fused_triton, name), **{stage: function})
        )
    if wrong.act is not real.act:
        patch.setattr(fused_triton, "gemm_act", gemm_act)
    return run


# --- the faults, in the torch forms ---------------------------------------------------------------


def slot_alone(kept: int) -> Callable[[Tensors], Tensors]:
    def change(given: Tensors) -> Tensors:
        ids = torch.full_like(given["topk_ids"], -1)
        ids[:, kept] = given["topk_ids"][:, kept]
        return {"topk_ids": ids}

    return change


def shifted(given: Tensors) -> Tensors:
    ids, count = given["topk_ids"], len(given["w_down"])
    inside = (ids >= 0) & (ids < count)
    return {"topk_ids": torch.where(inside, (ids + 1) % count, ids)}


ARGUMENT_FAULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no reduction, first slot": slot_alone(0),
    "no reduction, last slot": slot_alone(-1),
    "no routing weight": lambda given: {"topk_weights": torch.ones_like(given["topk_weights"])},
    "gate and up swapped": lambda given: {
        "w_gate_up": given["w_gate_up"].roll(given["w_down"].shape[2], 1)
    },
    "wrong expert": shifted,
    "not clamped": lambda _: {"swiglu_limit": float("inf")},
}


def identity(values: Tensor, *, inplace: bool = False) -> Tensor:
    return values


class GateAlone:
    """The first matmul with every up value 1, so that the gate half goes on as it is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first: Tensor | None = None

    def __call__(self, **given: Any) -> Tensor:
        self._first = given["w_gate_up"]
        return self._run(**(given | slot_alone(0)(given)))

    def linear(self, rows: Tensor, weight: Tensor) -> Tensor:
        return self._without_up(weight, functional.linear(rows, weight))

    def mm(self, rows: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
        return self._without_up(weight, torch.mm(rows, weight, out=out))

    def _without_up(self, weight: Tensor, result: Tensor) -> Tensor:
        assert self._first is not None
        if weight.untyped_storage().data_ptr() == self._first.untyped_storage().data_ptr():
            result[:, result.shape[1] // 2 :] = 1
        return result


class Overlaid:
    """A module in which a few names are others."""

    def __init__(self, real: Any, **others: Any) -> None:
        self._real, self._others = real, others

    def __getattr__(self, name: str) -> Any:
        return self._others[name] if name in self._others else getattr(self._real, name)


def in_torch(patch: pytest.MonkeyPatch, fault: str, run: Run) -> Run:
    if fault == "no activation":
        patch.setattr(experts, "functional", Overlaid(functional, silu=identity))
        return run
    if fault == "gate half unactivated, no reduction":
        alone = GateAlone(run)
        patch.setattr(
            experts, "functional", Overlaid(functional, silu=identity, linear=alone.linear)
        )
        patch.setattr(experts, "torch", Overlaid(torch, mm=alone.mm))
        return alone
    change = ARGUMENT_FAULTS[fault]
    return lambda **given: run(**(given | change(given)))


# How a fault gets into each module's implementations; a new module needs its line.
PLANT = {
    experts.__name__: in_torch,
    staged_reference.__name__: in_stages(staged_reference, "TILE"),
    staged_triton.__name__: in_stages(staged_triton, "TRITON"),
    fused_triton.__name__: in_fused,
}


# --- the gate -------------------------------------------------------------------------------------


@dataclass
class InProcess:
    """A worker in this process. Answers are kept by input: the gate's replays need no new ones."""

    launch: Launch
    run: Run
    answers: dict[str, Reply]
    answer: Reply | None = None

    @property
    def facts(self) -> Facts:
        return Facts(file="", torch="", python="", device="cpu", before=SETTINGS, after=SETTINGS)

    def send(
        self,
        inputs: Tensors,
        constants: Constants,
        *,
        placement: Placement = "same",
        poison: int = 0xFF,
    ) -> None:
        text = [digest(inputs[name]) for name in sorted(inputs)]
        key = f"{text}{sorted(constants.items())}"
        if key not in self.answers:
            plain = {name: value.clone() for name, value in inputs.items()}
            answer = Instance(self.run, "cpu").call(plain, constants, placement, poison)
            outputs = self.launch.kernel.named_outputs(answer.outputs)
            self.answers[key] = Reply(outputs=outputs, mutated={}, settings=SETTINGS)
        self.answer = self.answers[key]

    def receive(self) -> Reply:
        assert self.answer is not None
        return self.answer

    def close(self) -> None: ...

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *error: object) -> None: ...


def keep(data: bytes, media: str) -> Evidence:
    return Evidence(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), media=media)


@cache
def identified(one: Implementation) -> Candidate:
    """The implementation as a candidate; its source files are read once."""
    return provenance.candidate(
        name=one.name,
        op=one.op,
        contract=one.contract,
        tier=one.tier,
        device="cpu",
        implementation=one.target,
        root=PACKAGE_ROOT,
        switches=(),
    )


def judged(one: Implementation, run: Run) -> GateResult:
    """What G2 says of `run` in the place of the implementation."""
    subject = Subject(
        kernel=MOE_EXPERTS,
        candidate=identified(one),
        root=None,
        reference=implementation(MOE_EXPERTS.references[one.contract]),
        constants=dict(MOE_EXPERTS.constants),
    )
    answers: dict[str, Reply] = {}
    session = Session(
        subject=subject,
        workloads=(),
        bundle=None,
        budget=Budget(),
        put=keep,
        progress=lambda *_: None,
        launcher=lambda launch: InProcess(launch, run, answers),
    )
    with session:
        return G2.check(session)


# Fixtures of every implementation are in the test of the catalogue; here the gate itself passes.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL],
)
def test_the_implementation_itself_passes(name: str) -> None:
    one = implementation(name)
    result = judged(one, load(one.target))
    assert result.outcome == "pass", result.reason
    assert result.compared == result.expected == 2 * len(MOE_EXPERTS.integer_cases())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fault", STAGES)
def test_a_fault_is_caught_by_name(monkeypatch: pytest.MonkeyPatch, fault: str, name: str) -> None:
    one = implementation(name)
    module = one.target.partition(":")[0]
    assert module in PLANT, f"say in PLANT how a fault gets into {module}"
    result = judged(one, PLANT[module](monkeypatch, fault, load(one.target)))
    fixture = "clamped" if fault == "not clamped" else "small"
    assert (result.gate, result.outcome) == ("G2", "fail")
    assert result.finding == "deterministic-mismatch"
    assert f"moe_experts#integer/{fixture}: out[" in result.reason
    assert result.mismatch is not None
    assert result.mismatch.tensor == "out"


def test_every_fault_is_known_to_both_kinds() -> None:
    torch_faults = {*ARGUMENT_FAULTS, "no activation", "gate half unactivated, no reduction"}
    assert torch_faults == STAGES.keys()
