"""Operators of the mixture of experts that make float8 of rows, activations and weights.

A quotient counts as one operation for each element and each scale; comparisons, the power of two
of a scale, and the rounding to float8 count for nothing.
"""

from typing import Final

from bitgate.records.ops.base import ELEMENT_BYTES, ENVELOPE, FP32_BYTES, Axes, Operator
from bitgate.records.ops.moe import GATED_FLOPS

_FP8_BYTES = ELEMENT_BYTES["float8_e4m3fn"]
_SOURCE = (
    "each tensor moved once, the input in the workload's dtype, codes as float8, scales as fp32; a "
    "quotient an element and a scale"
)


def _groups(elements: int, group: int) -> int:
    return -(-elements // group)


def _quantised_bytes(elements: int, scales: int, element: int) -> int:
    """Elements in, their codes and scales out."""
    return (element + _FP8_BYTES) * elements + FP32_BYTES * scales


def _rows_scales(axes: Axes) -> int:
    return axes["rows"] * _groups(axes["k"], axes["group"])


def _quant_bytes(axes: Axes, element: int) -> int:
    return _quantised_bytes(axes["rows"] * axes["k"], _rows_scales(axes), element)


def _quant_flops(axes: Axes) -> int:
    return axes["rows"] * axes["k"] + _rows_scales(axes)


def _weight_elements(axes: Axes) -> int:
    return axes["experts"] * axes["n"] * axes["k"]


def _weight_scales(axes: Axes) -> int:
    blocks = _groups(axes["n"], axes["block_n"]) * _groups(axes["k"], axes["block_k"])
    return axes["experts"] * blocks


def _weight_bytes(axes: Axes, element: int) -> int:
    return _quantised_bytes(_weight_elements(axes), _weight_scales(axes), element)


def _weight_flops(axes: Axes) -> int:
    return _weight_elements(axes) + _weight_scales(axes)


def _act_scales(axes: Axes) -> int:
    return axes["rows"] * _groups(axes["intermediate"], axes["group"])


def _act_quant_bytes(axes: Axes, element: int) -> int:
    """Gate and up in, codes and scales of their product out."""
    elements = axes["rows"] * axes["intermediate"]
    return element * elements + _quantised_bytes(elements, _act_scales(axes), element)


def _act_quant_flops(axes: Axes) -> int:
    return (GATED_FLOPS + 1) * axes["rows"] * axes["intermediate"] + _act_scales(axes)


_GROUP = ("group", "elements of a row that share a scale; a token's are all of them")
_ROWS = ("rows", "R, rows of the call")

MOE_QUANT_OPERATORS: Final = (
    Operator(
        name="moe_quant",
        summary="rows in float8 with scales",
        axes=(_GROUP, ("k", "elements of a row"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_quant_bytes,
        flops=_quant_flops,
        counts="exact",
        source=_SOURCE + "; a scale of the whole tensor would read it twice",
        sizes=("rows",),
    ),
    Operator(
        name="moe_quant_weight",
        summary="the experts' weights in float8 with a scale for each block",
        axes=(
            ("block_k", "summed elements that share a scale"),
            ("block_n", "rows of a weight that share a scale"),
            ("experts", "E, experts of the layer"),
            ("k", "summed elements of a row"),
            ("n", "rows of a weight, columns of the result"),
        ),
        envelope=ENVELOPE,
        bytes_moved=_weight_bytes,
        flops=_weight_flops,
        counts="exact",
        source=_SOURCE,
        sizes=("experts",),
    ),
    Operator(
        name="moe_act_quant",
        summary="the gated activation in float8 with scales",
        axes=(_GROUP, ("intermediate", "I, elements of each half"), _ROWS),
        envelope=ENVELOPE,
        bytes_moved=_act_quant_bytes,
        flops=_act_quant_flops,
        counts="exact",
        source=_SOURCE + "; the activation's as for moe_act",
        sizes=("rows",),
    ),
)
