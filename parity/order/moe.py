"""The orders of the experts, stage by stage. Rows are pairs, token * top_k + slot, as in `staged`.

The names of options are those of `kernels.moe.roundings`, where both speak of the same thing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels import arithmetic
from bitgate.kernels.moe import align_reference, gemm_reference
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.spec import Tensors
from bitgate.parity.order import scalar
from bitgate.parity.order.base import Dimension, Option, State
from bitgate.parity.order.sums import SUMS, Sum, grouped

FIRST, SECOND = "first matmul", "second matmul"
Operands = tuple[Tensor, Tensor]
Product = Callable[[Tensor, Tensor, State], Tensor]


def _summed(order: Sum) -> Product:
    return lambda rows, w, state: grouped(rows, w, state["expert"], order)


def _tiled(block_k: int) -> Product:
    def product(rows: Tensor, w: Tensor, state: State) -> Tensor:
        """The accumulator of contract moe-bf16/1: `moe_gemm` by tiles."""
        config = TileConfig(block_k=block_k)
        expert = state["expert"]
        sorted_pairs, expert_ids, padded = align_reference.moe_align(
            topk_ids=expert[:, None],
            expert_map=torch.arange(len(w), dtype=torch.int32),
            block_m=config.block_m,
        )
        call = GroupedMatmul(
            a=rows,
            w=w,
            sorted_pairs=sorted_pairs,
            expert_ids=expert_ids,
            padded=padded,
            weights=torch.ones(len(rows)),
            top_k=1,
            apply_weights=0,
            config=config,
        )
        acc = call.new(torch.float32)
        gemm_reference.grouped(call, call.new(torch.bfloat16), acc)
        return acc

    return product


def _by_expert(dtype: torch.dtype) -> Product:
    def product(rows: Tensor, w: Tensor, state: State) -> Tensor:
        """One matmul of torch's for each expert, over its rows in the order of slots."""
        out = torch.zeros(len(rows), w.shape[1])
        for expert, pairs in _groups(state):
            out[pairs] = functional.linear(rows[pairs].to(dtype), w[expert].to(dtype)).float()
        return out

    return product


def _groups(state: State) -> list[tuple[int, Tensor]]:
    """The pairs of each expert that has some: slot by slot, then by token, as a mask finds them."""
    top_k = state["topk_ids"].shape[1]
    by_slot = state["expert"].view(-1, top_k).T
    found = []
    for expert in torch.unique(by_slot).tolist():
        if expert >= 0:
            slots, tokens = torch.where(by_slot == expert)
            found.append((expert, tokens * top_k + slots))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matmul:
    """One order of a matmul. `library`: torch chooses it by shape."""

    name: str
    text: str
    product: Product
    library: bool = False


PRODUCTS: Final = (
    *(_Matmul(name=one.name, text=one.text, product=_summed(one)) for one in SUMS),
    *(
        _Matmul(
            name=f"tile-{block_k}",
            text=f"products of tiles by the host's BLAS, K in steps of {block_k}",
            product=_tiled(block_k),
        )
        for block_k in (16, 32, 64, 128, 256)
    ),
    _Matmul(
        name="torch-fp32",
        text="torch's float32 matmul per expert",
        product=_by_expert(torch.float32),
        library=True,
    ),
    _Matmul(
        name="torch-bf16",
        text="torch's bfloat16 matmul per expert",
        product=_by_expert(torch.bfloat16),
        library=True,
    ),
)


def matmul(
    name: str, result: str, reads: tuple[str, ...], operands: Callable[[State], Operands]
) -> Dimension:
    """A grouped matmul in every order, from operands (rows, weights) to a named accumulator.

    Chunks of all of K are another name for no chunks; which of them a longer K tells apart.
    """

    def computed(product: Product) -> Callable[[State], Tensors]:
        return lambda state: {result: product(*operands(state), state)}

    def applies(state: State) -> bool:
        # Both matmuls of one implementation add in one order.
        return name != SECOND or state.chosen(FIRST) in (None, state.chosen(SECOND))

    return Dimension(
        name=name,
        asks="in which order are the products along K added?",
        options=tuple(
            Option(
                name=one.name,
                text=one.text,
                run=computed(one.product),
                applies=applies,
                needs_all_rows=one.library,
            )
            for one in PRODUCTS
        ),
        reads=reads,
        gives=(result,),
    )


def _not_rounded_yet(state: State) -> bool:
    # Torch's own bfloat16 matmul has rounded already.
    return state.chosen(FIRST) != "torch-bf16"


ROUNDING: Final = Dimension(
    name="gate_up",
    asks="is the first matmul's result rounded?",
    options=(
        Option(
            name="bf16",
            text="to bfloat16",
            run=lambda state: {"gate_up": arithmetic.round_bf16(state["gate_up_acc"])},
        ),
        Option(
            name="fp32",
            text="no, it stays float32",
            run=lambda state: {"gate_up": state["gate_up_acc"]},
            applies=_not_rounded_yet,
        ),
    ),
    reads=("gate_up_acc",),
    gives=("gate_up",),
)


def _silu(factor: Callable[[Tensor, State], Tensor]) -> Callable[[State], Tensors]:
    def run(state: State) -> Tensors:
        gate, up = state["gate_up"].float().chunk(2, dim=-1)
        limit = state.constant("swiglu_limit", float("inf"))
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return {"silu": factor(gate.contiguous(), state), "up": up}

    return run


def _torch_silu(gate: Tensor, state: State) -> Tensor:
    """Torch's silu of bfloat16; of one expert's rows at a time, which decide on a vector's tail."""
    if "expert" not in state.tensors:
        return functional.silu(gate.bfloat16()).float()
    out = torch.zeros_like(gate)
    for _, pairs in _groups(state):
        out[pairs] = functional.silu(gate[pairs].bfloat16()).float()
    return out


def _sigmoid_of(exp: Callable[[Tensor], Tensor]) -> Callable[[Tensor, State], Tensor]:
    return lambda gate, _: gate * (1.0 / (1.0 + exp(-gate)))


def _quotient_of(exp: Callable[[Tensor], Tensor]) -> Callable[[Tensor, State], Tensor]:
    return lambda gate, _: gate / (1.0 + exp(-gate))


SILU: Final = Dimension(
    name="silu",
    asks="how is silu computed?",
    options=(
        Option(
            name="replayed",
            text="gate / (1 + exp(-gate)), the exp of kernels.arithmetic",
            run=_silu(_quotient_of(arithmetic.exp)),
        ),
        Option(
            name="libm",
            text="gate / (1 + exp(-gate)), exp correctly rounded",
            run=_silu(_quotient_of(scalar.libm_exp)),
        ),
        Option(
            name="sigmoid",
            text="gate * (1 / (1 + exp(-gate))), exp correctly rounded",
            run=_silu(_sigmoid_of(scalar.libm_exp)),
        ),
        Option(
            name="fast",
            text="gate * (1 / (1 + exp(-gate))), the polynomial of vLLM's CPU kernels",
            run=_silu(_sigmoid_of(scalar.fast_exp)),
        ),
        Option(
            name="torch",
            text="torch's silu, bfloat16 in and out",
            run=_silu(_torch_silu),
            applies=lambda state: state["gate_up"].dtype == torch.bfloat16,
            needs_all_rows=True,
        ),
    ),
    reads=("gate_up",),
)
ACTIVATION: Final = Dimension(
    name="activation",
    asks="is silu rounded before it multiplies up?",
    options=(
        Option(
            name="bf16-between",
            text="to bfloat16",
            run=lambda s: {"product": arithmetic.round_bf16(s["silu"]).float() * s["up"]},
        ),
        Option(
            name="fp32-product",
            text="no, the product is float32",
            run=lambda s: {"product": s["silu"] * s["up"]},
            # Torch's silu of bfloat16 has rounded already.
            applies=lambda state: state.chosen("silu") != "torch",
        ),
    ),
    reads=("silu", "up"),
)


def _weight_of(state: State) -> Tensor:
    return state["topk_weights"].float().reshape(-1, 1)


EARLY: Final = Dimension(
    name="early weight",
    asks="does the routing weight multiply the activation?",
    options=(
        Option(
            name="no",
            text="no",
            run=lambda s: {"activated": arithmetic.round_bf16(s["product"])},
        ),
        Option(
            name="activation",
            text="yes, in float32, before its rounding",
            run=lambda s: {"activated": arithmetic.round_bf16(s["product"] * _weight_of(s))},
            applies=lambda state: "topk_weights" in state.tensors,
        ),
    ),
    reads=("product",),
    gives=("activated",),
)


def _unweighted(state: State) -> bool:
    return state.chosen("early weight") in (None, "no")


def _on_row(state: State, weight: Tensor) -> Tensors:
    row = arithmetic.round_bf16(state["weighted_acc"]).float()
    return {"weighted": arithmetic.round_bf16(row * weight)}


def _row(state: State) -> Tensors:
    return {"weighted": arithmetic.round_bf16(state["weighted_acc"])}


# Of rows that get their weight within the sum only.
UNWEIGHTED: Final = ("sum", "sum-fp32")
WEIGHT: Final = Dimension(
    name="weight",
    asks="where does the routing weight multiply, and where is the second matmul rounded?",
    options=(
        Option(
            name="accumulator",
            text="the float32 accumulator, then one rounding",
            run=lambda s: {"weighted": arithmetic.round_bf16(s["weighted_acc"] * _weight_of(s))},
            applies=_unweighted,
        ),
        Option(
            name="row",
            text="the bfloat16 row in float32, then a second rounding",
            run=lambda s: _on_row(s, _weight_of(s)),
            applies=_unweighted,
        ),
        Option(
            name="row-bf16",
            text="the bfloat16 row, the weight rounded to bfloat16, then a second rounding",
            run=lambda s: _on_row(s, arithmetic.round_bf16(_weight_of(s)).float()),
            applies=_unweighted,
        ),
        Option(name="sum", text="the bfloat16 row, within the sum", run=_row, applies=_unweighted),
        Option(
            name="sum-fp32",
            text="the accumulator without a rounding, within the sum",
            run=lambda s: {"weighted": s["weighted_acc"]},
            applies=_unweighted,
        ),
        Option(
            name="activation",
            text="nothing more: it multiplied the activation",
            run=_row,
            applies=lambda state: state.chosen("early weight") in (None, "activation"),
        ),
    ),
    reads=("weighted_acc",),
    gives=("weighted",),
)
