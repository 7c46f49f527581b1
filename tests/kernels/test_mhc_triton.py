"""The Triton kernels of mhc-c1 against the replay: no differing bit at any boundary."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.mhc import data, post_pre_triton, post_triton, pre_triton, replay
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.provenance import process_environment
from bitgate.records.types import Workload

CONSTANTS = dict(MHC_POST_PRE.constants)
POST_NAMES = ("x", "residual", "post", "comb")


def inputs_at(tokens: int, hidden: int, case: str = "random", index: int = 0) -> Tensors:
    axes = (("hidden", hidden), ("streams", 4), ("tokens", tokens))
    workload = Workload(op="mhc_post_pre", axes=axes, dtype="bfloat16", case=case)
    return MHC_POST_PRE.make_inputs(workload, index)


def replayed(inputs: Tensors) -> Tensors:
    """Every boundary of the fused operator, by the replay's stages."""
    residual_out = arithmetic.round_bf16(replay.post_sum(**{n: inputs[n] for n in POST_NAMES}))
    dot, sq = replay.dot_sq(residual_out, inputs["fn"])
    size = 4 * inputs["x"].shape[1]
    pre, post, comb = replay.finish(
        dot, sq, inputs["scale"], inputs["base"], size=size, **CONSTANTS
    )
    return {
        "residual_out": residual_out,
        "dot": dot,
        "sq": sq,
        "pre": pre,
        "post": post,
        "comb": comb,
        "layer_input": replay.apply_pre(residual_out, pre),
    }


def finished(dot: torch.Tensor, sq: torch.Tensor, inputs: Tensors, size: int) -> Tensors:
    tokens = dot.shape[0]
    post, comb = torch.full((tokens, 4), -1.0), torch.full((tokens, 4, 4), -1.0)
    pre = pre_triton.finish(
        dot, sq, inputs["scale"], inputs["base"], post, comb, size=size, **CONSTANTS
    )
    return {"pre": pre, "post": post, "comb": comb}


def interpreted(inputs: Tensors, *, fused: bool) -> Tensors:
    """The same boundaries by the kernels; mhc_post and the projection fused, or one by one."""
    if fused:
        residual_out = torch.empty_like(inputs["residual"])
        arguments = {n: inputs[n] for n in (*POST_NAMES, "fn")}
        dot, sq = post_pre_triton.post_dot(**arguments, residual_out=residual_out)
    else:
        residual_out = post_triton.mhc_post(**{n: inputs[n] for n in POST_NAMES})
        dot, sq = pre_triton.dot_sq(residual_out, inputs["fn"])
    mixes = finished(dot, sq, inputs, 4 * inputs["x"].shape[1])
    layer_input = torch.empty_like(inputs["x"])
    pre_triton.apply_pre(residual_out, mixes["pre"], layer_input)
    return {
        "residual_out": residual_out,
        "dot": dot,
        "sq": sq,
        **mixes,
        "layer_input": layer_input,
    }


def assert_same(inputs: Tensors, *, fused: bool) -> None:
    result = compare_tensors("stages", replayed(inputs), interpreted(inputs, fused=fused))
    assert result.equal, result.mismatches
    assert result.compared == 7


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "staged"])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 64), (3, 320), (2, 512)])
def test_no_bit_differs_at_any_boundary(tokens: int, hidden: int, fused: bool) -> None:
    for index in range(2):
        assert_same(inputs_at(tokens, hidden, index=index), fused=fused)


@pytest.mark.parametrize("case", [case for case in data.CASES if case != "random"])
def test_no_bit_differs_on_edge_data(case: str) -> None:
    assert_same(inputs_at(3, 192, case), fused=True)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "staged"])
@pytest.mark.parametrize("tokens", [2, 5, 33])
@pytest.mark.parametrize("hidden", [1280, 4096, 7168])
def test_no_bit_differs_at_model_sizes(tokens: int, hidden: int, fused: bool) -> None:
    assert_same(inputs_at(tokens, hidden), fused=fused)


def test_the_finish_stage_at_4096_tokens() -> None:
    inputs = MHC_PRE.make_inputs(MHC_PRE.suites["finish4096"][0], 0)
    dot, sq = replay.dot_sq(inputs["residual"], inputs["fn"])
    values = replay.finish(dot, sq, inputs["scale"], inputs["base"], size=256, **CONSTANTS)
    expected = dict(zip(("pre", "post", "comb"), values, strict=True))
    result = compare_tensors("finish", expected, finished(dot, sq, inputs, 256))
    assert result.equal, result.mismatches


def test_whole_operators_equal_their_replay() -> None:
    calls = (
        (MHC_PRE, pre_triton.mhc_pre, replay.mhc_pre),
        (MHC_POST, post_triton.mhc_post, replay.mhc_post),
        (MHC_POST_PRE, post_pre_triton.mhc_post_pre, replay.mhc_post_pre),
    )
    for kernel, run, truth in calls:
        for workload in (kernel.suites["default"][1], kernel.suites["default"][3]):
            arguments: dict[str, Any] = {
                **kernel.make_inputs(workload, 0),
                **dict(kernel.constants),
            }
            expected = kernel.named_outputs(truth(**arguments))
            result = compare_tensors(workload.key, expected, kernel.named_outputs(run(**arguments)))
            assert result.equal, result.mismatches


def test_a_row_alone_equals_the_row_in_its_batch() -> None:
    inputs = inputs_at(4, 64)
    together = interpreted(inputs, fused=True)
    rows = {*POST_NAMES}
    alone = interpreted(
        {n: v[2:3].contiguous() if n in rows else v for n, v in inputs.items()}, fused=True
    )
    expected = {name: value[2:3] for name, value in together.items()}
    assert compare_tensors("row", expected, alone).equal


def test_a_nan_is_stored_as_the_canonical_one() -> None:
    inputs = inputs_at(3, 64)
    inputs["residual"].view(torch.int16)[1, 2, 5] = -1  # a NaN with sign and payload
    expected, actual = replayed(inputs), interpreted(inputs, fused=True)
    assert compare_tensors("nan", expected, actual).equal
    assert set(actual["comb"][1].view(torch.int32).flatten().tolist()) == {0x7FC00000}
    assert set(actual["layer_input"][1].view(torch.int16).flatten().tolist()) == {0x7FC0}
    assert not actual["comb"][[0, 2]].isnan().any()


def test_multiply_add_fusion_is_off_in_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[object]] = {}

    class Recorder:
        def __init__(self, name: str, kernel: Any) -> None:
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arguments: Any, **options: Any) -> None:
                seen.setdefault(self.name, []).append(options["enable_fp_fusion"])
                self.kernel[grid](*arguments, **options)

            return launch

    for module in (pre_triton, post_triton, post_pre_triton):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Recorder(name, getattr(module, name)))
    interpreted(inputs_at(1, 64), fused=True)
    interpreted(inputs_at(1, 64), fused=False)
    names = {"dot_sq_kernel", "finish_kernel", "apply_pre_kernel", "post_kernel", "post_dot_kernel"}
    assert set(seen) == names
    assert all(option is False for options in seen.values() for option in options)


def test_cpu_tensors_without_the_interpreter_are_refused() -> None:
    code = (
        "import torch; from bitgate.kernels.mhc.post_triton import mhc_post; "
        "b = torch.bfloat16; mhc_post(x=torch.zeros(1, 64, dtype=b), "
        "residual=torch.zeros(1, 4, 64, dtype=b), post=torch.zeros(1, 4), "
        "comb=torch.zeros(1, 4, 4))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=process_environment({"TRITON_INTERPRET": "0"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "EnvironmentUnfit: expected tensors on a device that Triton compiles" in result.stderr
