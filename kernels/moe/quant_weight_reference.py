"""`moe_quant_weight` under `moe-fp8/1`: the truth in plain torch, of the steps of `moe_quant`."""

from torch import Tensor
from torch.nn import functional

from bitgate.kernels.moe.quant_reference import amax_of, codes_of, scale_of
from bitgate.kernels.moe.quant_rules import WEIGHT_FLOORS
from bitgate.kernels.moe.quant_weight import check


def moe_quant_weight(
    *,
    w: Tensor,
    block_n: int = 128,
    block_k: int = 128,
    scale_rule: str = "amax",
    rounding: str = "reciprocal",
) -> tuple[Tensor, Tensor]:
    """Weights in float8 and the scales of their blocks; see MOE_QUANT_WEIGHT.

    Args:
        w: [experts, n, k] bfloat16.
        block_n: rows of a block, 64 or 128.
        block_k: columns of a block, 64 or 128.
        scale_rule: amax or ue8m0.
        rounding: divide or reciprocal.

    Returns:
        (codes [experts, n, k] float8_e4m3fn,
        scales [experts, ceil(n / block_n), ceil(k / block_k)] float32).

    Raises:
        UsageError: an argument is not what MOE_QUANT_WEIGHT says.
    """
    check({"w": w}, block_n, block_k, scale_rule, rounding)
    blocks = blocked(w.float(), block_n, block_k)
    scales = scale_of(amax_of(blocks.flatten(-2)), WEIGHT_FLOORS, scale_rule)
    codes = codes_of(blocks, scales[..., None, None], rounding).transpose(2, 3)
    experts, rows, block_n, columns, block_k = codes.shape
    whole = codes.reshape(experts, rows * block_n, columns * block_k)
    return whole[:, : w.shape[1], : w.shape[2]].contiguous(), scales


def blocked(w: Tensor, block_n: int, block_k: int) -> Tensor:
    """[experts, n, k] as [experts, blocks of n, blocks of k, block_n, block_k], padded with +0."""
    experts, n, k = w.shape
    padded = functional.pad(w, (0, -k % block_k, 0, -n % block_n))
    rows, columns = -(-n // block_n), -(-k // block_k)
    return padded.reshape(experts, rows, block_n, columns, block_k).transpose(2, 3)
