"""moe_dequant_mxfp4: every code at every scale against rational numbers, and where bytes lie."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from bitgate.kernels.arithmetic_triton import launch
from bitgate.kernels.loading import load
from bitgate.kernels.moe import mxfp4_triton
from bitgate.kernels.moe.mxfp4 import MOE_DEQUANT_MXFP4
from bitgate.kernels.moe.mxfp4_reference import moe_dequant_mxfp4
from bitgate.kernels.spec import Tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

Tensor = torch.Tensor
Run = Callable[..., Tensor]
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_DEQUANT_MXFP4.implementations]
VALUES = [Fraction(twice, 2) for twice in (0, 1, 2, 3, 4, 6, 8, 12)]
NAN, INFINITY = 0x7FC0, 0x7F80


def inputs_at(rows: int, groups: int, case: str = "random") -> Tensors:
    axes = (("groups", groups), ("rows", rows))
    workload = Workload(op="moe_dequant_mxfp4", axes=axes, dtype="bfloat16", case=case)
    return MOE_DEQUANT_MXFP4.make_inputs(workload, 0)


def every_combination() -> Tensors:
    """A row for every scale: 16 codes in the low nibbles, and the same in the high ones."""
    codes = torch.arange(16, dtype=torch.uint8).mul(17).expand(256, 16).contiguous()
    return {"codes": codes, "scales": torch.arange(256, dtype=torch.uint8)[:, None]}


def patterns(out: Tensor) -> list[list[int]]:
    return (out.view(torch.int16).int() & 0xFFFF).tolist()


def number(pattern: int) -> Fraction:
    """What a finite bfloat16 bit pattern is, by the format's definition."""
    exponent, fraction = pattern >> 7 & 255, pattern & 127
    assert exponent < 255
    size = (
        Fraction(128 + fraction) * Fraction(2) ** (exponent - 134)
        if exponent
        else Fraction(fraction) * Fraction(2) ** -133
    )
    return -size if pattern >> 15 else size


@pytest.mark.parametrize("run", RUNS)
def test_every_code_at_every_scale_is_exact(run: Run) -> None:
    seen = {"exact": 0, "infinite": 0, "nan": 0, "subnormal": 0}
    for scale, row in enumerate(patterns(run(**every_combination()))):
        assert row[0::2] == row[1::2]
        for code, pattern in enumerate(row[0::2]):
            if scale == 255:
                assert pattern == NAN
                seen["nan"] += 1
                continue
            assert pattern >> 15 == code >> 3
            size = VALUES[code & 7] * Fraction(2) ** (scale - 127)
            if size >= Fraction(2) ** 128:
                assert pattern & 0x7FFF == INFINITY
                seen["infinite"] += 1
            else:
                assert abs(number(pattern)) == size
                seen["exact"] += 1
                seen["subnormal"] += 0 < pattern & 0x7FFF < 128
    # 2, 3, 4 and 6 at the scale 254, and 4 and 6 at 253; 0.5 to 1.5 at 0, and 0.5 at 1.
    assert seen == {"nan": 16, "infinite": 12, "exact": 4096 - 28, "subnormal": 8}


def test_the_number_of_a_pattern_is_torchs() -> None:
    found = torch.tensor([0, 1, 127, 128, 129, 0x3F80, 0x7F7F, 0x8001, 0xC2F7], dtype=torch.int32)
    values = found.to(torch.int16).view(torch.bfloat16).double().tolist()
    assert [float(number(pattern)) for pattern in found.tolist()] == values


@pytest.mark.parametrize("run", RUNS)
def test_a_low_nibble_is_the_even_number(run: Run) -> None:
    codes = torch.tensor([[0x72, *[0] * 15]], dtype=torch.uint8)
    out = run(codes=codes, scales=torch.tensor([[127]], dtype=torch.uint8))
    assert out[0, :3].tolist() == [1.0, 6.0, 0.0]


@pytest.mark.parametrize("run", RUNS)
def test_a_scale_is_that_of_its_32_numbers(run: Run) -> None:
    codes = torch.full((2, 48), 0x22, dtype=torch.uint8)
    scales = torch.tensor([[127, 128, 129], [130, 255, 131]], dtype=torch.uint8)
    out = run(codes=codes, scales=scales).view(2, 3, 32)
    assert (out == out[:, :, :1])[0].all()
    assert out[:, :, 0].flatten().tolist()[:4] == [1.0, 2.0, 4.0, 8.0]
    assert out[1, 1].isnan().all()
    assert not out[1, 2].isnan().any()


@pytest.mark.parametrize("run", RUNS)
def test_flushing_subnormal_numbers_changes_no_bit(run: Run) -> None:
    expected = run(**every_combination())
    assert torch.set_flush_denormal(True)
    try:
        out = run(**every_combination())
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("run", RUNS)
def test_leading_axes_are_kept(run: Run) -> None:
    inputs = inputs_at(12, 2)
    stacked = {name: value.view(3, 4, -1) for name, value in inputs.items()}
    out = run(**stacked)
    assert out.shape == (3, 4, 64)
    assert torch.equal(out.view(12, 64), run(**inputs))


@pytest.mark.parametrize("run", RUNS)
def test_no_groups_give_an_empty_result(run: Run) -> None:
    empty = torch.zeros(3, 0, dtype=torch.uint8)
    assert run(codes=empty, scales=empty).shape == (3, 0)


FAULTS: dict[str, Callable[[Tensors], Tensors]] = {
    "swapped nibbles": lambda given: {"codes": given["codes"] >> 4 | given["codes"] << 4},
    "scales of the next group": lambda given: {"scales": given["scales"].roll(1, 1)},
    "a bias of 128": lambda given: {"scales": given["scales"] - 1},
    "lost signs": lambda given: {"codes": given["codes"] & 0x77},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fixtures_find_a_fault(fault: str) -> None:
    case = MOE_DEQUANT_MXFP4.integer_cases()[1]
    assert torch.equal(moe_dequant_mxfp4(**case.inputs), case.expected["out"])
    wrong = moe_dequant_mxfp4(**(case.inputs | FAULTS[fault](case.inputs)))
    assert (wrong != case.expected["out"]).float().mean() > 0.3


@pytest.mark.slow  # reserves 8 GB of addresses, of which some pages are used
def test_offsets_beyond_32_bits() -> None:
    width = (1 << 31) + 32
    codes = torch.from_numpy(np.zeros(width // 2 + 16, np.uint8))
    scales = torch.from_numpy(np.zeros(width // 32 + 1, np.uint8))
    out = torch.from_numpy(np.zeros(width + 32, np.int16))
    inputs = inputs_at(1, 1)
    codes[-16:], scales[-1:] = inputs["codes"][0], inputs["scales"][0]
    sizes = {"ROWS": 1, "BLOCK": 32}
    launch(mxfp4_triton.dequant_mxfp4_kernel, (2, 1), codes, scales, out, 2, width, **sizes)
    assert torch.equal(out[-32:], moe_dequant_mxfp4(**inputs).view(torch.int16)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": torch.zeros(2, 17, dtype=torch.uint8)}, r"axis 16\*groups of 16, got 17"),
        ({"scales": torch.zeros(2, 2, dtype=torch.uint8)}, "scales: expected axis groups of 1"),
        ({"scales": torch.zeros(3, 1, dtype=torch.uint8)}, "scales: expected axis rows of 2"),
        ({"codes": torch.zeros(2, 16, dtype=torch.int8)}, "codes in uint8, got int8"),
        ({"scales": torch.zeros(2, 1)}, "scales in uint8, got float32"),
        ({"codes": torch.zeros(16, dtype=torch.uint8)}, r"codes as \[rows, 16\*groups\]"),
        ({"codes": torch.zeros(2, 1, 16, dtype=torch.uint8)}, "the same leading axes, got"),
        ({"codes": None}, "codes as a torch tensor, got NoneType"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_arguments_are_named(run: Run, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"moe_dequant_mxfp4: .*{message}"):
        run(**{**inputs_at(2, 1), **change})


def test_a_workload_that_cannot_be_made() -> None:
    with pytest.raises(UsageError, match="a case of random, edges"):
        inputs_at(2, 1, "nothing")
