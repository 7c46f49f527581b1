"""float8 through what carries tensors; torch lacks most of its arithmetic."""

from pathlib import Path

import pytest
import torch

from bitgate.kernels.alias import overlap
from bitgate.kernels.arguments import bind
from bitgate.kernels.devices.poison import poison
from bitgate.kernels.spec import Kernel, TensorSpec
from bitgate.parity.bits import compare_tensor, finite, words
from bitgate.parity.bundle import Bundle
from bitgate.parity.capture import Declared, Origin, Plan, capture, tap
from bitgate.parity.compare import compare_tensors
from bitgate.parity.compare_numbers import numbers
from bitgate.parity.digests import digest
from bitgate.parity.gates.variants import mutants, perturbed, take_rows, varied
from bitgate.parity.wire import PREFIX_BYTES, decode, encode
from bitgate.records.errors import UsageError

EVERY = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(16, 16)
SPECS = (
    TensorSpec(name="x", dtype="float8_e4m3fn", axes=("rows", "k")),
    TensorSpec(name="w", dtype="float8_e4m3fn", axes=("k", "n"), role="param"),
    TensorSpec(name="out", dtype="float8_e4m3fn", axes=("rows", "n"), role="out"),
)
KERNEL = Kernel(
    op="toy",
    summary="",
    tensors=SPECS,
    constants=(),
    make_inputs=lambda workload, index: {},
    integer_cases=tuple,
    implementations=(),
    references={},
    suites={},
)


def code(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_a_capture_gives_back_every_code_and_view(tmp_path: Path, toy_origin: Origin) -> None:
    plan = Plan(boundaries=(Declared(name="quant"),), origin=toy_origin)
    odd = EVERY[1:, 3:9:2].T
    with capture(plan, tmp_path / "b") as session, session.step(request=0, token=0, phase="decode"):
        tap("quant", {"x": EVERY, "odd": odd}, out={"codes": EVERY.clone().T})
    (frame,) = Bundle.open(tmp_path / "b").frames()
    given = frame.inputs() | frame.outputs()
    assert given["odd"].stride() == odd.stride()
    for name, expected in (("x", EVERY), ("odd", odd), ("codes", EVERY.T)):
        assert given[name].dtype is torch.float8_e4m3fn
        assert torch.equal(words(given[name]), words(expected))
        assert frame.meta(name).digest == digest(expected)
    assert frame.finite == {"x": 254, "odd": finite(odd), "codes": 254}


@pytest.mark.parametrize(("other", "ulp"), [(0x39, 1), (0x37, -1), (0x7F, None), (0xB8, -0x70)])
def test_one_code_that_differs_is_found(other: int, ulp: int | None) -> None:
    changed = EVERY.clone()
    changed.view(torch.uint8)[3, 8] = other  # it was 0x38, which is 1
    found = compare_tensor("codes", EVERY, changed)
    assert found is not None
    assert (found.first_index, found.differing, found.total) == ((3, 8), 1, 256)
    assert (found.expected_bits, found.actual_bits) == ("0x38", f"{other:#04x}")
    assert found.max_ulp == ulp
    assert "one single element" in found.hints
    assert digest(changed) != digest(EVERY)


def test_zeros_of_two_signs_and_two_nans_differ() -> None:
    zero = compare_tensor("codes", code(0), code(0x80))
    nan = compare_tensor("codes", code(0x7F), code(0xFF))
    assert zero is not None
    assert nan is not None
    assert "only the sign of zero differs in 1 elements" in zero.hints
    assert "only the payload of NaN differs in 1 elements" in nan.hints
    assert compare_tensors("toy", {"codes": EVERY}, {"codes": EVERY.clone()}).equal
    assert compare_tensor("codes", EVERY, EVERY.view(torch.uint8)).kind == "dtype"


def test_numbers_explain_a_difference() -> None:
    one, other = code(0x38).expand(4), code(0x39).expand(4)
    assert dict(numbers(one, other)) == {"cosine": "1", "max_abs": "0.125", "max_rel": "0.125"}
    assert numbers(EVERY, EVERY) == (("finite", "no"),)


def test_a_message_carries_it() -> None:
    message = encode({"a": 1}, {"x": EVERY})
    header, tensors = decode(message[:PREFIX_BYTES], message[PREFIX_BYTES:])
    assert header == {"a": 1}
    assert tensors["x"].dtype is torch.float8_e4m3fn
    assert torch.equal(words(tensors["x"]), words(EVERY))


def test_poison_is_seen() -> None:
    for pattern, expected in (("nan", 0x7F), ("huge", 0x7E)):
        spoiled = torch.empty_like(EVERY)
        poison(spoiled, pattern)
        assert (spoiled.view(torch.uint8) == expected).all()


def test_arguments_are_bound_and_overlaps_found() -> None:
    assert bind("toy", SPECS, {"x": EVERY, "w": EVERY}) == {"rows": 16, "k": 16, "n": 16}
    with pytest.raises(UsageError, match="expected x in float8_e4m3fn, got float8_e5m2"):
        bind("toy", SPECS, {"x": EVERY.view(torch.float8_e5m2)})
    assert overlap(EVERY[:2], EVERY[1:3])
    assert not overlap(EVERY[:2], EVERY[2:])


def test_gates_can_vary_an_input_and_spoil_an_output() -> None:
    inputs = {"x": EVERY, "w": EVERY}
    assert varied(KERNEL, inputs) == ("x", "w")
    for seed in range(40):
        other = perturbed(KERNEL, inputs, seed, "x")["x"]
        assert other.dtype is EVERY.dtype
        (index,) = (words(other) != words(EVERY)).nonzero()
        # The other sign; a zero becomes one.
        assert words(other)[index] == (0x38 if index in (0, 0x80) else index ^ 0x80)
    assert (words(perturbed(KERNEL, inputs, 0, "w")["w"]) != words(EVERY)).all()
    spoiled = mutants({"out": EVERY})
    assert set(spoiled) == {"zeros", "scaled", "constant", "permuted"}
    for outputs in spoiled.values():
        assert outputs["out"].dtype is EVERY.dtype
        assert not compare_tensors("toy", {"out": EVERY}, outputs).equal
    assert take_rows(SPECS, inputs, "rows", (3, 1))["x"].shape == (2, 16)
