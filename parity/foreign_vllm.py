"""vLLM's own operators under the names, shapes and constants of ours.

For processes in which vLLM can be imported; everything that belongs to one of its versions is in
this file. None of the functions stands under a contract of ours by its name: what its bits are
equal to is for a comparison to find out. Paths below are those of vLLM 0.32.0.
"""

from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels import interpreter
from bitgate.records.errors import EnvironmentUnfit, UsageError

TESTED: Final = ("0.32.0",)

# Columns and rows of the weights that vLLM's CPU experts take at a time.
_CPU_ALIGNMENT: Final = 32


def vllm(module: str) -> ModuleType:
    """A module of the installed vLLM, such as "_custom_ops".

    Raises:
        EnvironmentUnfit: there is no vLLM, or one that these functions were not tested with.
    """
    try:
        version = import_module("vllm").__version__
    except ModuleNotFoundError as error:
        raise EnvironmentUnfit(
            f"expected vLLM {' or '.join(TESTED)}, got: {error}; scripts/vllm_env makes an "
            "environment that has it, and prints its Python"
        ) from error
    if version.partition("+")[0] not in TESTED:
        raise EnvironmentUnfit(
            f"expected vLLM {' or '.join(TESTED)}, got {version}: its functions move between "
            "versions; scripts/vllm_env makes an environment with a tested one"
        )
    return import_module(f"vllm.{module}")


def moe_gemm(**arguments: Any) -> Tensor:
    """`fused_moe_kernel` of layers/fused_moe/fused_moe.py, for the output `out` of MOE_GEMM.

    On a CPU it runs in Triton's interpreter, with bfloat16 repaired.

    Args:
        arguments: the tensors and constants of MOE_GEMM; an expert id is -1 or names an expert.

    Raises:
        EnvironmentUnfit: see `vllm`; or vLLM has switched its Triton kernels off.
    """
    kernels = vllm("model_executor.layers.fused_moe.fused_moe")
    interpreter.repair()
    triton = vllm("triton_utils")
    if not triton.HAS_TRITON:
        raise EnvironmentUnfit(
            "expected vLLM with its Triton kernels, but it has switched them off: its CPU build "
            "never runs them, its GPU build wants one GPU, or CUDA_VISIBLE_DEVICES set to nothing"
        )
    a, w, weights = (arguments[name] for name in ("a", "w", "weights"))
    # Of a dropped pair it writes nothing: its callers hand it zeros.
    out: Tensor = a.new_zeros(1, weights.numel(), w.shape[1])
    kernels.invoke_fused_moe_triton_kernel(
        A=a,
        B=w,
        C=out,
        A_scale=None,
        B_scale=None,
        topk_weights=weights[:, None],
        sorted_token_ids=arguments["sorted_pairs"],
        expert_ids=arguments["expert_ids"],
        num_tokens_post_padded=arguments["padded"],
        mul_routed_weight=bool(arguments["apply_weights"]),
        top_k=arguments["top_k"],
        config={
            "BLOCK_SIZE_M": arguments["block_m"],
            "BLOCK_SIZE_N": arguments["block_n"],
            "BLOCK_SIZE_K": arguments["block_k"],
            "GROUP_SIZE_M": 1,
        },
        compute_type=triton.tl.bfloat16,
        use_fp8_w8a8=False,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=False,
        B_bias=arguments["bias"],
    )
    return out[0]


def mhc_pre(path: str, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`mhc_pre_torch` or `mhc_pre_cpu` of kernels/mhc, as MHC_PRE defines the operator.

    Args:
        path: "torch" or "cpu".
        arguments: the tensors and constants of MHC_PRE.

    Raises:
        EnvironmentUnfit: see `vllm`.
    """
    run = getattr(vllm("model_executor.kernels.mhc"), f"mhc_pre_{path}")
    post, comb, layer_input = run(
        residual=arguments["residual"],
        fn=arguments["fn"],
        hc_scale=arguments["scale"],
        hc_base=arguments["base"],
        rms_eps=arguments["rms_eps"],
        hc_pre_eps=arguments["hc_eps"],
        hc_sinkhorn_eps=arguments["hc_eps"],
        hc_post_mult_value=arguments["post_mult"],
        sinkhorn_repeat=arguments["sinkhorn_iters"],
    )
    return post.squeeze(-1), comb, layer_input


def mhc_post(path: str, *, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`mhc_post_torch` or `mhc_post_cpu` of kernels/mhc, as MHC_POST defines the operator.

    Raises:
        EnvironmentUnfit: see `vllm`.
    """
    run = getattr(vllm("model_executor.kernels.mhc"), f"mhc_post_{path}")
    result: Tensor = run(x, residual, post[..., None], comb)
    return result


def moe_experts(isa: str, *, swiglu_limit: float, **tensors: Tensor) -> Tensor:
    """`cpu_fused_moe` as CPUUnquantizedExperts calls it, as MOE_EXPERTS defines the operator.

    Weights and rows are filled up with zeros to the multiples of 32 that it asks for; vLLM itself
    does so for the intermediate channels only.

    Args:
        isa: "vec", or "amx" on a processor that has it.
        swiglu_limit: inf, for vLLM's operator has no limit.
        tensors: those of MOE_EXPERTS; topk_ids without padding.

    Raises:
        UsageError: a limit or padding.
        EnvironmentUnfit: see `vllm`; or the processor has no such instructions.
    """
    # Without the system's leave, which this gets, the first of its instructions ends the process.
    if isa == "amx" and not torch.cpu._init_amx():  # noqa: SLF001 - torch has no public function
        raise EnvironmentUnfit(
            "expected a processor with AMX, got one without; choose the instruction set vec"
        )
    x, ids, w_down = (tensors[name] for name in ("x", "topk_ids", "w_down"))
    if swiglu_limit != float("inf") or not bool(((ids >= 0) & (ids < len(w_down))).all()):
        raise UsageError(
            "vLLM's CPU experts: expected swiglu_limit inf and ids that name an expert, got "
            f"{swiglu_limit} and ids {sorted(set(ids.flatten().tolist()))}; choose another workload"
        )
    ops = vllm("_custom_ops")
    gate_up = torch.cat([_filled(half) for half in tensors["w_gate_up"].chunk(2, dim=1)], dim=1)
    rows = functional.pad(x, (0, -x.shape[1] % _CPU_ALIGNMENT))
    out = torch.empty_like(rows)
    ops.cpu_fused_moe(
        out,
        rows,
        ops.cpu_prepack_moe_weight(gate_up, isa),
        ops.cpu_prepack_moe_weight(_filled(w_down), isa),
        None,
        None,
        tensors["topk_weights"].float(),
        ids.to(torch.int32),
        "silu",
        isa,
    )
    return out[:, : x.shape[1]].contiguous()


def _filled(matrices: Tensor) -> Tensor:
    """Matrices [experts, rows, columns] with zeros up to a multiple of 32 rows and columns."""
    _, rows, columns = matrices.shape
    return functional.pad(matrices, (0, -columns % _CPU_ALIGNMENT, 0, -rows % _CPU_ALIGNMENT))
