"""The staged pipeline as other models and engines have it: biases, activations, weighted inputs.

Each setting changes bits where it should and nowhere before, the kernels have the bits of the
references, and the float64 loop without tiles says that it is the right function.
"""

from dataclasses import replace

import pytest
import torch

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.act import Activation
from bitgate.kernels.moe.experts_dense import experts_dense
from bitgate.kernels.moe.staged import Settings, run
from bitgate.kernels.moe.staged_reference import TILE
from bitgate.kernels.moe.staged_triton import TRITON
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload

SILU = Settings(act={"swiglu_limit": float("inf")})
GPT_OSS = Settings(
    act={"swiglu_limit": 7.0, "kind": "swiglu-oai", "round_between": 0},
    combine={"accumulate": "fp32"},
)
LLAMA_4 = replace(SILU, weigh_input=True)
SGLANG = Settings(act={"swiglu_limit": float("inf"), "round_between": 0})
VLLM_0_10 = replace(SILU, combine={"accumulate": "bf16-step"}, align={"layout": "vllm-0.10.2"})
EVERY = {
    "plain": SILU,
    "gpt-oss": GPT_OSS,
    "llama-4": LLAMA_4,
    "sglang": SGLANG,
    "vllm-0.10.2": VLLM_0_10,
}


def tensors_at(*, bias: bool = False, top_k: int = 4) -> Tensors:
    axes = {"tokens": 6, "hidden": 72, "intermediate": 40, "experts": 4, "top_k": top_k}
    point = tuple(sorted(axes.items()))
    inputs = MOE_EXPERTS.make_inputs(
        Workload(op="moe_experts", axes=point, dtype="bfloat16", case="padding"), 0
    )
    if bias:
        stream = IntegerStream(8)
        for name, columns in (("gate_up", 80), ("down", 72)):
            inputs[f"{name}_bias"] = integer_tensor(stream, (4, columns), high=255, scale_log2=7)
    return inputs


def boundaries(settings: Settings, tensors: Tensors, stages=TILE) -> Tensors:
    seen: Tensors = {}
    run(stages, tensors, replace(settings, tap=seen.__setitem__))
    return seen


def relative_error(settings: Settings, tensors: Tensors) -> float:
    """Of the result from the float64 loop, by root mean square."""
    act = dict(settings.act)
    value = experts_dense(**tensors, activation=Activation(**act), weigh_input=settings.weigh_input)
    out = run(TILE, tensors, settings).double()
    return float((out - value).square().mean().sqrt() / value.square().mean().sqrt())


@pytest.mark.parametrize("name", EVERY)
def test_the_kernels_have_the_bits_of_the_references_and_are_right(name: str) -> None:
    tensors = tensors_at(bias=name == "gpt-oss")
    settings = EVERY[name]
    expected = boundaries(settings, tensors)
    result = compare_tensors("stages", expected, boundaries(settings, tensors, TRITON))
    assert result.equal, result.mismatches
    assert result.compared == len(expected) == 9
    assert relative_error(settings, tensors) < 0.01


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("gpt-oss", "activated"),
        ("llama-4", "gate_up"),
        ("sglang", "activated"),
        ("vllm-0.10.2", "out"),
    ],
)
def test_a_setting_shows_first_at_its_own_boundary(name: str, first: str) -> None:
    tensors = tensors_at()
    expected, actual = (boundaries(one, tensors) for one in (SILU, EVERY[name]))
    indices = ("sorted_pairs", "expert_ids", "padded")
    kept = [{n: v for n, v in one.items() if n not in indices} for one in (expected, actual)]
    assert compare_tensors("stages", *kept).mismatches[0].tensor == first


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt-oss", {"gate_up_bias": None}),
        ("gpt-oss", {"down_bias": None}),
        ("llama-4", {"weigh_input": False}),
        ("gpt-oss", {"kind": "silu"}),
    ],
)
def test_the_loop_without_tiles_refuses_another_function(name: str, change: Tensors) -> None:
    """The control: what a setting left out would compute is far off."""
    tensors, settings = tensors_at(bias=name == "gpt-oss"), EVERY[name]
    value = experts_dense(
        **tensors, activation=Activation(**settings.act), weigh_input=settings.weigh_input
    )
    for key, other in change.items():
        if key == "weigh_input":
            settings = replace(settings, weigh_input=other)
        elif key == "kind":
            settings = replace(settings, act=settings.act | {key: other})
        else:
            tensors = {n: v for n, v in tensors.items() if n != key}
    out = run(TILE, tensors, settings).double()
    assert (out - value).square().mean().sqrt() > 0.05 * value.square().mean().sqrt()


def test_weights_on_the_input_are_not_weights_on_the_output() -> None:
    """Silu is not linear, so the two placements are two functions: a pair of weight 0 tells."""
    tensors = tensors_at(top_k=1)
    tensors["topk_weights"][:] = 0
    first, second = (run(TILE, tensors, one) for one in (LLAMA_4, SILU))
    assert torch.equal(first, second)
    assert not first.any()
    tensors["topk_weights"][:] = 0.5
    first, second = (run(TILE, tensors, one) for one in (LLAMA_4, SILU))
    assert not torch.equal(first, second)


def test_biases_in_bfloat16_and_float32_are_one() -> None:
    tensors = tensors_at(bias=True)
    widened = tensors | {n: v.float() for n, v in tensors.items() if n.endswith("_bias")}
    for stages in (TILE, TRITON):
        assert torch.equal(run(stages, tensors, GPT_OSS), run(stages, widened, GPT_OSS))
