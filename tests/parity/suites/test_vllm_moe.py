"""The suite against a stand-in for vLLM: what it passes, and what it finds where."""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bitgate.kernels.moe.staged import Stages
from bitgate.parity.suites import vllm_moe, vllm_substitutes
from bitgate.parity.suites.cases import cases, make
from bitgate.parity.suites.composition import compose, compose_as, wiring_of
from bitgate.parity.suites.judge import Compose, judge
from bitgate.parity.suites.results import CaseResult
from bitgate.records.errors import EnvironmentUnfit, UsageError

CASES = {case.name: case for case in cases(full=False)}
EP, UNEVEN, FP8 = CASES["ep-rank0-33-tokens"], CASES["uneven-top2"], CASES["fp8-block-128x64"]
OLD, NEW = "0.10.2", "0.33.0"


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (OLD, (EP.name, UNEVEN.name, FP8.name)),
        ("0.11.0", (FP8.name,)),
        ("0.13.0", (EP.name, FP8.name)),
        ("0.17.1", (EP.name,)),
        (NEW, tuple(CASES)),
    ],
)
def test_the_right_composition_is_equal_everywhere(installed, monkeypatch, version, names):
    monkeypatch.setattr(vllm_moe, "cases", lambda **_: tuple(CASES[name] for name in names))
    stub = installed(version)
    result = vllm_moe.run("cpu")
    assert result.verdict == "passed"
    assert [case.name for case in result.cases] == list(names)
    for case in result.cases:
        assert case.status == "equal", case.first
        assert len(case.tiles) == 2
        # Every output was compared, at least.
        points = CASES[case.name]
        assert case.compared > points.tokens * points.hidden * points.calls
    assert result.plain["cases"][0]["boundaries"][-1]["boundary"] == "out"
    # What the version says it was, in the result; and that it was called like that.
    rules = stub.rules
    assert (result.facts["moe_sum"], result.facts["alignment"]) == (rules.moe_sum, rules.layout)
    given = [asked for what, asked in stub.asked if what == "fused_experts"]
    assert {"ids": torch.int32, "block_shape": [128, 64]} in given or FP8.name not in names
    told = [asked for what, asked in stub.asked if what == "align"]
    dropping = {"ignore_invalid_experts": True} if rules.drops_nonlocal else {}
    assert told
    assert all(asked == dropping for asked in told)


@pytest.fixture
def one_case(monkeypatch) -> None:
    """The suite is one of its cases."""
    monkeypatch.setattr(vllm_moe, "cases", lambda **_: (EP,))


def test_what_stands_in_is_named_and_taken_away(installed, one_case):
    stub = installed(NEW)
    result = vllm_moe.run("cpu")
    assert [text.partition(" ")[0] for text in result.substitutes[:3]] == [
        "moe_align_block_size",
        "moe_sum",
        "silu_and_mul",
    ]
    assert not hasattr(stub.modules["vllm._custom_ops"], "moe_sum")
    assert not hasattr(torch.ops._C, "silu_and_mul")


def test_two_local_experts_are_idle_and_the_case_insists():
    (inputs,) = make(UNEVEN, "cpu")
    used = set(inputs.topk_ids.flatten().tolist())
    assert len(used) <= UNEVEN.experts - 2
    with pytest.raises(UsageError, match="expected 9 local experts idle"):
        next(make(replace(UNEVEN, idle=9), "cpu"))


def test_the_full_sizes_are_those_of_the_model():
    full = {case.name: case for case in cases(full=True)}
    for rank in (0, 1):
        for tokens in (4096, 4097):
            case = full[f"ep-rank{rank}-{tokens}-tokens"]
            shape = (case.hidden, case.intermediate, case.experts, case.top_k, case.ranks)
            assert shape == (2048, 768, 128, 8, 2)
            assert (case.tokens, case.rank) == (tokens, rank)
    assert full["fp8-block-128x64"].block_shape == (128, 64)
    assert full["uneven-top2"].tokens == full["uneven-top4"].tokens == 257


def staged(**stages: Callable[..., object]) -> Callable[[Stages], Stages]:
    return lambda right: replace(right, **stages)


def faulty(alter: Callable[[Stages], Stages]) -> Compose:
    def run(engine, inputs, workspace):
        return compose_as(engine, inputs, workspace, wiring_of(engine, inputs), alter)

    return run


def miswired(**wrong: object) -> Compose:
    def run(engine, inputs, workspace):
        return compose_as(engine, inputs, workspace, replace(wiring_of(engine, inputs), **wrong))

    return run


def no_activation(*, gate_up: torch.Tensor, swiglu_limit: float) -> torch.Tensor:
    return gate_up[:, : gate_up.shape[1] // 2]


def no_reduction(*, y: torch.Tensor, **_: object) -> torch.Tensor:
    return y[:, 0]


def other_rank(engine, inputs, workspace):
    swapped = inputs.expert_map.roll(len(inputs.expert_map) // 2)
    return miswired(expert_map=swapped)(engine, inputs, workspace)


BLOCK = (128, 64)
FAULTS = {
    "activation dropped": (EP, faulty(staged(act=no_activation)), "activated"),
    "reduction dropped": (UNEVEN, faulty(staged(combine=no_reduction)), "out"),
    "fp16 accumulators": (EP, miswired(compute_type="float16"), "gate_up, launch"),
    "other expert map": (EP, other_rank, "alignment"),
    "no block shape, first": (FP8, miswired(block_shapes=(None, BLOCK)), "gate_up, launch"),
    "no block shape, second": (FP8, miswired(block_shapes=(BLOCK, None)), "weighted, launch"),
    "fp16 under fp8": (FP8, miswired(compute_type="float16"), "gate_up, launch"),
}


IN_OLD = ("activation dropped", "no block shape, second")


@pytest.mark.parametrize(
    ("engine", "fault"),
    [*((NEW, fault) for fault in FAULTS), *((OLD, fault) for fault in IN_OLD)],
    indirect=["engine"],
)
def test_a_fault_is_found_where_it_is(engine, fault):
    case, composition, boundary = FAULTS[fault]
    result = judge(engine, case, composition)
    assert result.status == "differs"
    assert result.first is not None
    assert result.first.boundary == boundary
    assert ("block_shape" in str(result.first.difference)) == ("block shape" in fault)
    # The numbers see it, too: nothing here hangs on the comparison of constants alone.
    assert bits(result, "out").difference is not None


def bits(result: CaseResult, boundary: str):
    (found,) = [one for one in result.checked if one.boundary == boundary]
    return found


@pytest.mark.parametrize(
    ("engine", "boundary", "told"),
    [
        # Only its step is another one: 32, so that promotion happens twice as often.
        (OLD, "gate_up, launch", "BLOCK_SIZE_K: expected 64, got 32"),
        # Its blocks have other rows, too.
        (NEW, "alignment", "blocks"),
    ],
    indirect=["engine"],
)
def test_tiles_looked_up_without_the_dtype_are_found(engine, boundary, told):
    result = judge(engine, FP8, miswired(dtype=None))
    assert result.first is not None
    assert (result.first.boundary, told in result.first.difference) == (boundary, True)


@pytest.mark.parametrize("engine", [OLD], indirect=True)
def test_a_block_shape_that_reaches_no_kernel_is_found_though_both_sides_agree(engine):
    gemm = engine.experts.invoke_fused_moe_kernel

    @functools.wraps(gemm)
    def deaf(*given: object, block_shape: object = None, **named: object) -> None:
        gemm(*given, block_shape=None, **named)

    engine.experts.invoke_fused_moe_kernel = deaf
    tiles = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8}
    engine.experts.try_get_optimal_moe_config = lambda *_, **__: tiles
    result = judge(engine, FP8, compose)
    assert [one.boundary for one in result.checked if one.difference] == [
        "gate_up, launch",
        "weighted, launch",
    ]
    for side in ("vLLM's", "ours"):
        told = f"{side}: expected BLOCK_SIZE_K of at most 64, got 128"
        assert told in str(bits(result, "weighted, launch").difference)


def test_a_stale_result_is_found_in_the_call_that_returns_it(engine):
    first: list[torch.Tensor] = []

    def stale(engine, inputs, workspace):
        first.append(compose(engine, inputs, workspace).clone())
        return first[0]

    result = judge(engine, CASES["repeated"], stale)
    assert result.first is not None
    assert result.first.boundary == "call 2: out"


def test_what_the_first_product_left_in_the_shared_buffer_is_found(engine):
    result = judge(engine, EP, miswired(cleared=False))
    assert result.first is not None
    assert result.first.boundary == "weighted"


def test_how_far_a_composition_came_is_told(engine):
    def breaks(*, gate_up: torch.Tensor, swiglu_limit: float) -> torch.Tensor:
        raise RuntimeError("out of resources")

    result = judge(engine, EP, faulty(staged(act=breaks)))
    assert result.first is not None
    assert result.first.boundary == "activated"
    assert bits(result, "gate_up").difference is None
    assert bits(result, "composition").difference == "RuntimeError: out of resources"


def test_an_engine_that_differs_from_itself_is_not_compared_with(installed, one_case):
    stub = installed(NEW)
    stub.drift = 1.0
    result = vllm_moe.run("cpu")
    assert result.verdict == "differs"
    assert result.cases[0].first is not None
    assert result.cases[0].first.boundary == "fused_experts again, traced"


def test_an_alignment_that_is_not_its_layouts_is_found(installed, monkeypatch, one_case):
    def shifted(rules):
        right = original(rules)

        def align(*given):
            right(*given)
            given[3][:2] = given[3][:2].flip(0)
            given[4][:2] = given[4][:2].flip(0)

        return align

    original = vllm_substitutes.aligner
    monkeypatch.setattr(vllm_substitutes, "aligner", shifted)
    installed(NEW)
    result = vllm_moe.run("cpu")
    assert result.cases[0].first is not None
    assert result.cases[0].first.boundary == "alignment, vLLM's and moe_align under vllm-0.33"


def test_a_vllm_that_lacks_a_function_of_its_version_is_named(installed, one_case):
    stub = installed(NEW)
    del stub.experts.dispatch_fused_moe_kernel
    with pytest.raises(EnvironmentUnfit, match=r"has no dispatch_fused_moe_kernel; correct"):
        vllm_moe.run("cpu")


def test_an_unknown_version_runs_when_it_is_assumed_to_be_known(installed, one_case):
    stub = installed(NEW)
    stub.modules["vllm"].__version__ = "0.99.0"
    with pytest.raises(EnvironmentUnfit, match=r"got 0\.99\.0.*--assume-version"):
        vllm_moe.run("cpu")
    result = vllm_moe.run("cpu", "0.33.0")
    assert result.verdict == "passed"
    assert result.engine == "vLLM 0.99.0"
    assert "assumed version 0.33.0" in result.facts["called like"]


def test_no_vllm_and_no_gpu_are_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EnvironmentUnfit, match=r"scripts/vllm_env"):
        vllm_moe.run("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentUnfit, match="expected a CUDA device"):
        vllm_moe.run("cuda")


def test_a_gpu_without_fp8_skips_that_case_and_does_not_pass(engine, monkeypatch):
    on_gpu = replace(engine, device="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    result = vllm_moe._case(on_gpu, FP8, compose)
    assert (result.status, result.compared) == ("skipped", 0)
    assert "8.9" in result.reason
