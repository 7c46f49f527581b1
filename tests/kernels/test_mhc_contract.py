"""What the contract refuses, for every implementation, and what the data and fixtures promise."""

import hashlib
from collections.abc import Callable

import pytest
import torch

from bitgate.kernels import alias
from bitgate.kernels.loading import load
from bitgate.kernels.mhc import data, post_pre_triton
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Implementation, Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

KERNELS = (MHC_PRE, MHC_POST, MHC_POST_PRE)
EVERY = [
    pytest.param(kernel, found, id=found.name)
    for kernel in KERNELS
    for found in kernel.implementations
]
WITH_MIXES = [p for p in EVERY if p.values[0] is not MHC_POST]


def point(kernel: Kernel, tokens: int = 2, hidden: int = 64, case: str = "random") -> Workload:
    axes = (("hidden", hidden), ("streams", 4), ("tokens", tokens))
    return Workload(op=kernel.op, axes=axes, dtype="bfloat16", case=case)


def call(kernel: Kernel, found: Implementation, inputs: Tensors, **other: object) -> Tensors:
    run: Callable[..., object] = load(found.target)
    return kernel.named_outputs(run(**inputs, **{**dict(kernel.constants), **other}))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_integer_cases_refuse_a_transposed_comb(kernel: Kernel) -> None:
    run = load(kernel.implementations[0].target)
    for case in kernel.integer_cases():
        inputs = {
            name: value.mT if name == "comb" else value for name, value in case.inputs.items()
        }
        outputs = kernel.named_outputs(run(**inputs, **case.constants))
        if kernel is MHC_PRE:
            outputs["comb"] = outputs["comb"].mT
        assert not compare_tensors(case.name, case.expected, outputs).equal


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_no_tokens_give_empty_outputs(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel, tokens=0), 0)
    outputs = call(kernel, found, inputs)
    for spec in kernel.outputs:
        extents = {"tokens": 0, "streams": 4, "hidden": 64}
        assert outputs[spec.name].shape == tuple(extents[axis] for axis in spec.axes)
        assert str(outputs[spec.name].dtype) == f"torch.{spec.dtype}"


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, at an odd offset."""
    buffer = torch.zeros(tensor.numel() * 2 + 1, dtype=tensor.dtype)
    view = buffer[1::2].view(tensor.shape)
    view.copy_(tensor)
    assert tensor.numel() < 2 or not view.is_contiguous()
    return view


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_strides_change_no_bit(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel), 0)
    expected = call(kernel, found, inputs)
    actual = call(kernel, found, {name: strided(value) for name, value in inputs.items()})
    result = compare_tensors(found.name, expected, actual)
    assert result.equal, result.mismatches


@pytest.mark.parametrize(("kernel", "found"), EVERY)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"residual": torch.zeros(2, 3, 64, dtype=torch.bfloat16)}, "axis streams of 4, got 3"),
        ({"residual": torch.zeros(2, 4, 64, dtype=torch.float16)}, "residual in bfloat16, got"),
        ({"residual": torch.zeros(2, 256, dtype=torch.bfloat16)}, r"as \[tokens, streams, hid"),
    ],
    ids=["streams", "dtype", "rank"],
)
def test_refused_residuals(
    kernel: Kernel, found: Implementation, change: Tensors, message: str
) -> None:
    inputs = kernel.make_inputs(point(kernel), 0)
    with pytest.raises(UsageError, match=message):
        call(kernel, found, inputs | change)


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_refused_hidden_sizes(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel, hidden=128), 0)
    for name in ("x", "residual"):
        if name in inputs:
            inputs[name] = inputs[name][..., :96]
    if "fn" in inputs:
        inputs["fn"] = inputs["fn"][:, : 4 * 96]
    with pytest.raises(UsageError, match=r"positive multiple of 64 .*256 lanes.*got 96"):
        call(kernel, found, inputs)


@pytest.mark.parametrize(("kernel", "found"), WITH_MIXES)
def test_refused_mappings_and_constants(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel), 0)
    with pytest.raises(UsageError, match=r"fn: expected axis streams\*hidden of 256, got 255"):
        call(kernel, found, inputs | {"fn": inputs["fn"][:, :255]})
    with pytest.raises(UsageError, match=r"base: expected axis mixes of 24, got 20.*hc_mult 4"):
        call(kernel, found, inputs | {"base": inputs["base"][:20]})
    with pytest.raises(UsageError, match="sinkhorn_iters of at least 1, an int, got 0"):
        call(kernel, found, inputs, sinkhorn_iters=0)
    constants = {k: v for k, v in kernel.constants if k != "hc_eps"}
    with pytest.raises(UsageError, match=r"missing \['hc_eps'\], unknown \['eps'\]"):
        load(found.target)(**inputs, **constants, eps=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rms_eps", float("nan"), "rms_eps to be finite in float32, got nan"),
        ("post_mult", 1e39, "post_mult to be finite in float32"),
        ("rms_eps", -1e-6, "rms_eps of at least 0"),
        ("hc_eps", -1e-6, "hc_eps of at least 0"),
        ("sink_eps", -1e-6, "sink_eps of at least 0"),
        ("post_mult", None, "post_mult to be a number, got None"),
        ("rms_eps", "1e-6", "rms_eps to be a number, got '1e-6'"),
        ("sinkhorn_iters", 2.0, "sinkhorn_iters of at least 1, an int, got 2.0"),
        ("sinkhorn_iters", float("nan"), "sinkhorn_iters of at least 1, an int, got nan"),
        ("sinkhorn_iters", True, "an int, got True"),
    ],
)
@pytest.mark.parametrize(("kernel", "found"), WITH_MIXES)
def test_refused_constants(
    kernel: Kernel, found: Implementation, name: str, value: object, message: str
) -> None:
    inputs = kernel.make_inputs(point(kernel, tokens=1), 0)
    with pytest.raises(UsageError, match=message):
        call(kernel, found, inputs, **{name: value})


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_what_is_no_tensor_is_refused(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel, tokens=1), 0)
    with pytest.raises(UsageError, match="residual as a torch tensor, got list"):
        call(kernel, found, inputs | {"residual": [1.0]})


@pytest.mark.parametrize("found", MHC_POST_PRE.implementations, ids=lambda found: found.name)
def test_the_unrounded_carry_is_another_contract(found: Implementation) -> None:
    inputs = MHC_POST_PRE.make_inputs(point(MHC_POST_PRE), 0)
    with pytest.raises(UsageError, match="carry='bf16' under contract mhc-c1, got 'fp32'"):
        call(MHC_POST_PRE, found, inputs, carry="fp32")


def test_a_separate_sinkhorn_epsilon_reaches_every_implementation() -> None:
    inputs = MHC_PRE.make_inputs(point(MHC_PRE), 0)
    results = [
        call(MHC_PRE, found, inputs, sink_eps=1e-2)
        for found in MHC_PRE.implementations
        if found.contract == "mhc-c1"
    ]
    same = call(MHC_PRE, MHC_PRE.implementations[0], inputs)
    for other in results[1:]:
        assert compare_tensors("sink_eps", results[0], other).equal
    changed = compare_tensors("sink_eps", same, results[0])
    assert [mismatch.tensor for mismatch in changed.mismatches] == ["comb"]


# --- outputs of the caller -----------------------------------------------------------------------

TRITON = [p for p in EVERY if p.id is not None and p.id.endswith("triton")]


def empty_outputs(kernel: Kernel, inputs: Tensors) -> Tensors:
    outputs = call(kernel, kernel.implementations[0], inputs)
    return {name: torch.full_like(value, float("nan")) for name, value in outputs.items()}


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_outputs_of_the_caller_are_filled(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel), 0)
    expected = call(kernel, kernel.implementations[0], inputs)
    given = empty_outputs(kernel, inputs)
    returned = call(kernel, found, inputs, **given)
    assert all(returned[name] is given[name] for name in given)
    result = compare_tensors(found.name, expected, given)
    assert result.equal, result.mismatches


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_unfit_outputs_are_refused(kernel: Kernel, found: Implementation) -> None:
    inputs = kernel.make_inputs(point(kernel), 0)
    for name, value in empty_outputs(kernel, inputs).items():
        with pytest.raises(UsageError, match=f"expected {name} to be contiguous"):
            call(kernel, found, inputs, **{name: strided(value)})
        with pytest.raises(UsageError, match=name):
            call(kernel, found, inputs, **{name: value[:1]})


def overlaps(kernel: Kernel) -> list[tuple[str, str]]:
    """Every (output, input) pair of one dtype and shape, which could share their memory."""
    inputs = kernel.make_inputs(point(kernel), 0)
    outputs = empty_outputs(kernel, inputs)
    return [
        (out, name)
        for out, value in outputs.items()
        for name, source in inputs.items()
        if (value.dtype, value.shape) == (source.dtype, source.shape)
    ]


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_the_alias_rule(kernel: Kernel, found: Implementation) -> None:
    allowed = post_pre_triton.ALIASES if kernel is MHC_POST_PRE else frozenset()
    pairs = overlaps(kernel)
    assert set(allowed) <= set(pairs)
    for out, name in pairs:
        inputs = kernel.make_inputs(point(kernel), 0)
        expected = call(kernel, kernel.implementations[0], inputs)
        if (out, name) in allowed:
            actual = call(kernel, found, inputs, **{out: inputs[name]})
            assert compare_tensors(f"{out} over {name}", expected, actual).equal
        else:
            with pytest.raises(UsageError, match=f"expected {out} apart from {name}"):
                call(kernel, found, inputs, **{out: inputs[name]})


def test_an_allowed_alias_must_lie_at_the_same_place() -> None:
    inputs = MHC_POST_PRE.make_inputs(point(MHC_POST_PRE), 0)
    memory = torch.zeros(12)
    inputs["post"] = memory[:8].view(2, 4)
    with pytest.raises(UsageError, match="expected post_out apart from post"):
        call(
            MHC_POST_PRE,
            MHC_POST_PRE.implementations[1],
            inputs,
            post_out=memory[4:].view(2, 4),
        )


def test_outputs_over_each_other_are_refused() -> None:
    memory = torch.zeros(40)
    outputs = {"post": memory[:8].view(2, 4), "comb": memory[4:36].view(2, 4, 4)}
    with pytest.raises(UsageError, match="got comb over post"):
        alias.check("mhc_pre", {}, outputs)
    alias.check("mhc_pre", {}, {"post": memory[:4], "comb": memory[4:]})
    alias.check("mhc_pre", {"base": memory[:0]}, {"post": memory})


# --- data ----------------------------------------------------------------------------------------

# SHA-256 over the inputs' bytes in name order; golden because integers alone made them.
GOLDEN_INPUTS = {
    "mhc_pre": "2dea379c1db6beb91dca27a45134532df5362d22b7f5acd652b72554fe82a003",
    "mhc_post": "e1ea2a7000337402ad6a6f5a36facc79561e6066c1a4e26028669813c5a59ea5",
    "mhc_post_pre": "8d43ca4d6a4fff1b4997b4dc2c6c3808ee740f173a0bc4e1c869120868a2279b",
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_inputs_are_the_same_on_every_machine(kernel: Kernel) -> None:
    content = hashlib.sha256()
    for _, value in sorted(kernel.make_inputs(point(kernel, 3, 320), 1).items()):
        content.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    assert content.hexdigest() == GOLDEN_INPUTS[kernel.op]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_samples_and_cases_differ(kernel: Kernel) -> None:
    seen = [
        kernel.make_inputs(point(kernel, case=case), index)["residual"].view(torch.int16)
        for case in data.CASES
        for index in (0, 1)
    ]
    kinds = {tuple(bits.flatten().tolist()) for bits in seen}
    assert len(kinds) == 2 * len(data.CASES) - 2  # both kinds of zeros have one sample only
    with pytest.raises(UsageError, match="unknown case 'nonsense'; known: random, zeros"):
        kernel.make_inputs(point(kernel, case="nonsense"), 0)
    with pytest.raises(UsageError, match="hidden a positive multiple of 64"):
        kernel.make_inputs(point(kernel, hidden=96), 0)
