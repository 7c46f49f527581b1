"""The Triton experts of the vLLM in this process, called by the rules of its version."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from bitgate.kernels.moe.align_sets import Alignment
from bitgate.parity.suites.trace import Trace, tracing
from bitgate.parity.suites.vllm_versions import VllmRules, rules_for
from bitgate.records.errors import EnvironmentUnfit

_LAYERS: Final = "vllm.model_executor.layers.fused_moe"
FP8: Final = "fp8_w8a8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """FP8 weights in blocks: the scales of both matrices, and rows and columns of a block."""

    gate_up_scales: Tensor
    down_scales: Tensor
    block_shape: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One grouped product, as vLLM's function for it takes it.

    Attributes:
        a: [rows, k], of pair p the row p // top_k.
        a_scales: of FP8 rows.
        w: [experts, n, k].
        w_scales: of FP8 weights.
        out: [tokens, slots, n], written.
        weights: [tokens, slots] float32.
        aligned: sorted pairs, experts of blocks, places covered.
        weigh: whether the accumulator is multiplied by `weights`.
        top_k: pairs per row of `a`.
        config: the tiles, under vLLM's names.
        compute_type: what the accumulator is rounded to, as Triton names it: bfloat16.
        block_shape: of FP8 weights.
    """

    a: Tensor
    a_scales: Tensor | None
    w: Tensor
    w_scales: Tensor | None
    out: Tensor
    weights: Tensor
    aligned: Alignment
    weigh: bool
    top_k: int
    config: dict[str, int]
    compute_type: str
    block_shape: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """vLLM's own functions.

    Attributes:
        version: of vLLM.
        rules: how that version is called.
        device: cpu, cuda or xpu, where the tensors lie.
        experts: its module fused_moe.fused_moe.
        operators: its module _custom_ops.
        substitutes: what stands in for operators that this build lacks, on both sides alike.
    """

    version: str
    rules: VllmRules
    device: str
    experts: ModuleType
    operators: ModuleType
    substitutes: tuple[str, ...] = ()

    def tiles(
        self,
        shapes: tuple[torch.Size, torch.Size],
        top_k: int,
        dtype: str | None,
        tokens: int,
        block_shape: tuple[int, int] | None,
    ) -> dict[str, int]:
        """The tiles that it resolves for weights of these shapes: from a file, or by default."""
        resolved = self.experts.try_get_optimal_moe_config(
            shapes[0], shapes[1], top_k, dtype, tokens, block_shape=_list(block_shape)
        )
        return dict(resolved)

    def align(
        self, topk_ids: Tensor, block_m: int, experts: int, expert_map: Tensor | None
    ) -> Alignment:
        """Its alignment; ids and `experts` number those of the layer, not the local ones."""
        drop = {"ignore_invalid_experts": True} if self.rules.drops_nonlocal else {}
        sorted_pairs, expert_ids, padded = self.experts.moe_align_block_size(
            topk_ids, block_m, experts, expert_map, **drop
        )
        return sorted_pairs, expert_ids, padded

    def quantise(self, x: Tensor, block_shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Its quantiser: codes [rows, k] float8_e4m3fn, scales [rows, k / columns of a block]."""
        codes, scales = self.experts.moe_kernel_quantize_input(
            A=x,
            A_scale=None,
            quant_dtype=torch.float8_e4m3fn,
            per_act_token_quant=False,
            block_shape=_list(block_shape),
        )
        return codes, scales

    def multiply(self, call: Product) -> None:
        """Its grouped product into call.out."""
        sorted_pairs, expert_ids, padded = call.aligned
        getattr(self.experts, self.rules.gemm)(
            call.a,
            call.w,
            call.out,
            call.a_scales,
            call.w_scales,
            None,
            call.weights,
            sorted_pairs,
            expert_ids,
            padded,
            call.weigh,
            call.top_k,
            call.config,
            compute_type=getattr(self.experts.tl, call.compute_type),
            use_fp8_w8a8=call.w_scales is not None,
            use_int8_w8a8=False,
            use_int8_w8a16=False,
            use_int4_w4a16=False,
            per_channel_quant=False,
            block_shape=_list(call.block_shape),
        )

    def activate(self, gate_up: Tensor, out: Tensor) -> None:
        """Its silu_and_mul of [rows, 2 * n] into [rows, n]."""
        torch.ops._C.silu_and_mul(out, gate_up)  # noqa: SLF001 - the name of vLLM's library

    def add(self, rows: Tensor, out: Tensor) -> None:
        """Its moe_sum of [tokens, slots, n] into [tokens, n]."""
        self.operators.moe_sum(rows, out)

    def fused_experts(
        self,
        tensors: dict[str, Tensor],
        experts: int,
        expert_map: Tensor | None,
        quantised: Quantised | None,
    ) -> Tensor:
        """Its fused_experts over x, w_gate_up, w_down, topk_weights and topk_ids."""
        told: dict[str, Any] = {}
        if quantised is not None and self.rules.quantisation == "flags":
            told = {
                "use_fp8_w8a8": True,
                "w1_scale": quantised.gate_up_scales,
                "w2_scale": quantised.down_scales,
                "block_shape": _list(quantised.block_shape),
            }
        elif quantised is not None:
            config = import_module(f"{_LAYERS}.config").fp8_w8a8_moe_quant_config(
                w1_scale=quantised.gate_up_scales,
                w2_scale=quantised.down_scales,
                block_shape=_list(quantised.block_shape),
            )
            told = {"quant_config": config}
        result: Tensor = self.experts.fused_experts(
            tensors["x"],
            tensors["w_gate_up"],
            tensors["w_down"],
            tensors["topk_weights"],
            tensors["topk_ids"].to(torch.int32),
            global_num_experts=experts,
            expert_map=expert_map,
            **told,
        )
        return result

    def tracing(self) -> AbstractContextManager[Trace]:
        """Traces what passes its functions, whoever calls them."""
        return tracing(self.experts, self.rules.gemm)


def installed_version() -> str:
    """The version of the vLLM that this process imports.

    Raises:
        EnvironmentUnfit: there is none.
    """
    try:
        version: str = import_module("vllm").__version__
    except ModuleNotFoundError as error:
        raise EnvironmentUnfit(
            f"expected vLLM, got: {error}; run inside the engine's image, or in the environment "
            "that scripts/vllm_env makes (it prints its Python)"
        ) from error
    return version


def has_triton_experts() -> bool:
    """Whether the installed vLLM runs its Triton kernels in this process.

    Raises:
        EnvironmentUnfit: there is no vLLM.
    """
    installed_version()
    return bool(import_module("vllm.triton_utils").HAS_TRITON)


@contextmanager
def open_engine(device: str, assumed: str | None) -> Iterator[Engine]:
    """The Triton experts of the installed vLLM; what its build lacks is substituted meanwhile.

    Args:
        device: cuda, or cpu for Triton's interpreter.
        assumed: a known version by whose rules an unknown one is called.

    Raises:
        EnvironmentUnfit: no vLLM, an unknown version, or one that lacks a function of its rules.
    """
    version = installed_version()
    rules = rules_for(version, assumed)
    experts = import_module(f"{_LAYERS}.fused_moe")
    operators = import_module("vllm._custom_ops")
    missing = [
        name
        for name in (
            rules.gemm,
            "fused_experts",
            "fused_moe_kernel",
            "moe_align_block_size",
            "moe_kernel_quantize_input",
            "try_get_optimal_moe_config",
        )
        if not hasattr(experts, name)
    ]
    if missing:
        raise EnvironmentUnfit(
            f"expected vLLM {version} to be called like {rules.name}, but its fused_moe.py has no "
            f"{', '.join(missing)}; correct its range in parity/suites/vllm_versions.py"
        )
    engine = Engine(
        version=version, rules=rules, device=device, experts=experts, operators=operators
    )
    if device != "cpu":
        yield engine
        return
    from bitgate.parity.suites.vllm_substitutes import substituted

    with substituted(engine) as complete:
        yield complete


def _list(shape: tuple[int, int] | None) -> list[int] | None:
    return None if shape is None else list(shape)
