"""moe_quant_weight: its blocks, its floor, and how far it lies from the weights."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import quant_rules, quant_weight_triton
from bitgate.kernels.moe.quant_reference import dequantised, error_bound, moe_quant
from bitgate.kernels.moe.quant_weight import MOE_QUANT_WEIGHT
from bitgate.kernels.moe.quant_weight_reference import moe_quant_weight
from bitgate.parity.bits import words
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Run = Callable[..., Pair]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_QUANT_WEIGHT.implementations]
BLOCKS = [(128, 128), (128, 64), (64, 128)]
RULES = list(product(quant_rules.SCALE_RULES, quant_rules.ROUNDINGS))


def weights(experts: int, n: int, k: int, case: str = "random") -> Tensor:
    axes = (("block_k", 128), ("block_n", 128), ("experts", experts), ("k", k), ("n", n))
    workload = Workload(op="moe_quant_weight", axes=axes, dtype="bfloat16", case=case)
    return MOE_QUANT_WEIGHT.make_inputs(workload, 0)["w"]


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(words(a), words(b))


# Intermediate sizes of 192, 448, 704 and 2880, along one axis or the other.
SHAPES = [(2, 192, 65), (1, 2, 2880), (1, 130, 448), (1, 704, 1)]


@pytest.mark.parametrize(("block_n", "block_k"), BLOCKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_block_is_quantised_as_a_tensor(
    shape: tuple[int, int, int], block_n: int, block_k: int
) -> None:
    """Block by block through moe_quant's scheme tensor, which has no floor; amax is above it."""
    w = weights(*shape)
    for scale_rule, rounding in RULES:
        rules = {"scale_rule": scale_rule, "rounding": rounding}
        codes, scales = moe_quant_weight(w=w, block_n=block_n, block_k=block_k, **rules)
        assert scales.shape == (shape[0], -(-shape[1] // block_n), -(-shape[2] // block_k))
        for e, i, j in np.ndindex(*scales.shape):
            rows = slice(i * block_n, (i + 1) * block_n)
            columns = slice(j * block_k, (j + 1) * block_k)
            part = w[e, rows, columns]
            expected = moe_quant(x=part, scheme="tensor", group=128, **rules)
            assert same(codes[e, rows, columns].contiguous(), expected[0])
            assert same(scales[e, i, j].reshape(1, 1), expected[1])


@pytest.mark.parametrize(("block_n", "block_k"), BLOCKS)
def test_triton_cuts_the_same_blocks(block_n: int, block_k: int) -> None:
    w = weights(2, 130, 65)
    w = torch.ldexp(w, torch.arange(130)[:, None] // 64 + torch.arange(65) // 64 * 4)
    expected = moe_quant_weight(w=w, block_n=block_n, block_k=block_k)
    found = quant_weight_triton.moe_quant_weight(w=w, block_n=block_n, block_k=block_k)
    assert all(map(same, found, expected))


@pytest.mark.parametrize(("scale_rule", "rounding"), RULES)
def test_triton_has_the_bits_of_the_replay_at_the_edges(scale_rule: str, rounding: str) -> None:
    w = weights(1, 130, 130, "edges")
    w[0, 128:, 128:] = 0
    rules = {"scale_rule": scale_rule, "rounding": rounding}
    expected = moe_quant_weight(w=w, **rules)
    given = [torch.empty_like(one) for one in expected]
    for one in given:
        one.view(torch.int8).fill_(0x7F)
    quant_weight_triton.moe_quant_weight(w=w, **rules, codes=given[0], scales=given[1])
    assert all(map(same, given, expected))


@pytest.mark.parametrize("run", RUNS)
def test_a_block_of_zeros_has_the_floor_of_1e_4(run: Run) -> None:
    w = torch.zeros(1, 130, 4, dtype=torch.bfloat16)
    w[0, 128] = 2.0**-14  # below the floor, too
    codes, scales = run(w=w)
    assert (scales == np.float32(1e-4) / np.float32(448)).all()
    assert (codes[0, :128].view(torch.uint8) == 0).all()
    assert (codes[0, 128].double() == 288).all()  # 273 in units of the scale
    _, scales = run(w=w, scale_rule="ue8m0")
    assert (scales == 2.0**-22).all()


@pytest.mark.parametrize("run", RUNS)
def test_no_experts(run: Run) -> None:
    codes, scales = run(w=torch.zeros(0, 130, 200, dtype=torch.bfloat16))
    assert codes.shape == (0, 130, 200)
    assert codes.dtype == torch.float8_e4m3fn
    assert scales.shape == (0, 2, 2)


@pytest.mark.parametrize("run", RUNS)
def test_strides_change_no_bit(run: Run) -> None:
    w = weights(2, 40, 60)
    assert all(map(same, run(w=w.mT.contiguous().mT), run(w=w)))


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "scales of another expert": lambda scales: scales.roll(1, 0),
    "scales of another block of n": lambda scales: scales.roll(1, 1),
    "scales of another block of k": lambda scales: scales.roll(1, 2),
    "one scale for all experts": lambda scales: scales[:1].expand_as(scales),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_result_lies_within_the_bound_and_faults_do_not(run: Run) -> None:
    w = weights(2, 160, 160)
    # Each expert and block on another scale.
    w = torch.ldexp(w, torch.arange(2)[:, None, None] + torch.arange(160)[:, None] // 128 * 4)
    w = torch.ldexp(w, torch.arange(160) // 128 * 8)
    codes, scales = run(w=w)
    bound = error_bound(w, scales, 128, 128)
    assert ((dequantised(codes, scales, 128, 128) - w.double()).abs() <= bound).all()
    for name, fault in FAULTS.items():
        wrong = (dequantised(codes, fault(scales), 128, 128) - w.double()).abs() > bound
        assert wrong.float().mean() > 0.3, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_n": 32}, "expected block_n of 64, 128, got 32"),
        ({"block_k": 256}, "expected block_k of 64, 128, got 256"),
        ({"rounding": "up"}, "expected rounding of divide, reciprocal, got 'up'"),
        ({"scale_rule": "up"}, "expected scale_rule of amax, ue8m0, got 'up'"),
        ({"w": torch.zeros(2, 3, 4)}, "w in bfloat16, got float32"),
        ({"w": torch.zeros(3, 4, dtype=torch.bfloat16)}, r"as \[experts, n, k\], got \[3, 4\]"),
        ({"w": torch.zeros(3, 4, 0, dtype=torch.bfloat16)}, "n and k of at least 1, got 4 and 0"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(run: Run, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{"w": weights(1, 2, 4), **change})


@pytest.mark.parametrize("name", ["codes", "scales"])
def test_unfit_outputs_are_refused(name: str) -> None:
    w = weights(2, 40, 300)
    run = quant_weight_triton.moe_quant_weight
    value = dict(zip(("codes", "scales"), moe_quant_weight(w=w), strict=True))[name]
    with pytest.raises(UsageError, match=f"expected {name} to be contiguous"):
        run(w=w, **{name: torch.stack([value, value], -1)[..., 0]})
    with pytest.raises(UsageError, match=f"{name}: expected axis"):
        run(w=w, **{name: value[:, :, :1]})
    with pytest.raises(UsageError, match=f"expected {name} in"):
        run(w=w, **{name: value.double()})
    memory = torch.zeros(1 << 17, dtype=torch.uint8)
    over = memory[: w.nbytes].view(w.dtype).view(w.shape)
    with pytest.raises(UsageError, match=f"expected {name} apart from w"):
        run(w=over, **{name: memory[: value.nbytes].view(value.dtype).view(value.shape)})


@pytest.mark.parametrize(
    ("dtype", "case"), [("float32", "random"), ("bfloat16", "nothing")], ids=["dtype", "case"]
)
def test_a_workload_that_cannot_be_made(dtype: str, case: str) -> None:
    axes = (("block_k", 128), ("block_n", 128), ("experts", 1), ("k", 4), ("n", 1))
    workload = Workload(op="moe_quant_weight", axes=axes, dtype=dtype, case=case)
    with pytest.raises(UsageError, match="expected dtype bfloat16 and a case of random, edges"):
        MOE_QUANT_WEIGHT.make_inputs(workload, 0)
