"""vLLM's CPU experts and those of vllm-xpu-kernels, by stand-ins: bounds, and rows by pair."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bitgate.kernels.moe.combine_weighted_reference import moe_combine_weighted
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.parity import foreign_vllm
from bitgate.parity.suites import cpu_experts, vllm_moe, xpu_experts
from bitgate.parity.suites.cases import cases
from bitgate.parity.suites.vllm_substitutes import silu
from bitgate.records.errors import EnvironmentUnfit, UsageError

Tensor = torch.Tensor
CASES = {case.name: case for case in cases(full=False)}
SMALLER = {"tokens": 9, "hidden": 32, "intermediate": 16, "experts": 8, "top_k": 2, "idle": 0}
EP = replace(CASES["ep-rank1-33-tokens"], **SMALLER)
REPEATED = replace(CASES["repeated"], **SMALLER)
LOCAL = replace(CASES["uneven-top2"], **SMALLER)


@pytest.fixture
def cpu_build(installed, monkeypatch) -> None:
    """A vLLM that has switched its Triton kernels off."""
    stub = installed("0.32.0")
    stub.modules["vllm.triton_utils"].HAS_TRITON = False
    monkeypatch.setattr(cpu_experts, "cases", lambda **_: (LOCAL, EP))


def of_cpu(monkeypatch, *, wrong: float = 0.0) -> None:
    def experts(isa: str, *, swiglu_limit: float, **tensors: Tensor) -> Tensor:
        assert isa == "vec"
        return experts_tile(**tensors, swiglu_limit=swiglu_limit) * (1 + wrong)

    monkeypatch.setattr(foreign_vllm, "moe_experts", experts)


def test_the_cpus_experts_are_held_to_a_bound(cpu_build, monkeypatch):
    of_cpu(monkeypatch)
    result = vllm_moe.run("cpu")
    assert (result.verdict, result.path) == ("passed", "cpu_fused_moe, vec")
    assert {case.status for case in result.cases} == {"within bound"}
    assert [case.name for case in result.cases] == [LOCAL.name]
    assert result.cases[0].claim.startswith("bounded")
    assert EP.name in result.facts["not asked"]


def test_a_version_is_not_assumed_where_nothing_follows_from_it(cpu_build, monkeypatch):
    of_cpu(monkeypatch)
    with pytest.raises(UsageError, match=r"--assume-version 0\.9: expected none"):
        vllm_moe.run("cpu", "0.9")


def test_experts_beyond_the_bound_are_found(cpu_build, monkeypatch):
    of_cpu(monkeypatch, wrong=0.25)
    result = vllm_moe.run("cpu")
    assert result.verdict == "differs"
    for case in result.cases:
        assert case.status == "outside bound"
        assert case.first is not None
        assert "cpu_fused_moe, out" in case.first.boundary


def test_nan_is_beyond_every_bound(cpu_build, monkeypatch):
    of_cpu(monkeypatch, wrong=float("nan"))
    assert vllm_moe.run("cpu").verdict == "differs"


class StubXpu:
    """The operators of vllm-xpu-kernels in torch; places inside an expert in another order."""

    def __init__(self) -> None:
        self.calls = 0

    def remap(
        self,
        hidden_states: Tensor,
        remapped_hidden_states: Tensor,
        expert_map: Tensor | None,
        rows_per_expert: Tensor,
        unpermuted_row_to_permuted_row: Tensor,
        topk_ids: Tensor,
        expert_scale_desc: None,
        **_: Any,
    ) -> None:
        self.calls += 1
        ids = topk_ids.flatten().long()
        local = ids if expert_map is None else expert_map[ids].long()
        place, start = torch.full_like(ids, -1), 0
        for expert in range(len(rows_per_expert)):
            pairs = (local == expert).nonzero().flatten().roll(self.calls)
            place[pairs] = torch.arange(start, start + len(pairs))
            rows_per_expert[expert] = len(pairs)
            start += len(pairs)
        here = local >= 0
        top_k = topk_ids.shape[1]
        remapped_hidden_states[place[here]] = hidden_states[here.nonzero().flatten() // top_k]
        unpermuted_row_to_permuted_row.copy_(place.view(topk_ids.shape))

    @staticmethod
    def product(ptr_A: Tensor, ptr_B: Tensor, ptr_D: Tensor, rows_per_expert: Tensor, **_: Any):  # noqa: N803
        start = 0
        for expert, rows in enumerate(rows_per_expert.tolist()):
            here = slice(start, start + rows)
            # Row by row, for torch's sums depend on how many rows there are.
            for row in range(start, start + rows):
                ptr_D[row] = (ptr_A[row].float() @ ptr_B[expert].float()).to(ptr_D.dtype)
            start = here.stop

    @staticmethod
    def gather(out: Tensor, rows: Tensor, weights: Tensor, place: Tensor, experts: int) -> None:
        ids = torch.where(place >= 0, 0, -1).long()
        y = rows[place.clamp(min=0).long()]
        out.copy_(moe_combine_weighted(y=y, topk_ids=ids, topk_weights=weights, experts=1))


class XpuFusedMoe:
    """The class over these operators; it takes weights as loaded and turns them, or turned ones."""

    turns = True

    def __init__(self, *, w13: Tensor, w2: Tensor, num_experts: int, **named: Any) -> None:
        if self.turns:
            w13, w2 = w13.mT.contiguous(), w2.mT.contiguous()
        self.w13, self.w2, self.num_experts = w13, w2, num_experts
        self.inter_size = w13.shape[-1] // 2
        self.experts = named["ep_size"] * num_experts
        self.activate = torch.ops._C.silu_and_mul

    def apply(
        self,
        *,
        output: Tensor,
        hidden_states: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        expert_map: Tensor | None,
    ) -> None:
        (tokens, hidden), slots = hidden_states.shape, topk_ids.shape[1]
        rows = torch.empty(tokens * slots, hidden, dtype=torch.bfloat16)
        counts = torch.zeros(self.num_experts, dtype=torch.int32)
        place = torch.empty(tokens, slots, dtype=torch.int32)
        torch.ops._moe_C.remap_hidden_states(
            hidden_states=hidden_states,
            hidden_states_scales=None,
            remapped_hidden_states=rows,
            remapped_hidden_states_scales=None,
            expert_map=expert_map,
            rows_per_expert=counts,
            unpermuted_row_to_permuted_row=place,
            topk_ids=topk_ids,
            total_experts_num=self.experts,
            local_experts_num=self.num_experts,
            expert_scale_desc=None,
        )
        gate_up, down = rows.new_zeros(len(rows), 2 * self.inter_size), torch.zeros_like(rows)
        activated = rows.new_zeros(len(rows), self.inter_size)
        for a, b, d in ((rows, self.w13, gate_up), (activated, self.w2, down)):
            torch.ops._xpu_C.cutlass_grouped_gemm_interface(
                ptr_A=a, ptr_B=b, ptr_D=d, rows_per_expert=counts
            )
            if d is gate_up:
                self.activate(activated, gate_up)
        torch.ops._moe_C.moe_gather(output, down, topk_weights, place, self.num_experts)


@pytest.fixture
def xpu_kernels(monkeypatch) -> StubXpu:
    stub = StubXpu()
    for library, name, stand_in in (
        ("_moe_C", "remap_hidden_states", stub.remap),
        ("_moe_C", "moe_gather", stub.gather),
        ("_xpu_C", "cutlass_grouped_gemm_interface", stub.product),
        ("_C", "silu_and_mul", silu),
    ):
        monkeypatch.setattr(getattr(torch.ops, library), name, stand_in, raising=False)
    return stub


@pytest.mark.parametrize("turns", [True, False])
def test_rows_in_any_order_are_equal_by_pair(xpu_kernels, monkeypatch, turns):
    monkeypatch.setattr(XpuFusedMoe, "turns", turns)
    result = xpu_experts.judge(EP, XpuFusedMoe, "cpu", "0.1.13")
    assert result.status == "equal", result.first
    named = [one.boundary for one in result.checked]
    assert named[2:7] == ["x", "gate_up", "activated", "down", "out"]
    assert named[7:] == ["XpuFusedMoe and float64", "ours and float64"]
    assert all(one.compared for one in result.checked)


def test_an_engine_that_skips_the_activation_is_found(xpu_kernels, monkeypatch):
    def gate(self, out: Tensor, gate_up: Tensor) -> None:
        out.copy_(gate_up[:, : out.shape[1]])

    monkeypatch.setattr(XpuFusedMoe, "activate", gate, raising=False)
    monkeypatch.setattr(XpuFusedMoe, "__setattr__", _except_activate)
    result = xpu_experts.judge(REPEATED, XpuFusedMoe, "cpu", "0.1.13")
    assert result.status == "differs"
    assert result.first is not None
    assert result.first.boundary == "call 1: activated"
    outside = [one.boundary for one in result.checked if one.difference]
    assert "call 1: XpuFusedMoe and float64" in outside
    assert "call 1: ours and float64" not in outside


def _except_activate(self: object, name: str, value: object) -> None:
    if name != "activate":
        object.__setattr__(self, name, value)


def test_a_node_without_the_gpu_or_the_package_is_told(monkeypatch):
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(EnvironmentUnfit, match="expected an Intel GPU"):
        vllm_moe.run("xpu")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    for module in (None, ModuleType("vllm_xpu_kernels.fused_moe_interface")):
        monkeypatch.setitem(sys.modules, "vllm_xpu_kernels", ModuleType("vllm_xpu_kernels"))
        monkeypatch.setitem(sys.modules, "vllm_xpu_kernels.fused_moe_interface", module)
        with pytest.raises(EnvironmentUnfit, match="expected vllm-xpu-kernels with the class"):
            vllm_moe.run("xpu")
