"""The orders of `mhc_pre`, `mhc_post` and `mhc_post_pre`: dimensions, and what has a name."""

from collections.abc import Callable
from typing import Final

import torch

from bitgate.kernels.mhc.contract import MIXES
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.order.base import Choice, Dimension, Option, Orders, State
from bitgate.parity.order.mhc_dots import LANES, NORM, POST_PRODUCT, PRODUCT, PROJECTION, products
from bitgate.parity.order.mhc_mixes import AFFINE, COLLAPSE, TERMS, gates, sinkhorn


def _pre_dimensions(post: str, comb: str) -> tuple[Dimension, ...]:
    return (
        products(PRODUCT, "projections and the collapsed sum"),
        PROJECTION,
        NORM,
        AFFINE,
        gates(post),
        sinkhorn(comb),
        COLLAPSE,
    )


def _choice(dimensions: tuple[Dimension, ...], *options: str) -> Choice:
    return tuple(zip((one.name for one in dimensions), options, strict=True))


def _pre(inputs: Tensors, _: Constants) -> Tensors:
    return {**inputs, **_streams(inputs["residual"], inputs["residual"])}


def _streams(projected: torch.Tensor, collapsed: torch.Tensor) -> Tensors:
    return {"flat": projected.flatten(1).float(), "collapsed": collapsed}


def _pre_work(inputs: Tensors) -> int:
    # Three ways of a product, each as dear as its float64 steps.
    return 24 * len(LANES) * inputs["residual"].numel() * MIXES


def _tokens(inputs: Tensors) -> int:
    return len(inputs["residual"])


def _shorten(
    by_token: tuple[str, ...],
) -> Callable[[Tensors, Tensors, int], tuple[Tensors, Tensors]]:
    def shorten(inputs: Tensors, observed: Tensors, tokens: int) -> tuple[Tensors, Tensors]:
        return (
            {name: one[:tokens] if name in by_token else one for name, one in inputs.items()},
            {name: one[:tokens] for name, one in observed.items()},
        )

    return shorten


_PRE: Final = _pre_dimensions("post", "comb")
_C1: Final = ("split", "lanes-256-adjacent", "divided", "rounded", "replayed", "divide", "streams")
_TORCH: Final = ("rounded", "torch", "torch", "torch")
_VLLM: Final = ("float64", "fma", "libm", "reciprocal-rows-fma", "streams")
PRE: Final = Orders(
    op="mhc_pre",
    dimensions=_PRE,
    prepare=_pre,
    named=(
        ("mhc-c1", _choice(_PRE, *_C1)),
        ("mhc-torch/1", _choice(_PRE, "library", "torch-normalised", "before", *_TORCH)),
        ("vLLM 0.32.0, torch", _choice(_PRE, "library", "torch-matmul", "torch-sum", *_TORCH)),
        *(
            (
                f"vLLM 0.32.0, cpu, blocks of {block}",
                _choice(_PRE, "fma", f"lanes-32-halving-blocks-{block}", *_VLLM),
            )
            for block in (128, 256)
        ),
    ),
    work=_pre_work,
    tokens=_tokens,
    shorten=_shorten(("residual",)),
)

_POST: Final = (products(POST_PRODUCT, "sum over the streams"), TERMS)
POST: Final = Orders(
    op="mhc_post",
    dimensions=_POST,
    prepare=lambda inputs, _: dict(inputs),
    named=(
        ("mhc-c1", _choice(_POST, "split", "x-first")),
        ("vLLM 0.32.0, torch", _choice(_POST, "library", "torch-einsum")),
        ("vLLM 0.32.0, cpu", _choice(_POST, "fma", "x-first")),
    ),
    work=lambda inputs: 24 * inputs["residual"].numel(),
    tokens=_tokens,
    shorten=_shorten(("x", "residual", "post", "comb")),
)


def _carried(state: State) -> Tensors:
    return _streams(state["residual_out"], state["residual_out"])


CARRY: Final = Dimension(
    name="carry",
    asks="which residual does the second half read?",
    options=(
        Option(name="bf16", text="the rounded one", run=_carried),
        Option(
            name="fp32",
            text="the unrounded one in the projections, the rounded one in the collapsed sum",
            run=lambda s: _streams(s["residual_sum"], s["residual_out"]),
        ),
        Option(
            name="fp32-all",
            text="the unrounded one",
            run=lambda s: _streams(s["residual_sum"], s["residual_sum"]),
        ),
    ),
    reads=("residual_sum",),
)
_POST_PRE: Final = (*_POST, CARRY, *_pre_dimensions("post_out", "comb_out"))
POST_PRE: Final = Orders(
    op="mhc_post_pre",
    dimensions=_POST_PRE,
    prepare=lambda inputs, _: dict(inputs),
    named=(("mhc-c1", _choice(_POST_PRE, "split", "x-first", "bf16", *_C1)),),
    work=lambda inputs: 3 * _pre_work(inputs),
    tokens=_tokens,
    shorten=_shorten(("x", "residual", "post", "comb")),
)
