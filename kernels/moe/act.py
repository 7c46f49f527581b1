"""The definition of `moe_act`: the gated activation between the two matmuls of the experts.

Everything is float32; bf16 rounds, and each kind has its own arithmetic:

    silu          gate = min(gate, limit);  up = up between -limit and limit
                  factor = gate / (1 + exp(-gate))
    swiglu-oai    gate and up clamped as for silu
                  factor = gate * (1 / (1 + exp(-(alpha * gate))));  up = up + 1
    swiglu-step   factor = min(gate / (1 + exp(-gate)), limit);  up = up between -limit and limit

    with round_between = 1:  factor = bf16(factor)
    out[r, i] = bf16(factor * up)

`gate` and `up` are the halves of a row, gate_up[r, i] and gate_up[r, intermediate + i]; swiglu-oai
has them interleaved, gate_up[r, 2 i] and gate_up[r, 2 i + 1]. exp, the rounding to nearest even and
the one canonical NaN are those of `kernels.arithmetic`, the division is correctly rounded, and no
multiply is contracted with an add, so the bits are the same on every device. The limit of a model
without one is inf. alpha, which swiglu-oai alone has, is rounded to float32 first.

Which engine rounds how:
- silu with round_between = 1: vLLM and its XPU kernels. With 0: SGLang, and fused activations that
  keep the product in float32. DeepSeek-V4 clamps at 10; most models have no limit.
- swiglu-oai (gpt-oss): limit 7, alpha 1.702. vLLM's and the XPU kernel round once, so round_between
  is 0. vLLM's newer vectorised form divides (up + 1) * gate by 1 + exp: another order.
- swiglu-step (Step-3.5, its last layers at 7): vLLM's Triton kernel rounds once, round_between 0;
  the model's own torch form rounds silu, round_between 1. The Triton kernel multiplies gate by
  sigmoid where this divides, which shows in a third of the float32 factors and hardly in bfloat16.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.moe import act_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

# A kind's place is its number in the kernels.
KINDS: Final = ("silu", "swiglu-oai", "swiglu-step")
ALPHA: Final = 1.702

MOE_ACT = Kernel(
    op="moe_act",
    summary="the gated activation: silu of the clamped gate times the clamped up, or a kin of it",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="gate_up", dtype="bfloat16", axes=("rows", "2*intermediate")),
        TensorSpec(name="out", dtype="bfloat16", axes=("rows", "intermediate"), role="out"),
    ),
    constants=(("swiglu_limit", 10.0), ("kind", "silu"), ("round_between", 1), ("alpha", ALPHA)),
    make_inputs=act_data.make_inputs,
    integer_cases=act_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_act-replay",
            op="moe_act",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_reference:moe_act",
            summary="the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_act-triton",
            op="moe_act",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.act_triton:moe_act",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MOE_BF16_1.name: "moe_act-replay"},
    suites=act_data.SUITES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The constants of an activation, checked; an operator with an activation inside takes them.

    Raises:
        UsageError: a constant is not what MOE_ACT says. The limit must be a bfloat16, for engines
            that clamp before and after rounding would differ; swiglu-oai rounds once, and alpha
            belongs to it alone.
    """

    swiglu_limit: float
    kind: str = "silu"
    round_between: int = 1
    alpha: float = ALPHA
    op: str = "moe_act"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.op}: expected a kind of {', '.join(KINDS)}, got {self.kind!r}")
        if type(self.round_between) is not int or self.round_between not in (0, 1):
            raise UsageError(
                f"{self.op}: expected round_between of 0 or 1, an int, got {self.round_between!r}"
            )
        if self.kind == "swiglu-oai" and self.round_between:
            raise UsageError(
                f"{self.op}: expected round_between of 0 for swiglu-oai, which rounds once, got 1"
            )
        self._check_limit()
        self._check_alpha()

    @property
    def limit(self) -> float:
        """The limit as a float."""
        return float(self.swiglu_limit)

    @property
    def slope(self) -> float:
        """alpha, rounded to float32."""
        return _rounded(self.alpha, torch.float32)

    @property
    def number(self) -> int:
        """The kind's number in the kernels."""
        return KINDS.index(self.kind)

    @property
    def interleaved(self) -> bool:
        """Whether gates and ups alternate in a row, instead of lying in two halves."""
        return self.kind == "swiglu-oai"

    def _check_limit(self) -> None:
        limit = self.swiglu_limit
        if type(limit) not in (int, float) or not limit > 0:
            raise UsageError(
                f"{self.op}: expected swiglu_limit to be a positive number, or inf for none, got "
                f"{shown(limit)}"
            )
        rounded = _rounded(limit, torch.bfloat16)
        if rounded != limit:
            raise UsageError(
                f"{self.op}: expected a swiglu_limit that bfloat16 holds exactly, got "
                f"{shown(limit)}; the nearest is {rounded}"
            )

    def _check_alpha(self) -> None:
        alpha = self.alpha
        if type(alpha) not in (int, float) or not 0 < _rounded(alpha, torch.float32) < math.inf:
            raise UsageError(
                f"{self.op}: expected alpha to be a positive float32, got {shown(alpha)}"
            )
        if self.kind != "swiglu-oai" and alpha != ALPHA:
            raise UsageError(
                f"{self.op}: expected no alpha beside {self.kind}, got {alpha}; it is swiglu-oai's"
            )


def _rounded(value: float, dtype: torch.dtype) -> float:
    """The nearest number of a dtype; an integer beyond float64 is inf, whatever its sign."""
    try:
        wide = float(value)
    except OverflowError:
        return math.inf
    return float(torch.tensor(wide, dtype=torch.float64).to(dtype).item())


def check(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> int:
    """Check the tensors of moe_act; return the intermediate size.

    Raises:
        UsageError: a tensor is not as MOE_ACT says.
    """
    tensors = {"gate_up": gate_up} | ({} if out is None else {"out": out})
    return bind("moe_act", MOE_ACT.tensors, tensors)["intermediate"]
