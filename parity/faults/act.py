"""Faults of the gated activation: channels that nobody writes, and roundings in other places.

Target `moe_act`, the kind `silu` of the experts.
"""

from bitgate.kernels import arithmetic
from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.moe.act import MOE_ACT
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Fault, Fired, Memory, Run
from bitgate.parity.faults.checks import Rows, Sample

_OP = "moe_act"
_ROWS = Rows(inputs=("gate_up",), outputs=("out",))


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""

    def every() -> list[Sample]:
        return checks.suite(MOE_ACT)

    def some() -> list[Sample]:
        return [_random(2, 768), _random(5, 40)]

    target = checks.operator(
        MOE_ACT,
        MOE_BF16_1.name,
        every,
        some,
        checks.alone(some, _ROWS),
        checks.strided(some),
    )
    return Area(name="act", targets=(target,), faults=FAULTS)


def _random(rows: int, width: int) -> Sample:
    stream = IntegerStream(rows * 1000 + width)
    gate_up = integer_tensor(stream, (rows, 2 * width), high=255, scale_log2=6)
    return Sample(
        name=f"{rows}x{width}", given={"gate_up": gate_up}, constants=dict(MOE_ACT.constants)
    )


def _unwritten_channels(correct: Run, fired: Fired) -> Run:
    """One block of 256 channels is written where three are needed."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        whole = correct(given, constants, Memory())["out"]
        out = memory.take("out", tuple(whole.shape), whole.dtype)
        written = 256 if fired(whole.shape[1] == 768) else whole.shape[1]
        out[:, :written] = whole[:, :written]
        return {"out": out}

    return run


def _other_silu(correct: Run, fired: Fired, *, product: bool) -> Run:
    """Silu as gate times sigmoid, or as it is but not rounded before the product."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        if constants["kind"] != "silu" or not constants["round_between"]:
            return correct(given, constants, memory)
        limit = float(constants["swiglu_limit"])
        gate, up = given["gate_up"].float().chunk(2, dim=-1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        plain = gate / (1.0 + arithmetic.exp(0.0 - gate))
        silu = arithmetic.round_bf16(gate.clamp(-1e30, 1e30) * arithmetic.sigmoid(gate)).float()
        silu = silu if product else plain
        fired(bool((silu != arithmetic.round_bf16(plain).float()).any()))
        value = arithmetic.round_bf16(silu * up)
        return {"out": memory.take("out", tuple(value.shape), value.dtype).copy_(value)}

    return run


FAULTS = (
    Fault(
        id="B8",
        title="channels from 257 on are left unwritten at width 768",
        trigger="an intermediate size of 768, the output filled with a sentinel",
        sources=("vllm-xpu-kernels issue 454",),
        target=_OP,
        plant=_unwritten_channels,
        witness=lambda run: checks.fresh(run, _random(2, 768)),
        caught_by=("fixtures", "bits", "sentinel"),
    ),
    Fault(
        id="C1",
        title="silu is not rounded before it multiplies up (another engine's convention)",
        trigger="any values that bfloat16 does not hold",
        sources=("fused SiLU and quantisation of vllm", "sglang's activation"),
        target=_OP,
        plant=lambda correct, fired: _other_silu(correct, fired, product=False),
        witness=lambda run: checks.fresh(run, _random(5, 40)),
        caught_by=("bits",),
    ),
)
