"""The quantisers' counts against tensors counted by hand."""

import pytest

from bitgate.records.ops import bytes_of, flops_of
from bitgate.records.types import Workload


def moe(op: str, **axes: int) -> Workload:
    return Workload(op=op, axes=tuple(sorted(axes.items())), dtype="bfloat16")


@pytest.mark.parametrize(
    ("workload", "inputs", "codes", "scales", "flops"),
    [
        (moe("moe_quant", rows=6, k=300, group=128), 6 * 300, 6 * 300, 6 * 3, 6 * 300 + 6 * 3),
        (moe("moe_quant", rows=6, k=300, group=300), 6 * 300, 6 * 300, 6, 6 * 300 + 6),
        (
            moe("moe_quant_weight", experts=2, n=192, k=448, block_n=128, block_k=64),
            2 * 192 * 448,
            2 * 192 * 448,
            2 * 2 * 7,
            2 * 192 * 448 + 2 * 2 * 7,
        ),
        (
            moe("moe_act_quant", rows=6, intermediate=200, group=64),
            6 * 400,
            6 * 200,
            6 * 4,
            6 * 200 * (5 + 1) + 6 * 4,
        ),
    ],
    ids=["groups", "tokens", "weights", "activation"],
)
def test_bytes_and_flops_are_those_of_the_tensors(
    workload: Workload, inputs: int, codes: int, scales: int, flops: int
) -> None:
    assert bytes_of(workload) == 2 * inputs + codes + 4 * scales
    assert flops_of(workload) == flops


def test_the_fused_form_saves_the_product_and_nothing_else() -> None:
    fused = moe("moe_act_quant", rows=6, intermediate=200, group=64)
    parts = (
        moe("moe_act", rows=6, intermediate=200),
        moe("moe_quant", rows=6, k=200, group=64),
    )
    assert sum(map(bytes_of, parts)) - bytes_of(fused) == 2 * (2 * 6 * 200)
    assert sum(map(flops_of, parts)) == flops_of(fused)
