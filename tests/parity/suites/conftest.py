"""A package that offers what the suite calls of vLLM, with the signatures of two versions.

It computes with plain torch: what is tested with it is how the suite calls, compares and reports.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bitgate.kernels.moe.quant_reference import moe_quant
from bitgate.parity.suites.vllm_engine import Engine, open_engine
from bitgate.parity.suites.vllm_versions import VllmRules, rules_for

Tensor = torch.Tensor
LAYERS = "vllm.model_executor.layers.fused_moe"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class StubKernel:
    """`fused_moe_kernel`: tile by tile over ascending K; scales of a block, or the first alone."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.launch

    @staticmethod
    def launch(operands: SimpleNamespace, **constants: Any) -> None:
        block_m, step, top_k = (
            constants[name] for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_K", "top_k")
        )
        rows = operands.C.view(-1, operands.C.shape[-1])
        weights = operands.weights.flatten()
        for block in range(int(operands.padded) // block_m):
            places = operands.sorted_pairs[block * block_m : (block + 1) * block_m].long()
            places = places[places < len(weights)]
            expert = int(operands.expert_ids[block])
            if expert == -1:
                rows[places] = 0
                continue
            acc = torch.zeros(len(places), rows.shape[1])
            left, right = operands.A[places // top_k].float(), operands.B[expert].float()
            for start in range(0, left.shape[1], step):
                k = slice(start, start + step)
                scale = StubKernel.scale(operands, places // top_k, expert, start)
                acc += left[:, k] @ right[:, k].T * scale
            if constants["MUL_ROUTED_WEIGHT"]:
                acc = acc * weights[places, None]
            rows[places] = acc.to(DTYPES[constants["compute_type"]]).to(rows.dtype)

    @staticmethod
    def scale(operands: SimpleNamespace, rows: Tensor, expert: int, start: int) -> Tensor:
        a, b = operands.A_scale, operands.B_scale
        if b is None:
            return torch.ones(1)
        if operands.block_shape is None:
            return a[rows, 0, None] * b[expert].flatten()[0]
        n, k = operands.block_shape
        columns = torch.arange(operands.B.shape[1]) // n
        return a[rows, start // k, None] * b[expert][columns, start // k]


class Stub:
    """The modules of one version, and what was asked of them."""

    def __init__(self, version: str) -> None:
        self.rules: VllmRules = rules_for(version)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        # Faults of the engine itself.
        self.drift = 0.0
        names = ("vllm", "vllm._custom_ops", "vllm.triton_utils", "vllm.platforms")
        layers = ("vllm.model_executor", "vllm.model_executor.layers", LAYERS)
        names += (*layers, f"{LAYERS}.fused_moe", f"{LAYERS}.config")
        self.modules: dict[str, Any] = {name: ModuleType(name) for name in names}
        self.modules["vllm"].__version__ = version
        self.modules["vllm.triton_utils"].HAS_TRITON = True
        self.modules["vllm.platforms"].current_platform = SimpleNamespace(get_device_name=_nameless)
        self.modules[f"{LAYERS}.config"].fp8_w8a8_moe_quant_config = self.quant_config
        experts = self.experts
        experts.tl = SimpleNamespace(bfloat16="bfloat16", float16="float16")
        experts.fused_moe_kernel = StubKernel()
        experts.moe_align_block_size = self.align
        experts.moe_kernel_quantize_input = self.quantise
        experts.try_get_optimal_moe_config = self.tiles
        setattr(experts, self.rules.gemm, self.gemm)
        flags = self.rules.quantisation == "flags"
        experts.fused_experts = self.fused_experts_flags if flags else self.fused_experts_config

    @property
    def experts(self) -> Any:
        return self.modules[f"{LAYERS}.fused_moe"]

    def quant_config(self, w1_scale: Tensor, w2_scale: Tensor, block_shape: list[int]) -> Any:
        return SimpleNamespace(w1_scale=w1_scale, w2_scale=w2_scale, block_shape=block_shape)

    def tiles(
        self,
        w1_shape: Any,
        w2_shape: Any,
        top_k: int,
        dtype: str | None,
        M: int,  # noqa: N803 - vLLM's name
        block_shape: list[int] | None = None,
    ) -> dict[str, int]:
        self.asked.append(("tiles", {"dtype": dtype, "tokens": M, "block_shape": block_shape}))
        old = self.rules.first == (0, 10, 2)
        if dtype == "fp8_w8a8" and block_shape is not None:
            block_m, block_n, block_k = 64 if old else 16, block_shape[0], block_shape[1]
        elif old:
            block_m, block_n, block_k = (16, 32, 64) if w2_shape[0] >= M else (64, 64, 32)
        else:
            block_m, block_n, block_k = 32 if M <= 96 else 64, 128, 64
        return {
            "BLOCK_SIZE_M": block_m,
            "BLOCK_SIZE_N": block_n,
            "BLOCK_SIZE_K": block_k,
            "GROUP_SIZE_M": 8,
        }

    def align(
        self,
        topk_ids: Tensor,
        block_size: int,
        num_experts: int,
        expert_map: Tensor | None = None,
        pad_sorted_ids: bool = False,
        **named: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.asked.append(("align", dict(named)))
        assert set(named) <= ({"ignore_invalid_experts"} if self.rules.drops_nonlocal else set())
        pairs = topk_ids.numel()
        places = pairs + num_experts * (block_size - 1)
        if self.rules.drops_nonlocal and pairs < num_experts:
            places = min(places, pairs * block_size)
        made = [torch.empty(size, dtype=torch.int32) for size in (places, -(-places // block_size))]
        padded = torch.empty(1, dtype=torch.int32)
        inside = expert_map if named.get("ignore_invalid_experts") else None
        native = self.modules["vllm._custom_ops"].moe_align_block_size
        native(topk_ids, num_experts, block_size, *made, padded, inside)
        if expert_map is not None and inside is None:
            made[1] = expert_map[made[1]]
        return made[0], made[1], padded

    def quantise(
        self,
        A: Tensor,  # noqa: N803 - vLLM's names
        A_scale: Tensor | None,  # noqa: N803
        quant_dtype: torch.dtype | None,
        per_act_token_quant: bool,
        block_shape: list[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if quant_dtype is None:
            return A, None
        assert block_shape is not None
        return moe_quant(
            x=A,
            scheme="group",
            group=block_shape[1],
            scale_rule="amax",
            rounding=self.rules.quantiser,
        )

    def gemm(
        self,
        A: Tensor,  # noqa: N803 - vLLM's names
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        A_scale: Tensor | None,  # noqa: N803
        B_scale: Tensor | None,  # noqa: N803
        B_zp: None,  # noqa: N803
        topk_weights: Tensor,
        sorted_token_ids: Tensor,
        expert_ids: Tensor,
        num_tokens_post_padded: Tensor,
        mul_routed_weight: bool,
        top_k: int,
        config: dict[str, int],
        compute_type: str,
        use_fp8_w8a8: bool,
        use_int8_w8a8: bool,
        use_int8_w8a16: bool,
        use_int4_w4a16: bool,
        per_channel_quant: bool,
        block_shape: list[int] | None = None,
        B_bias: None = None,  # noqa: N803
    ) -> None:
        operands = SimpleNamespace(
            A=A,
            B=B,
            C=C,
            A_scale=A_scale,
            B_scale=B_scale,
            weights=topk_weights,
            sorted_pairs=sorted_token_ids,
            expert_ids=expert_ids,
            padded=num_tokens_post_padded,
            block_shape=block_shape,
        )
        tiles = dict(config)
        if block_shape is not None:
            tiles["BLOCK_SIZE_K"] = min(tiles["BLOCK_SIZE_K"], *block_shape)
        self.experts.fused_moe_kernel[(1,)](
            operands,
            MUL_ROUTED_WEIGHT=mul_routed_weight,
            top_k=top_k,
            compute_type=compute_type,
            use_fp8_w8a8=use_fp8_w8a8,
            **tiles,
        )

    def fused_experts_flags(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        inplace: bool = False,
        use_fp8_w8a8: bool = False,
        global_num_experts: int = -1,
        expert_map: Tensor | None = None,
        w1_scale: Tensor | None = None,
        w2_scale: Tensor | None = None,
        block_shape: list[int] | None = None,
    ) -> Tensor:
        assert use_fp8_w8a8 == (w1_scale is not None)
        quant = (w1_scale, w2_scale, block_shape)
        tensors = (hidden_states, w1, w2, topk_weights, topk_ids)
        return self.impl(tensors, global_num_experts, expert_map, quant)

    def fused_experts_config(
        self,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        global_num_experts: int = -1,
        expert_map: Tensor | None = None,
        quant_config: Any = None,
    ) -> Tensor:
        quant = (None, None, None)
        if quant_config is not None:
            quant = (quant_config.w1_scale, quant_config.w2_scale, quant_config.block_shape)
        tensors = (hidden_states, w1, w2, topk_weights, topk_ids)
        return self.impl(tensors, global_num_experts, expert_map, quant)

    def impl(
        self, tensors: tuple[Tensor, ...], experts: int, expert_map: Tensor | None, quant: Any
    ) -> Tensor:
        x, w1, w2, weights, ids = tensors
        scales, block_shape = quant[:2], quant[2]
        self.asked.append(("fused_experts", {"ids": ids.dtype, "block_shape": block_shape}))
        module, fp8 = self.experts, scales[0] is not None
        tokens, slots = ids.shape
        config = module.try_get_optimal_moe_config(
            w1.shape, w2.shape, slots, "fp8_w8a8" if fp8 else None, tokens, block_shape=block_shape
        )
        drop = {"ignore_invalid_experts": True} if self.rules.drops_nonlocal else {}
        aligned = module.moe_align_block_size(
            ids, config["BLOCK_SIZE_M"], experts, expert_map, **drop
        )

        def product(a: Tensor, b: Tensor, *, second: bool) -> Tensor:
            quantised, scale = module.moe_kernel_quantize_input(
                a, None, torch.float8_e4m3fn if fp8 else None, False, block_shape
            )
            out = torch.full((tokens, slots, b.shape[1]), float("nan"), dtype=torch.bfloat16)
            if second and expert_map is not None and self.rules.drops_nonlocal:
                out.zero_()
            getattr(module, self.rules.gemm)(
                quantised,
                b,
                out,
                scale,
                scales[second],
                None,
                weights,
                *aligned,
                second,
                1 if second else slots,
                config,
                compute_type="bfloat16",
                use_fp8_w8a8=fp8,
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=False,
                block_shape=block_shape,
            )
            return out

        gate_up = product(x, w1, second=False).view(tokens * slots, -1)
        activated = torch.empty(tokens * slots, w2.shape[2], dtype=torch.bfloat16)
        torch.ops._C.silu_and_mul(activated, gate_up)
        down = product(activated, w2, second=True)
        out = torch.empty_like(x)
        self.modules["vllm._custom_ops"].moe_sum(down, out)
        out += self.drift
        self.drift *= 2
        return out


def _nameless() -> str:
    raise NotImplementedError


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Nothing here is large enough for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def installed(monkeypatch) -> Callable[[str], Stub]:
    """Makes a stub the vLLM of this process, for the test."""

    def install(version: str) -> Stub:
        stub = Stub(version)
        for name, module in stub.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return stub

    return install


@pytest.fixture
def engine(installed, request) -> Iterator[Engine]:
    """The engine over a stub of the version that the test names, 0.33.0 unless it does."""
    installed(getattr(request, "param", "0.33.0"))
    with open_engine("cpu", None) as made:
        yield made
