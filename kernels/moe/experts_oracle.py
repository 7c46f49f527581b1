"""How far the experts may be from the exact value: float64, with a bound that is proved.

Nothing is rounded in the float64 path. The bound follows the roundings of the contract one by one:
a float32 sum of n exact terms is within n * 2**-24 / (1 - n * 2**-24) of their magnitudes in any
order, every bfloat16 rounding within 2**-8 of the value, and both are carried through the later
steps. The steps of a GPU's matrix instructions, which truncate, stay within the bound as far as
they are known: n is rounded up to their 16 terms.
"""

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import MOE_BF16_1, MOE_TORCH_1
from bitgate.kernels.spec import Contract
from bitgate.records.errors import UsageError

FP32 = 2.0**-24
# A float32 result on the way is rounded, too.
_BF16 = 2.0**-8 + 2.0**-23
# silu's steepest slope is 1.0998; it is evaluated in float32 to a few units in the last place.
_SILU_SLOPE = 1.1
_SILU_EVALUATION = 8 * FP32
# What is flushed or lost below the smallest normal float32, generously.
TINY = 1e-30


def experts_float64(
    *,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    swiglu_limit: float,
    contract: Contract = MOE_TORCH_1,
) -> tuple[Tensor, Tensor]:
    """The exact experts and the largest error that a contract can make.

    Args:
        x: as for `experts_loop`, and so are the others.
        topk_ids: see there.
        topk_weights: see there.
        w_gate_up: see there.
        w_down: see there.
        swiglu_limit: see there.
        contract: MOE_TORCH_1 or MOE_BF16_1; the value is the same, the bound is not.

    Returns:
        (value, bound), both [tokens, hidden] float64: |out - value| <= bound for every
        implementation of the contract, on any host and in any order inside a matmul.

    Raises:
        UsageError: nothing is known of the contract.
    """
    if contract not in (MOE_TORCH_1, MOE_BF16_1):
        raise UsageError(f"no error bound is known for {contract.name}; derive one from its rules")
    # moe-torch/1 rounds after each of these steps; moe-bf16/1 keeps float32 until the last.
    often = contract == MOE_TORCH_1
    experts, top_k = w_gate_up.shape[0], topk_ids.shape[1]
    value = torch.zeros(x.shape, dtype=torch.float64)
    bound, magnitude = torch.zeros_like(value), torch.zeros_like(value)
    inputs = x.double()
    for expert in range(experts):
        # A slot at a time: a token that names an expert twice then adds it twice.
        for slot in range(top_k):
            tokens = torch.where(topk_ids[:, slot] == expert)[0]
            if not len(tokens):
                continue
            term, error = _expert(
                inputs[tokens], w_gate_up[expert].double(), w_down[expert].double(), swiglu_limit
            )
            if often:
                error = rounded(term, error)
            weight = topk_weights[tokens, slot, None].double()
            term, error = term * weight, error * weight.abs()
            error = rounded(term, error)
            value[tokens] += term
            bound[tokens] += error
            magnitude[tokens] += term.abs() + error
            if often:
                bound[tokens] = rounded(value[tokens], bound[tokens])
    if not often:
        bound = rounded(value, bound + summation(top_k) * magnitude)
    return value, bound + TINY


def _expert(rows: Tensor, w_gate_up: Tensor, w_down: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """One expert's rows before the last rounding, in float32."""
    both, both_error = matmul(rows, torch.zeros_like(rows), w_gate_up)
    product, error = gated(both, rounded(both, both_error), limit)
    return matmul(product, error, w_down)


def gated(both: Tensor, both_error: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The activation silu of exact gates and ups, halves of the last axis, and its error.

    The error is that after both roundings to bfloat16.
    """
    gate, up = both.chunk(2, dim=-1)
    gate_error, up_error = both_error.chunk(2, dim=-1)
    # A clamp never moves two numbers apart.
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    silu = gate * torch.sigmoid(gate)
    silu_error = _SILU_SLOPE * gate_error
    silu_error = rounded(silu, silu_error + _SILU_EVALUATION * (silu.abs() + silu_error))
    product = silu * up
    error = silu_error * up.abs() + up_error * silu.abs() + silu_error * up_error
    return product, rounded(product, error)


def matmul(rows: Tensor, rows_error: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The product rows @ weight.T in float64, and the error of its float32 accumulator.

    Args:
        rows: [rows, k] float64.
        rows_error: [rows, k] float64, how far the rows themselves may be off.
        weight: [n, k] float64, exact.
    """
    value = rows @ weight.T
    carried = rows_error @ weight.abs().T
    magnitude = rows.abs() @ weight.abs().T + carried
    return value, carried + summation(-(-rows.shape[1] // 16) * 16) * magnitude


def rounded(value: Tensor, error: Tensor) -> Tensor:
    """The error after one more rounding to bfloat16."""
    return error + _BF16 * (value.abs() + error)


def summation(terms: int, unit: float = FP32) -> float:
    """How much of their magnitudes a sum of so many terms can lose, `unit` with each of them."""
    return terms * unit / (1 - terms * unit)
