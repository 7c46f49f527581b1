"""The orders of `moe_experts` and of its stages as operators: dimensions, and what has a name."""

from collections.abc import Callable
from typing import Final

import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.order.base import Choice, Dimension, Option, Orders, State
from bitgate.parity.order.moe import (
    ACTIVATION,
    EARLY,
    FIRST,
    PRODUCTS,
    ROUNDING,
    SECOND,
    SILU,
    WEIGHT,
    matmul,
)
from bitgate.parity.order.moe_gemm import BIAS, GEMM_WEIGHT
from bitgate.parity.order.moe_sums import ROWS, UNWEIGHTED_ROWS, combine
from bitgate.records.errors import UsageError


def _first_operands(state: State) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.arange(state["topk_ids"].numel())
    return state["x"][pairs // state["topk_ids"].shape[1]], state["w_gate_up"]


def _experts(inputs: Tensors, _: Constants) -> Tensors:
    return {**inputs, "expert": _known(inputs["topk_ids"], len(inputs["w_gate_up"]))}


def _known(topk_ids: torch.Tensor, experts: int) -> torch.Tensor:
    """The expert of every pair, -1 where the id names none."""
    flat = topk_ids.reshape(-1).long()
    return torch.where((flat >= 0) & (flat < experts), flat, -1)


def _tokens(inputs: Tensors) -> int:
    return len(inputs["topk_ids"])


def _experts_work(inputs: Tensors) -> int:
    # Of the activations that one order of the first matmul leads to, about eight have other bits.
    w_gate_up, w_down = inputs["w_gate_up"], inputs["w_down"]
    per_pair = w_gate_up[0].numel() + 8 * w_down[0].numel()
    return len(PRODUCTS) * inputs["topk_ids"].numel() * per_pair


def _shorten(
    by_token: tuple[str, ...],
) -> Callable[[Tensors, Tensors, int], tuple[Tensors, Tensors]]:
    def shorten(inputs: Tensors, observed: Tensors, tokens: int) -> tuple[Tensors, Tensors]:
        slots = inputs["topk_ids"].shape[1]
        return (
            {name: one[:tokens] if name in by_token else one for name, one in inputs.items()},
            {
                name: one[: tokens if name == "out" else tokens * slots]
                for name, one in observed.items()
            },
        )

    return shorten


def _order(products: str, rest: tuple[str, ...]) -> Choice:
    names = (dimension.name for dimension in MOE_EXPERTS_DIMENSIONS)
    gate_up, silu, activation, early, weight, summed = rest
    return tuple(
        zip(
            names,
            (products, gate_up, silu, activation, early, products, weight, summed),
            strict=True,
        )
    )


MOE_EXPERTS_DIMENSIONS: Final[tuple[Dimension, ...]] = (
    matmul(FIRST, "gate_up_acc", (), _first_operands),
    ROUNDING,
    SILU,
    ACTIVATION,
    EARLY,
    matmul(
        SECOND,
        "weighted_acc",
        ("activated",),
        lambda state: (state["activated"], state["w_down"]),
    ),
    WEIGHT,
    combine((*ROWS, *UNWEIGHTED_ROWS)),
)
_BF16 = ("bf16", "replayed", "bf16-between", "no", "accumulator", "fp32-slots")
_TORCH = ("bf16", "torch", "bf16-between", "no", "row", "bf16-experts")
_CPU = ("fp32", "fast", "fp32-product", "no", "sum-fp32", "fma-slots")

EXPERTS: Final = Orders(
    op="moe_experts",
    dimensions=MOE_EXPERTS_DIMENSIONS,
    prepare=_experts,
    boundaries=frozenset({"gate_up_acc", "gate_up", "activated", "weighted_acc", "weighted"}),
    named=(
        ("moe-bf16/1", _order("tile-64", _BF16)),
        ("moe-torch/1", _order("torch-bf16", _TORCH)),
        ("vLLM 0.32.0, cpu_fused_moe, vec", _order("serial", _CPU)),
        ("vLLM 0.32.0, cpu_fused_moe, amx", _order("even-odd-32", _CPU)),
    ),
    work=_experts_work,
    tokens=_tokens,
    shorten=_shorten(("x", "topk_ids", "topk_weights")),
)


def _gemm(inputs: Tensors, constants: Constants) -> Tensors:
    """Rows and experts of the pairs that the blocks name."""
    top_k, block_m = int(constants["top_k"]), int(constants["block_m"])
    pairs = inputs["weights"].shape[0]
    live = inputs["sorted_pairs"][: int(inputs["padded"])].long()
    blocks = inputs["expert_ids"].long().repeat_interleave(block_m)[: len(live)]
    named = (live >= 0) & (live < pairs)
    expert = torch.full((pairs,), -1)
    expert[live[named]] = _known(blocks[named], len(inputs["w"]))
    rows = inputs["a"][torch.arange(pairs) // top_k]
    return {**inputs, "rows": rows, "expert": expert, "topk_ids": expert.view(-1, 1)}


def _gemm_work(inputs: Tensors) -> int:
    return len(PRODUCTS) * inputs["weights"].numel() * inputs["w"][0].numel()


GEMM: Final = Orders(
    op="moe_gemm",
    dimensions=(
        matmul(FIRST, "acc", (), lambda state: (state["rows"], state["w"])),
        BIAS,
        GEMM_WEIGHT,
    ),
    prepare=_gemm,
    boundaries=frozenset({"acc"}),
    named=(
        (
            "moe-bf16/1",
            ((FIRST, "tile-64"), ("bias", "before"), ("weight", "accumulator")),
        ),
    ),
    work=_gemm_work,
    tokens=lambda inputs: len(inputs["a"]),
)


def _truncated(state: State) -> Tensors:
    bits = state["product"].contiguous().view(torch.int32) >> 16
    return {"out": bits.to(torch.int16).view(torch.bfloat16)}


RESULT: Final = Dimension(
    name="result",
    asks="how is the product rounded to bfloat16?",
    options=(
        Option(
            name="nearest",
            text="to nearest even",
            run=lambda s: {"out": arithmetic.round_bf16(s["product"])},
        ),
        Option(name="truncated", text="towards zero, as an unrepaired interpreter", run=_truncated),
    ),
    reads=("product",),
    gives=("out",),
)


def _act(inputs: Tensors, constants: Constants) -> Tensors:
    if constants.get("kind", "silu") != "silu":
        raise UsageError(
            f"moe_act: expected kind silu, got {constants['kind']}; its orders are not in the "
            "catalogue: add them to parity/order/moe.py"
        )
    return {"gate_up": inputs["gate_up"]}


ACT: Final = Orders(
    op="moe_act",
    dimensions=(SILU, ACTIVATION, RESULT),
    prepare=_act,
    named=(
        (
            "moe-bf16/1",
            (("silu", "replayed"), ("activation", "bf16-between"), ("result", "nearest")),
        ),
    ),
    work=lambda inputs: inputs["gate_up"].numel(),
    tokens=lambda inputs: len(inputs["gate_up"]),
)


def _combine(inputs: Tensors, constants: Constants) -> Tensors:
    expert = _known(inputs["topk_ids"], int(constants["experts"]))
    return {**inputs, "weighted": inputs["y"], "expert": expert}


def _combine_work(inputs: Tensors) -> int:
    return inputs["y"].numel()


COMBINE: Final = Orders(
    op="moe_combine",
    dimensions=(combine(ROWS),),
    prepare=_combine,
    named=(
        ("moe-bf16/1", (("combine", "fp32-slots"),)),
        ("vLLM 0.10.2, top_k 2 to 4", (("combine", "bf16-slots"),)),
    ),
    work=_combine_work,
    tokens=_tokens,
    shorten=_shorten(("y", "topk_ids")),
)
COMBINE_WEIGHTED: Final = Orders(
    op="moe_combine_weighted",
    dimensions=(combine(UNWEIGHTED_ROWS),),
    prepare=_combine,
    named=(("moe-gather/1", (("combine", "products-slots"),)),),
    work=_combine_work,
    tokens=_tokens,
    shorten=_shorten(("y", "topk_ids", "topk_weights")),
)
