"""vLLM's CPU experts against ours: no equal bits, but both within a proved bound of float64.

`cpu_fused_moe` keeps float32 where our contract rounds to bfloat16, and adds in an order of its
own, so equal bits are not to be had. It rounds at fewer places than `moe-bf16/1`, whose error bound
therefore holds for it, too.
"""

import sys
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.parity import foreign_vllm
from bitgate.parity.suites.bounded import Side, bounded
from bitgate.parity.suites.cases import NAME, Case, cases
from bitgate.parity.suites.composition import Inputs
from bitgate.parity.suites.results import CaseResult, SuiteResult
from bitgate.parity.suites.vllm_engine import installed_version

CLAIM: Final = f"bounded: both sides within the bound of {MOE_BF16_1.name} around float64"
_NO_LIMIT: Final = float("inf")


def run() -> SuiteResult:
    """Run the cases whose experts are all local, which is what the CPU's operator knows.

    Raises:
        EnvironmentUnfit: no vLLM, or one that its adapter was not tested with.
    """
    version = installed_version()
    foreign_vllm.vllm("_custom_ops")
    found = [_case(case, version) for case in cases(full=False) if not _foreign(case)]
    return SuiteResult(
        suite=NAME,
        device="cpu",
        path="cpu_fused_moe, vec",
        engine=f"vLLM {version}",
        cases=tuple(found),
        facts={
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "not asked": ", ".join(case.name for case in cases(full=False) if _foreign(case))
            + ": the CPU's operator takes neither an expert map nor FP8 in blocks",
        },
    )


def _foreign(case: Case) -> bool:
    return case.block_shape is not None or case.rank is not None


def _case(case: Case, version: str) -> CaseResult:
    sides = (
        Side(name="bitgate's staged experts, by tiles in torch", call=_ours),
        Side(name=f"vLLM {version}, cpu_fused_moe", call=_theirs),
    )
    return bounded(case, "cpu", sides, CLAIM, _float64)


def _ours(inputs: Inputs) -> Tensor:
    tensors = inputs.tensors
    return experts_tile(**tensors, swiglu_limit=_NO_LIMIT, config=DEFAULT_CONFIG, tap=None)


def _theirs(inputs: Inputs) -> Tensor:
    return foreign_vllm.moe_experts("vec", **inputs.tensors, swiglu_limit=_NO_LIMIT)


def _float64(inputs: Inputs) -> tuple[Tensor, Tensor]:
    return experts_float64(**inputs.tensors, swiglu_limit=_NO_LIMIT, contract=MOE_BF16_1)
