"""`moe_act_quant` under `moe-fp8/1`: the truth in plain torch, of the steps of its two halves."""

from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.moe.act import ALPHA, Activation
from bitgate.kernels.moe.act_quant import check
from bitgate.kernels.moe.act_reference import activated, halves
from bitgate.kernels.moe.quant_reference import quantised


def moe_act_quant(
    *,
    gate_up: Tensor,
    swiglu_limit: float,
    scheme: str,
    group: int,
    scale_rule: str,
    rounding: str,
    kind: str = "silu",
    round_between: int = 1,
    alpha: float = ALPHA,
    round_product: int = 1,
) -> tuple[Tensor, Tensor]:
    """The gated activation in float8; see MOE_ACT_QUANT.

    Args:
        gate_up: [rows, 2 * intermediate] bfloat16, as moe_act has it.
        swiglu_limit: moe_act's.
        scheme: token or group; moe_quant's, as are the next three.
        group: see there.
        scale_rule: see there.
        rounding: see there.
        kind: moe_act's, as are the next two.
        round_between: see there.
        alpha: see there.
        round_product: 1 rounds the product to bfloat16 before it is quantised, 0 does not.

    Returns:
        (codes [rows, intermediate] float8_e4m3fn, scales [rows, 1 or groups] float32).

    Raises:
        UsageError: an argument is not what MOE_ACT_QUANT says.
    """
    settings = Activation(
        swiglu_limit=swiglu_limit,
        kind=kind,
        round_between=round_between,
        alpha=alpha,
        op="moe_act_quant",
    )
    check({"gate_up": gate_up}, scheme, group, scale_rule, rounding, round_product)
    gate, up = halves(gate_up.float(), settings)
    product = activated(gate, up, settings)
    if round_product:
        product = arithmetic.round_bf16(product).float()
    return quantised(product, scheme, group, scale_rule, rounding)
