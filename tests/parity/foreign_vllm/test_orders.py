"""In which order vLLM's CPU operators add: recovered from their bits, one order each.

docs/orders.md holds what was found with vLLM 0.32.0. On another processor its vector kernels may
add otherwise; then these tests fail, and `scripts/order_report.py` says what is there.
"""

from functools import partial

import pytest
import torch

from bitgate.kernels import catalogue as kernels
from bitgate.kernels.moe.experts_kernel import MOE_EXPERTS
from bitgate.parity.order.catalogue import orders_of
from bitgate.parity.order.identify import Call, Finding, identify
from bitgate.parity.order.probes import probes

pytestmark = pytest.mark.vllm

amx = pytest.mark.skipif(not torch.cpu._init_amx(), reason="this processor has no AMX")
avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="the lanes of vLLM's vector kernels are those of AVX-512",
)


def found_of(op: str, run, *, seen=None) -> Finding:
    kernel, calls = kernels.kernel(op), []
    for probe in probes(op):
        outputs = kernel.named_outputs(run(**probe.inputs, **probe.constants))
        if seen is not None:
            outputs = seen(outputs)
        calls.append(
            Call(
                label=probe.label,
                inputs=probe.inputs,
                constants=probe.constants,
                observed=outputs,
            )
        )
    (found,) = identify(orders_of(op), calls, work=1 << 62)
    return found


@avx512
@pytest.mark.parametrize(
    ("isa", "products"), [("vec", "serial"), pytest.param("amx", "even-odd-32", marks=amx)]
)
def test_the_experts(operators, note, isa, products) -> None:
    found = found_of("moe_experts", partial(operators.moe_experts, isa))
    assert found.verdict == "one"
    assert found.named == (f"vLLM 0.32.0, cpu_fused_moe, {isa}",)
    assert dict(found.reproducing[0]) == {
        "first matmul": products,
        "gate_up": "fp32",
        "silu": "fast",
        "activation": "fp32-product",
        "early weight": "no",
        "second matmul": products,
        "weight": "sum-fp32",
        "combine": "fma-slots",
    }
    note(f"cpu_fused_moe ({isa}): one of {found.tried} orders, {found.distinct} distinct results")


@avx512
@pytest.mark.parametrize(
    ("op", "path", "named"),
    [
        ("mhc_pre", "torch", "vLLM 0.32.0, torch"),
        ("mhc_pre", "cpu", "vLLM 0.32.0, cpu, blocks of 256"),
        ("mhc_post", "torch", "vLLM 0.32.0, torch"),
        ("mhc_post", "cpu", "vLLM 0.32.0, cpu"),
    ],
)
def test_mhc(operators, note, op, path, named) -> None:
    found = found_of(op, partial(getattr(operators, op), path))
    assert found.named == (named,)
    # Torch's einsum of four streams is one with a chain of multiply-adds, wherever that is its way.
    assert len(found.reproducing) <= (2 if (op, path) == ("mhc_post", "torch") else 1)
    note(f"{op}_{path}: one of {found.tried} orders, {found.distinct} distinct results")


def test_a_flipped_bit_is_nobodys(operators) -> None:
    def flip(outputs):
        words = outputs["residual_out"].view(torch.int16)
        words[0, 0, 0] ^= 1
        return outputs

    found = found_of("mhc_post", partial(operators.mhc_post, "cpu"), seen=flip)
    assert found.verdict == "none"
    assert found.nearest[0].differing == 1


@avx512
def test_random_inputs_prove_less(operators) -> None:
    inputs = MOE_EXPERTS.make_inputs(MOE_EXPERTS.suites["default"][2], 0)
    constants = {"swiglu_limit": float("inf")}
    out = operators.moe_experts("vec", **inputs, **constants)
    call = Call(label="random", inputs=inputs, constants=constants, observed={"out": out})
    (found,) = identify(orders_of("moe_experts"), [call])
    assert found.verdict == "several"
    assert "vLLM 0.32.0, cpu_fused_moe, vec" in found.named
    # Where it rounds shows; in which order it adds does not.
    assert found.possible["gate_up"] == ("fp32",)
    assert found.possible["activation"] == ("fp32-product",)
    assert found.possible["weight"] == ("sum-fp32",)
    assert len(found.possible["first matmul"]) > 5
