"""The fused experts against the staged ones: the fusion may not change a bit at any boundary."""

from functools import partial

import pytest
import torch

from bitgate.kernels.catalogue import kernel
from bitgate.kernels.moe import act_triton
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.fused_triton import experts_fused
from bitgate.kernels.moe.staged_triton import experts_triton
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

LIMIT = 10.0
BOUNDARIES = ("sorted_pairs", "expert_ids", "padded", "activated", "weighted", "out")


def workload(
    experts: int, hidden: int, intermediate: int, tokens: int, case: str = "random"
) -> Workload:
    axes = {"experts": experts, "hidden": hidden, "intermediate": intermediate}
    axes |= {"tokens": tokens, "top_k": 2}
    point = tuple(sorted(axes.items()))
    return Workload(op="moe_experts", axes=point, dtype="bfloat16", case=case)


POINTS = (
    workload(4, 200, 64, 9),
    workload(4, 64, 72, 5, "padding"),
    workload(2, 96, 257, 3),
)
# Each block of K and each point; the others are interpreted in the slow run.
QUICK = {(0, 32), (0, 128), (1, 64), (2, 128)}


def both(point: Workload, config: TileConfig) -> tuple[Tensors, Tensors]:
    """The boundaries of the staged and of the fused experts."""
    inputs = kernel("moe_experts").make_inputs(point, 0)
    staged: Tensors = {}
    fused: Tensors = {}
    for run, seen in ((experts_triton, staged), (experts_fused, fused)):
        run(**inputs, swiglu_limit=LIMIT, config=config, tap=partial(seen.__setitem__))
    return staged, fused


@pytest.mark.parametrize(
    ("point", "block_k"),
    [
        pytest.param(point, block_k, marks=() if (at, block_k) in QUICK else pytest.mark.slow)
        for at, point in enumerate(POINTS)
        for block_k in (32, 64, 128)
    ],
)
def test_the_fusion_changes_no_bit(point, block_k):
    staged, fused = both(point, TileConfig(block_k=block_k))
    assert tuple(fused) == BOUNDARIES
    for name, tensor in fused.items():
        assert torch.equal(tensor.view(torch.uint8), staged[name].view(torch.uint8)), (
            f"{name} differs"
        )
    # The control: another place of the rounding shows at the boundary that is compared.
    other = act_triton.moe_act(gate_up=staged["gate_up"], swiglu_limit=LIMIT, round_between=0)
    assert not torch.equal(fused["activated"], other)


def test_a_halved_epilogue_is_found():
    inputs = kernel("moe_experts").make_inputs(workload(4, 64, 32, 9), 0)
    right = experts_fused(**inputs, swiglu_limit=LIMIT)
    gate, up = inputs["w_gate_up"].chunk(2, dim=1)
    swapped = inputs | {"w_gate_up": torch.cat([up, gate], dim=1)}
    assert not torch.equal(right, experts_fused(**swapped, swiglu_limit=LIMIT))


def test_rows_may_lie_apart():
    inputs = kernel("moe_experts").make_inputs(workload(4, 64, 32, 9), 0)
    expected = experts_fused(**inputs, swiglu_limit=LIMIT)
    apart = {
        name: torch.nn.functional.pad(inputs[name], (0, 8), value=float("nan"))[..., :-8]
        for name in ("x", "w_gate_up", "w_down")
    }
    assert torch.equal(expected, experts_fused(**inputs | apart, swiglu_limit=LIMIT))


@pytest.mark.parametrize("limit", [0.0, 1.001])
def test_a_limit_that_is_none_is_refused(limit):
    inputs = kernel("moe_experts").make_inputs(workload(4, 64, 32, 1), 0)
    with pytest.raises(UsageError, match="limit"):
        experts_fused(**inputs, swiglu_limit=limit)
