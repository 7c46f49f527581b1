"""The suite vllm-moe: our staged experts against the vLLM of this node's own environment."""

import sys
from typing import Final

import torch

from bitgate.parity.suites.cases import NAME, Case, cases
from bitgate.parity.suites.composition import compose
from bitgate.parity.suites.judge import CLAIM, Compose, judge, shapes, sides
from bitgate.parity.suites.results import CaseResult, SuiteResult
from bitgate.parity.suites.vllm_engine import Engine, has_triton_experts, open_engine
from bitgate.records.errors import EnvironmentUnfit, UsageError

# The first compute capability with FP8 products: Ada; Hopper's is 9.0.
_FP8_CAPABILITY: Final = (8, 9)


def run(device: str, assumed: str | None = None, composition: Compose = compose) -> SuiteResult:
    """Run the suite against the engine's path for `device`: cuda, xpu or cpu.

    On a CPU it is vLLM's Triton kernels in the interpreter where this process has them, and the
    experts of its CPU build otherwise.

    Raises:
        EnvironmentUnfit: no vLLM, none that can be called, or no such device.
    """
    if device == "xpu":
        from bitgate.parity.suites.xpu_experts import run as run_xpu

        return run_xpu()
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentUnfit(
            "expected a CUDA device, got none that this torch sees; run on the node itself, or "
            "with --device cpu for the interpreter"
        )
    if device == "cpu" and not has_triton_experts():
        from bitgate.parity.suites.cpu_experts import run as run_cpu

        if assumed is not None:
            raise UsageError(
                f"--assume-version {assumed}: expected none where vLLM has no Triton experts; its "
                "CPU operator is called in one way only"
            )
        return run_cpu()
    with open_engine(device, assumed) as engine:
        found = [_case(engine, case, composition) for case in cases(full=device == "cuda")]
        return SuiteResult(
            suite=NAME,
            device=device,
            path="fused_experts, Triton" + (", interpreted" if device == "cpu" else ""),
            engine=f"vLLM {engine.version}",
            cases=tuple(found),
            facts=_facts(engine, assumed),
            substitutes=engine.substitutes,
        )


def _case(engine: Engine, case: Case, composition: Compose) -> CaseResult:
    capability = torch.cuda.get_device_capability() if engine.device == "cuda" else None
    if case.block_shape and capability is not None and capability < _FP8_CAPABILITY:
        return CaseResult(
            name=case.name,
            asks=case.asks,
            status="skipped",
            claim=CLAIM,
            sides=sides(engine),
            shapes=shapes(case),
            reason=f"expected compute capability 8.9 for FP8 products, got {capability}",
        )
    return judge(engine, case, composition)


def _facts(engine: Engine, assumed: str | None) -> dict[str, str]:
    rules = engine.rules
    triton = sys.modules.get("triton")
    return {
        "torch": torch.__version__,
        "triton": getattr(triton, "__version__", "none"),
        "device": torch.cuda.get_device_name() if engine.device == "cuda" else "Triton interpreter",
        "called like": rules.name + ("" if assumed is None else f" (assumed version {assumed})"),
        "alignment": rules.layout,
        "moe_sum": rules.moe_sum,
        "FP8 quantiser": rules.quantiser,
        "epilogue": rules.epilogue,
        "chunks": "none" if rules.chunk_tokens is None else f"{rules.chunk_tokens} tokens",
    }
