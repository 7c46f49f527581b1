"""vLLM's mHC on the CPU against ours: equal bits where arithmetic is exact, a bound elsewhere.

Its orders are contracts of their own: `mhc_pre_torch` multiplies by the norm after the projection,
transformers (mhc-torch/1) before it, and mhc-c1 names every addition. So nothing here claims equal
bits on rounded data; the counts of one run (vLLM 0.32.0, Xeon with AMX, 16 tokens of 256 channels):

    elements with other bits      post of 64   comb of 256   layer_input of 4096
    mhc_pre_torch, mhc-torch/1    40           230           0
    mhc_pre_torch, mhc-c1         35           214           0
    mhc_pre_cpu, mhc-torch/1      32           226           0
    mhc_pre_cpu, mhc-c1           26           195           0
    mhc_pre_torch, mhc_pre_cpu    32           218           0

`mhc_post_torch` and `mhc_post_cpu` agree with mhc-c1 in all 16384 elements of that size and differ
in up to 6 of 262144 at 16 tokens of 4096 channels: bfloat16 hides most orders. On the integer
fixtures, which hold under every contract, all four paths have equal bits. `mhc_pre_cpu` is batch
invariant on one thread and not on two, where few tokens are cut along the sum; `mhc_pre_torch` is
not batch invariant at all.
"""

from functools import partial

import pytest
import torch

from bitgate.kernels.mhc import reference, replay
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload

pytestmark = pytest.mark.vllm

CONSTANTS = dict(MHC_PRE.constants)
UNIT = 2.0**-24
Tensor = torch.Tensor
# Largest errors of vLLM's paths over the sizes below and 4096 channels: 10.3 and 3.5 units.
POST_UNITS, COMB_UNITS = 32, 16
# Of the bfloat16 results only those next to a tie may round the other way, by one step; and where
# the terms cancel, what float32 lost of them, in units of their magnitude, is more than a step.
ROUNDED_OTHERWISE, LOST_UNITS = 2e-3, 64
SIZES = ((1, 64), (3, 320), (16, 256), (64, 512))

every_path = pytest.mark.parametrize("path", ["torch", "cpu"])
every_size = pytest.mark.parametrize(("tokens", "hidden"), SIZES)


def inputs_at(kernel: Kernel, tokens: int, hidden: int) -> Tensors:
    axes = (("hidden", hidden), ("streams", 4), ("tokens", tokens))
    return kernel.make_inputs(Workload(op=kernel.op, axes=axes, dtype="bfloat16"), 0)


def pre(operators, path: str, inputs: Tensors, **constants: float) -> Tensors:
    returned = operators.mhc_pre(path, **inputs, **(constants or CONSTANTS))
    return MHC_PRE.named_outputs(returned)


def post(operators, path: str, inputs: Tensors) -> Tensors:
    return MHC_POST.named_outputs(operators.mhc_post(path, **inputs))


@every_path
def test_the_integer_fixtures_hold_bit_for_bit(operators, path):
    cases = [(MHC_PRE, case, partial(pre, operators, path)) for case in MHC_PRE.integer_cases()]
    cases += [(MHC_POST, case, partial(post, operators, path)) for case in MHC_POST.integer_cases()]
    for kernel, case, call in cases:
        result = compare_tensors(case.name, case.expected, call(case.inputs, **case.constants))
        assert result.equal, (kernel.op, result.mismatches)


@every_path
def test_the_fixtures_show_a_transposed_comb_and_a_moved_stream(operators, path):
    case = MHC_POST.integer_cases()[1]
    faulty = case.inputs | {"comb": case.inputs["comb"].mT.contiguous()}
    assert not compare_tensors("comb", case.expected, post(operators, path, faulty)).equal
    case = MHC_PRE.integer_cases()[1]
    faulty = case.inputs | {"residual": case.inputs["residual"].roll(1, dims=1)}
    moved = pre(operators, path, faulty, **case.constants)
    result = compare_tensors("moved", case.expected, moved)
    assert {found.tensor for found in result.mismatches} == set(case.expected)


def outside(inputs: Tensors, actual: Tensors) -> list[str]:
    """The outputs that are further from the float64 oracle than any float32 order should be."""
    oracle = reference.mhc_pre_f64(**inputs, **CONSTANTS)
    far = []
    for name, units in (("post", POST_UNITS), ("comb", COMB_UNITS)):
        error = (actual[name] - getattr(oracle, name)).abs().max()
        far += [name] if error > units * UNIT else []
    magnitude = inputs["residual"].double().abs().sum(dim=1)
    if misrounded(oracle.layer_input, actual["layer_input"], magnitude):
        far.append("layer_input")
    return far


def misrounded(exact: Tensor, actual: Tensor, magnitude: Tensor) -> bool:
    error = (actual.double() - exact.double()).abs()
    allowed = 2.0**-7 * exact.double().abs() + LOST_UNITS * UNIT * magnitude
    return bool((error > allowed).any()) or int((error > 0).sum()) > max(
        1, ROUNDED_OTHERWISE * error.numel()
    )


def post_misrounded(inputs: Tensors, actual: Tensors) -> bool:
    x, residual, post, comb = (
        inputs[name].double().abs() for name in ("x", "residual", "post", "comb")
    )
    magnitude = post[:, :, None] * x[:, None] + torch.einsum("tij,tih->tjh", comb, residual)
    return misrounded(reference.mhc_post_f64(**inputs), actual["residual_out"], magnitude)


@every_path
@every_size
def test_pre_lies_within_the_bound(operators, differing, path, tokens, hidden):
    inputs = inputs_at(MHC_PRE, tokens, hidden)
    actual = pre(operators, path, inputs)
    assert outside(inputs, actual) == []
    for contract, call in (("mhc-torch/1", reference.mhc_pre), ("mhc-c1", replay.mhc_pre)):
        expected = MHC_PRE.named_outputs(call(**inputs, **CONSTANTS))
        assert outside(inputs, expected) == []
        differing(f"mhc_pre_{path} and {contract}, {tokens} x {hidden}", expected, actual)


@every_path
@every_size
def test_post_lies_within_the_bound(operators, differing, path, tokens, hidden):
    inputs = inputs_at(MHC_POST, tokens, hidden)
    actual = post(operators, path, inputs)
    assert not post_misrounded(inputs, actual)
    expected = MHC_POST.named_outputs(replay.mhc_post(**inputs))
    differing(f"mhc_post_{path} and mhc-c1, {tokens} x {hidden}", expected, actual)


@every_path
def test_the_bound_refuses_a_rounded_weight(operators, path):
    """What a matrix unit in TF32 would do to fn, and a mixing matrix kept in bfloat16."""
    inputs = inputs_at(MHC_PRE, 16, 256)
    bits = (inputs["fn"].view(torch.int32) + 0x1000) & -0x2000
    rounded = pre(operators, path, inputs | {"fn": bits.view(torch.float32)})
    assert {"post", "comb"} <= set(outside(inputs, rounded))
    inputs = inputs_at(MHC_POST, 16, 256)
    faulty = post(operators, path, inputs | {"comb": inputs["comb"].bfloat16().float()})
    assert post_misrounded(inputs, faulty)


@every_path
def test_a_repeated_call_gives_the_same_bits(operators, path):
    inputs = inputs_at(MHC_PRE, 33, 320)
    assert compare_tensors("again", *(pre(operators, path, inputs) for _ in range(2))).equal


@pytest.mark.parametrize(
    ("path", "threads", "invariant"),
    [("cpu", 1, True), ("cpu", 2, False), ("torch", 1, False)],
)
def test_which_path_gives_a_token_the_same_bits_alone(
    operators, differing, path, threads, invariant
):
    torch.set_num_threads(threads)
    inputs = inputs_at(MHC_PRE, 33, 320)
    together = pre(operators, path, inputs)
    alone = [
        pre(operators, path, inputs | {"residual": inputs["residual"][row : row + 1]})
        for row in range(33)
    ]
    joined = {name: torch.cat([part[name] for part in alone]) for name in together}
    subject = f"mhc_pre_{path} on {threads} threads, every token alone and 33 x 320"
    counts = differing(subject, together, joined)
    assert (sum(counts.values()) == 0) == invariant
