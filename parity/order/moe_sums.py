"""The orders in which a token's rows are added: `moe_combine`'s, `moe_combine_weighted`'s."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.spec import Tensors
from bitgate.parity.order.base import Dimension, Option, State
from bitgate.parity.order.moe import UNWEIGHTED

Add = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(sum so far, rows, weights) to the next sum; all float32."""


def _add_row(total: Tensor, row: Tensor, _: Tensor) -> Tensor:
    return total + row


def _add_product(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    return total + row * weight


def _add_contracted(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    return arithmetic.fma(row, weight.expand_as(row), total)


def _add_rounded(total: Tensor, row: Tensor, _: Tensor) -> Tensor:
    return arithmetic.round_bf16(total + row).float()


def _slots(state: State) -> list[Tensor]:
    """The number of the slot that comes first, second, ... of every token, ascending."""
    tokens, top_k = state["topk_ids"].shape
    return [torch.full((tokens,), slot) for slot in range(top_k)]


def _backwards(state: State) -> list[Tensor]:
    return _slots(state)[::-1]


def _by_expert(state: State) -> list[Tensor]:
    ids = state["topk_ids"]
    return list(torch.argsort(ids, dim=1, stable=True).T)


def _ordered(places: Callable[[State], list[Tensor]], add: Add) -> Callable[[State], Tensors]:
    def run(state: State) -> Tensors:
        rows, weights, live = _rows(state)
        total = torch.zeros_like(rows[:, 0])
        token = torch.arange(len(rows))
        for place in places(state):
            added = add(total, rows[token, place], weights[token, place, None])
            total = torch.where(live[token, place, None], added, total)
        return {"out": arithmetic.round_bf16(total)}

    return run


def _sum_of_rows(state: State) -> Tensors:
    rows, _, live = _rows(state)
    terms = state["weighted"].view(rows.shape)
    return {"out": torch.where(live[:, :, None], terms, 0.0).sum(dim=1).bfloat16()}


def _sum_of_products(state: State) -> Tensors:
    rows, weights, live = _rows(state)
    terms = rows * weights[:, :, None]
    return {"out": torch.where(live[:, :, None], terms, 0.0).sum(dim=1).bfloat16()}


def _weighted(state: State) -> bool:
    return state.chosen("weight") not in UNWEIGHTED


def _lacks_weights(state: State) -> bool:
    return state.chosen("weight") in (None, *UNWEIGHTED)


def _rows(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [tokens, top_k, hidden], weights [tokens, top_k], and which slots count."""
    tokens, top_k = state["topk_ids"].shape
    rows = state["weighted"].float().view(tokens, top_k, -1)
    weights = state.tensors.get("topk_weights", torch.ones(tokens, top_k)).float()
    return rows, weights, (state["expert"] >= 0).view(tokens, top_k)


def _options(
    prefix: str, text: str, add: Add, applies: Callable[[State], bool], orders: tuple[str, ...]
) -> tuple[Option, ...]:
    return tuple(
        Option(
            name=f"{prefix}-{order}",
            text=f"{text}, {order.partition('-')[0]} {order.partition('-')[2] or 'ascending'}",
            run=_ordered(_PLACES[order], add),
            applies=applies,
        )
        for order in orders
    )


_PLACES: Final = {"slots": _slots, "slots-descending": _backwards, "experts": _by_expert}
ROWS: Final = (
    *_options("fp32", "weighted rows in float32", _add_row, _weighted, tuple(_PLACES)),
    *_options(
        "bf16", "weighted rows, bfloat16 after each", _add_rounded, _weighted, tuple(_PLACES)
    ),
    Option(
        name="torch-sum",
        text="weighted rows by torch's sum over the slots",
        run=_sum_of_rows,
        applies=_weighted,
    ),
)
UNWEIGHTED_ROWS: Final = (
    *_options(
        "products",
        "row times weight, rounded to float32, then added",
        _add_product,
        _lacks_weights,
        tuple(_PLACES),
    ),
    *_options(
        "fma",
        "row times weight contracted with the addition",
        _add_contracted,
        _lacks_weights,
        tuple(_PLACES),
    ),
    Option(
        name="products-torch-sum",
        text="row times weight, rounded to float32, by torch's sum over the slots",
        run=_sum_of_products,
        applies=_lacks_weights,
    ),
)


def combine(options: tuple[Option, ...]) -> Dimension:
    """The dimension of the sum, over weighted rows, unweighted ones or either."""
    return Dimension(
        name="combine",
        asks="in which order are a token's rows added?",
        options=options,
        reads=("weighted",),
        gives=("out",),
    )
