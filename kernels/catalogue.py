"""Every operator and every contract, one line each; add yours here.

`tests/kernels/test_catalogue.py` fails when a Kernel that a file exports is missing below.
"""

from difflib import get_close_matches
from typing import TypeVar

from bitgate.kernels.mhc.contract import MHC_C1, MHC_TORCH_1
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.moe import MOE_BF16_1, MOE_EXPERTS, MOE_FP8_1, MOE_TORCH_1
from bitgate.kernels.moe.act import MOE_ACT
from bitgate.kernels.moe.act_quant import MOE_ACT_QUANT
from bitgate.kernels.moe.align import MOE_ALIGN
from bitgate.kernels.moe.combine import MOE_COMBINE
from bitgate.kernels.moe.combine_weighted import MOE_COMBINE_WEIGHTED, MOE_GATHER_1
from bitgate.kernels.moe.experts_fp8 import MOE_EXPERTS_FP8
from bitgate.kernels.moe.gemm import MOE_GEMM
from bitgate.kernels.moe.gemm_fp8 import MOE_GEMM_FP8
from bitgate.kernels.moe.mxfp4 import MOE_DEQUANT_MXFP4, MXFP4_1
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.moe.quant_weight import MOE_QUANT_WEIGHT
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_hash import MOE_ROUTE_HASH
from bitgate.kernels.spec import Contract, Implementation, Kernel
from bitgate.records.errors import UsageError

T = TypeVar("T")

KERNELS: tuple[Kernel, ...] = (
    MHC_PRE,
    MHC_POST,
    MHC_POST_PRE,
    MOE_ROUTE,
    MOE_ROUTE_HASH,
    MOE_ALIGN,
    MOE_GEMM,
    MOE_GEMM_FP8,
    MOE_ACT,
    MOE_COMBINE,
    MOE_COMBINE_WEIGHTED,
    MOE_DEQUANT_MXFP4,
    MOE_QUANT,
    MOE_QUANT_WEIGHT,
    MOE_ACT_QUANT,
    MOE_EXPERTS,
    MOE_EXPERTS_FP8,
)
CONTRACTS: tuple[Contract, ...] = (
    MHC_C1,
    MHC_TORCH_1,
    MOE_BF16_1,
    MOE_FP8_1,
    MOE_TORCH_1,
    MOE_GATHER_1,
    MXFP4_1,
)


def kernel(op: str) -> Kernel:
    """The definition of one operator. Raises UsageError that lists the known ones."""
    return _named("operator", op, {kernel.op: kernel for kernel in KERNELS})


def contract(name: str) -> Contract:
    """One contract. Raises UsageError that lists the known ones."""
    return _named("contract", name, {contract.name: contract for contract in CONTRACTS})


def implementation(name: str) -> Implementation:
    """One implementation of any operator. Raises UsageError that lists the known ones."""
    return _named(
        "implementation",
        name,
        {found.name: found for kernel in KERNELS for found in kernel.implementations},
    )


def _named(what: str, name: str, known: dict[str, T]) -> T:
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"unknown {what} {name!r}; known: {', '.join(sorted(known))}{hint}")
