"""`mhc_pre`, `mhc_post` and `mhc_post_pre` under `mhc-c1` on a CPU, fused per token.

The loops are in `fast_loops`, which numba compiles on the first call.
"""

import math
from typing import Unpack

import numpy as np
import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.mhc import contract, fast_loops
from bitgate.kernels.mhc.contract import MixConstants
from bitgate.kernels.mhc.fast_loops import Array
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.records.errors import UsageError


def exp_numbers() -> Array:
    """Limit, log2(e), rounding magic, ln 2 high and low, inf, then Q from the top, and the NaN."""
    head = (
        arithmetic.EXP_LIMIT,
        arithmetic.LOG2_E,
        arithmetic.ROUND_MAGIC,
        arithmetic.LN2_HIGH,
        arithmetic.LN2_LOW,
        math.inf,
    )
    numbers = np.array((*head, *arithmetic.EXP_Q[::-1], 0.0), dtype=np.float32)
    numbers.view(np.int32)[-1] = arithmetic.NAN_BITS
    return numbers


def _bits() -> Array:
    return np.array([arithmetic.HIGH_BITS, arithmetic.NAN_BITS_BF16], dtype=np.int32)


def _numbers(**constants: Unpack[MixConstants]) -> Array:
    inner = contract.inner_eps(**constants)
    listed = (constants["rms_eps"], constants["hc_eps"], inner, constants["post_mult"])
    return np.array(listed, dtype=np.float32)


def _array(tensor: torch.Tensor, *shape: int) -> Array:
    """A CPU tensor's memory in the given shape; bfloat16 as int16 bit patterns."""
    if tensor.device.type != "cpu":
        raise UsageError(
            f"expected tensors on the CPU, got {tensor.device}: the numba implementations have no "
            "other device; choose a Triton implementation"
        )
    flat = tensor.detach().contiguous()
    flat = flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat
    array: Array = flat.numpy().reshape(shape)
    return array


def mhc_pre(
    *,
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    **constants: Unpack[MixConstants],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`mhc_pre` as MHC_PRE defines it: post, comb, layer_input.

    Raises:
        UsageError: an argument that the contract does not cover, or a tensor not on the CPU.
    """
    tensors = {"residual": residual, "fn": fn, "scale": scale, "base": base}
    hidden = contract.bind("mhc_pre", MHC_PRE.tensors, tensors)
    contract.check_constants("mhc_pre", **constants)
    tokens = residual.shape[0]
    post, comb = torch.empty(tokens, 4), torch.empty(tokens, 4, 4)
    layer_input = torch.empty(tokens, hidden, dtype=torch.bfloat16)
    fast_loops.pre_tokens(
        _array(residual, tokens, 4 * hidden),
        _array(fn, *fn.shape),
        _array(scale, 3),
        _array(base, 24),
        _numbers(**constants),
        int(constants["sinkhorn_iters"]),
        exp_numbers(),
        _bits(),
        _array(post, tokens, 4),
        _array(comb, tokens, 4, 4),
        _array(layer_input, tokens, hidden),
    )
    return post, comb, layer_input


def mhc_post(
    *, x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """`mhc_post` as MHC_POST defines it: residual_out.

    Raises:
        UsageError: an argument that the contract does not cover, or a tensor not on the CPU.
    """
    tensors = {"x": x, "residual": residual, "post": post, "comb": comb}
    hidden = contract.bind("mhc_post", MHC_POST.tensors, tensors)
    tokens = x.shape[0]
    residual_out = torch.empty(tokens, 4, hidden, dtype=torch.bfloat16)
    fast_loops.post_tokens(
        _array(x, tokens, hidden),
        _array(residual, tokens, 4 * hidden),
        _array(post, tokens, 4),
        _array(comb, tokens, 16),
        _bits(),
        _array(residual_out, tokens, 4 * hidden),
    )
    return residual_out


def mhc_post_pre(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    carry: str = "bf16",
    **constants: Unpack[MixConstants],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`mhc_post_pre` as MHC_POST_PRE defines it: residual_out, post_out, comb_out, layer_input.

    Raises:
        UsageError: an argument that the contract does not cover, or a tensor not on the CPU.
    """
    contract.check_carry("mhc_post_pre", carry)
    tensors = {"x": x, "residual": residual, "post": post, "comb": comb}
    tensors |= {"fn": fn, "scale": scale, "base": base}
    contract.bind("mhc_post_pre", MHC_POST_PRE.tensors, tensors)
    residual_out = mhc_post(x=x, residual=residual, post=post, comb=comb)
    mixed = mhc_pre(residual=residual_out, fn=fn, scale=scale, base=base, **constants)
    return residual_out, *mixed
