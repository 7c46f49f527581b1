"""Orders of mHC after its projections: gates, Sinkhorn, and the sum over streams."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels import arithmetic
from bitgate.kernels.mhc import replay
from bitgate.kernels.mhc.contract import STREAMS
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.order import scalar
from bitgate.parity.order.base import Dimension, Option, State
from bitgate.parity.order.mhc_dots import joined, joins, uses_library

_COUNTS: Final = (STREAMS, STREAMS, STREAMS * STREAMS)
_EXPS: Final[tuple[Callable[[Tensor], Tensor], ...]] = (arithmetic.exp, scalar.libm_exp)


def _contracted_affine(state: State) -> Tensors:
    scale = state["scale"].repeat_interleave(torch.tensor(_COUNTS))
    return {"logits": arithmetic.fma(state["mixes"], scale, state["base"])}


AFFINE: Final = Dimension(
    name="affine",
    asks="is the scale's product rounded before the base is added?",
    options=(
        Option(
            name="rounded",
            text="yes",
            run=lambda s: {"logits": replay.affine(s["mixes"], s["scale"], s["base"])},
        ),
        Option(
            name="fma",
            text="no, it is contracted with the addition",
            run=_contracted_affine,
            applies=joins,
        ),
    ),
    reads=("mixes",),
)


def _sink_eps(constants: Constants) -> float:
    given = constants.get("sink_eps")
    return float(constants["hc_eps"] if given is None else given)


def _gates(sigmoid: Callable[[Tensor], Tensor], exp: int, post: str) -> Callable[[State], Tensors]:
    def run(state: State) -> Tensors:
        logits = state["logits"]
        return {
            "pre": sigmoid(logits[:, :4].contiguous()) + state.constant("hc_eps"),
            post: state.constant("post_mult") * sigmoid(logits[:, 4:8].contiguous()),
            "exp": torch.tensor(exp),
        }

    return run


def gates(post: str) -> Dimension:
    """The sigmoids of pre and post, and which exp all of it uses."""
    return Dimension(
        name="gates",
        asks="which sigmoid, and which exp?",
        options=(
            Option(
                name="replayed",
                text="1 / (1 + exp(-z)), the exp of kernels.arithmetic",
                run=_gates(arithmetic.sigmoid, 0, post),
                applies=joins,
            ),
            Option(
                name="libm",
                text="1 / (1 + exp(-z)), exp correctly rounded",
                run=_gates(lambda z: 1.0 / (1.0 + scalar.libm_exp(-z)), 1, post),
                applies=joins,
            ),
            Option(
                name="torch",
                text="torch's sigmoid, and its softmax",
                run=_gates(torch.sigmoid, -1, post),
                needs_all_rows=True,
            ),
        ),
        reads=("logits",),
        gives=(post,),
    )


Rows = Callable[[Tensor, Tensor], Tensor]
"""(matrix, divisor) to the quotient, in one way or another."""


def _divide(c: Tensor, divisor: Tensor) -> Tensor:
    return c / divisor


def _times_reciprocal(c: Tensor, divisor: Tensor) -> Tensor:
    return c * (1.0 / divisor)


def _sinkhorn(rows: Rows, columns: Rows, *, contracted: bool) -> Callable[[State], Tensors]:
    """Divisions or reciprocals over rows and columns; contracted: the first eps by an fma."""

    def run(state: State) -> Tensors:
        eps = _sink_eps(state.constants)
        c = state["logits"][:, 8:].reshape(-1, STREAMS, STREAMS)
        c = _EXPS[int(state["exp"])](c - replay.maximum_of_four(c))
        total = replay.sum_of_four(c, -1)
        c = (
            arithmetic.fma(c, 1.0 / total, torch.tensor(eps))
            if contracted
            else rows(c, total) + eps
        )
        c = columns(c, replay.sum_of_four(c, -2) + eps)
        for _ in range(int(state.constant("sinkhorn_iters")) - 1):
            c = rows(c, replay.sum_of_four(c, -1) + eps)
            c = columns(c, replay.sum_of_four(c, -2) + eps)
        return {"mixing": c}

    return run


def _torch_sinkhorn(state: State) -> Tensors:
    eps = _sink_eps(state.constants)
    c = torch.softmax(state["logits"][:, 8:].reshape(-1, STREAMS, STREAMS), dim=-1) + eps
    c = c / (c.sum(dim=-2, keepdim=True) + eps)
    for _ in range(int(state.constant("sinkhorn_iters")) - 1):
        c = c / (c.sum(dim=-1, keepdim=True) + eps)
        c = c / (c.sum(dim=-2, keepdim=True) + eps)
    return {"mixing": c}


def sinkhorn(comb: str) -> Dimension:
    """From the logits of comb to comb."""

    def named(run: Callable[[State], Tensors]) -> Callable[[State], Tensors]:
        return lambda state: {comb: run(state)["mixing"]}

    def own(state: State) -> bool:
        return int(state["exp"]) >= 0

    return Dimension(
        name="sinkhorn",
        asks="by divisions or reciprocals?",
        options=(
            Option(
                name="divide",
                text="rows and columns are divided",
                run=named(_sinkhorn(_divide, _divide, contracted=False)),
                applies=own,
            ),
            Option(
                name="reciprocal-rows",
                text="rows are multiplied by a reciprocal, columns divided",
                run=named(_sinkhorn(_times_reciprocal, _divide, contracted=False)),
                applies=own,
            ),
            Option(
                name="reciprocal-rows-fma",
                text="rows are multiplied by a reciprocal, the first time with eps in one "
                "multiply-add; columns divided",
                run=named(_sinkhorn(_times_reciprocal, _divide, contracted=True)),
                applies=own,
            ),
            Option(
                name="reciprocal",
                text="rows and columns are multiplied by reciprocals",
                run=named(_sinkhorn(_times_reciprocal, _times_reciprocal, contracted=False)),
                applies=own,
            ),
            Option(
                name="torch",
                text="torch's softmax and sums, divisions",
                run=named(_torch_sinkhorn),
                needs_all_rows=True,
                applies=lambda state: int(state["exp"]) < 0,
            ),
        ),
        reads=("logits", "exp"),
        gives=(comb,),
    )


def _collapse(state: State) -> Tensors:
    residual, pre, join = state["collapsed"].float(), state["pre"], joined(state)
    total = torch.zeros_like(residual[:, 0])
    for i in range(STREAMS):
        total = join(total, pre[:, i, None].expand_as(total), residual[:, i])
    return {"layer_input": arithmetic.round_bf16(total)}


def _torch_collapse(state: State) -> Tensors:
    return {"layer_input": (state["pre"].unsqueeze(-1) * state["collapsed"]).sum(dim=1).bfloat16()}


COLLAPSE: Final = Dimension(
    name="collapse",
    asks="how are the weighted streams added?",
    options=(
        Option(
            name="streams",
            text="from +0, ascending; products as in the projections",
            run=_collapse,
            applies=joins,
        ),
        Option(
            name="torch", text="torch's product and sum", run=_torch_collapse, applies=uses_library
        ),
    ),
    reads=("pre", "join", "collapsed"),
    gives=("layer_input",),
)


def _streams(*, x_first: bool, descending: bool) -> Callable[[State], Tensors]:
    def run(state: State) -> Tensors:
        x, residual = state["x"].float(), state["residual"].float()
        join = joined(state)
        terms = [(state["comb"][:, i, :, None], residual[:, i, None]) for i in range(STREAMS)]
        terms = terms[::-1] if descending else terms
        block = (state["post"][:, :, None], x[:, None])
        total = torch.zeros_like(residual)
        for w, values in [block, *terms] if x_first else [*terms, block]:
            total = join(total, w.expand_as(total), values.expand_as(total))
        return _rounded(total)

    return run


def _rounded(total: Tensor) -> Tensors:
    return {"residual_sum": total, "residual_out": arithmetic.round_bf16(total)}


def _einsum(state: State) -> Tensors:
    mixed = torch.einsum("...ij,...ih->...jh", state["comb"], state["residual"].float())
    return _rounded(mixed + state["post"][:, :, None] * state["x"][:, None].float())


TERMS: Final = Dimension(
    name="terms",
    asks="in which order are the layer's output and the streams added?",
    options=(
        *(
            Option(
                name=f"x-{'first' if x_first else 'last'}{'-descending' if descending else ''}",
                text=f"the layer's output {'first' if x_first else 'last'}, streams "
                f"{'descending' if descending else 'ascending'}",
                run=_streams(x_first=x_first, descending=descending),
                applies=joins,
            )
            for x_first in (True, False)
            for descending in (False, True)
        ),
        Option(
            name="torch-einsum",
            text="torch's einsum over the streams, then the layer's output",
            run=_einsum,
            applies=uses_library,
            needs_all_rows=True,
        ),
    ),
    reads=("join",),
    gives=("residual_out",),
)
