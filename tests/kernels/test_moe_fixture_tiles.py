"""Integer-exact fixtures under other tiles: any order is exact, so no tile may change a bit."""

from dataclasses import replace

import pytest
import torch

from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.loading import load
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.spec import Implementation, IntegerCase, Kernel

# More rows than a fixture has, fewer columns, steps shorter and longer than the default's.
TILES = (
    TileConfig(block_m=32, block_n=32, block_k=32, group_m=1),
    TileConfig(block_m=64, block_n=128, block_k=128),
    TileConfig(block_m=16, block_n=64, block_k=256, group_m=2),
)
TILED = [(kernel, found) for kernel in KERNELS for found in kernel.implementations if found.tiled]


def wrong(kernel: Kernel, found: Implementation, case: IntegerCase, tile: TileConfig) -> list[str]:
    """The outputs that are not the fixture's."""
    # Where the alignment is an input, so is its block of rows.
    outputs = load(found.target)(**case.inputs, **case.constants, config=tile)
    named = kernel.named_outputs(outputs)
    return [name for name, value in case.expected.items() if not torch.equal(named[name], value)]


def test_every_matmul_and_every_pipeline_takes_tiles() -> None:
    assert {kernel.op for kernel, _ in TILED} == {
        *("moe_gemm", "moe_gemm_fp8", "moe_experts", "moe_experts_fp8")
    }


@pytest.mark.slow  # every fixture of matmuls and pipelines in the interpreter, once for each tile
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("kernel", "found"), TILED, ids=lambda one: getattr(one, "name", one.op))
def test_fixtures_hold_under_other_tiles(
    kernel: Kernel, found: Implementation, tile: TileConfig
) -> None:
    for case in kernel.integer_cases():
        assert wrong(kernel, found, case, tile) == [], case.name
    # The control: an input that is one off is another result.
    case = kernel.integer_cases()[0]
    weights = "topk_weights" if "topk_weights" in case.inputs else "a"
    spoilt = case.inputs | {weights: (case.inputs[weights].float() * 2).to(case.inputs[weights])}
    assert wrong(kernel, found, replace(case, inputs=spoilt), tile)
