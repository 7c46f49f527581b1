"""The catalogue against what the files export: nothing forgotten, everything loads and agrees."""

import importlib
import pkgutil

import pytest
import torch

import bitgate.kernels
from bitgate.kernels.catalogue import CONTRACTS, KERNELS, contract, implementation, kernel
from bitgate.kernels.loading import load
from bitgate.kernels.spec import Contract, Kernel
from bitgate.records.errors import UsageError
from bitgate.records.ops import operator


def exported(kind: type) -> dict[str, object]:
    """Every value of `kind` that a file of an operator package holds, by its qualified name."""
    found = {}
    for package in pkgutil.iter_modules(bitgate.kernels.__path__, "bitgate.kernels."):
        if not package.ispkg:
            continue
        module = importlib.import_module(package.name)
        for file in pkgutil.iter_modules(module.__path__, f"{package.name}."):
            for name, value in vars(importlib.import_module(file.name)).items():
                if isinstance(value, kind):
                    found[f"{file.name}.{name}"] = value
    return found


def unlisted(found: dict[str, object], listed: tuple[object, ...]) -> list[str]:
    return [name for name, value in found.items() if not any(value is one for one in listed)]


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """torch.equal of numbers; it knows no float8."""
    return a.dtype == b.dtype and torch.equal(a.double(), b.double())


@pytest.mark.parametrize(("kind", "listed"), [(Kernel, KERNELS), (Contract, CONTRACTS)])
def test_everything_exported_is_listed(kind: type, listed: tuple[object, ...]) -> None:
    found = exported(kind)
    missing = unlisted(found, listed)
    assert missing == [], f"add these lines to kernels/catalogue.py: {missing}"
    assert all(any(value is one for value in found.values()) for one in listed)
    # The control: a definition whose line is gone is missed.
    assert unlisted(found, listed[1:])


def test_names_are_unique() -> None:
    names = [found.name for one in KERNELS for found in one.implementations]
    assert len(set(names)) == len(names)
    assert len({one.op for one in KERNELS}) == len(KERNELS)
    assert len({one.name for one in CONTRACTS}) == len(CONTRACTS)


@pytest.mark.parametrize("op", [one.op for one in KERNELS])
def test_a_definition_is_complete(op: str) -> None:
    definition = kernel(op)
    names = [spec.name for spec in definition.tensors]
    assert len(set(names)) == len(names)
    assert definition.outputs
    assert definition.suites["default"]
    contracts = {found.contract for found in definition.implementations}
    assert set(definition.references) == contracts
    for found in definition.implementations:
        assert found.op == op
        assert implementation(found.name) is found
        contract(found.contract)
        assert callable(load(found.target))
        assert set(found.devices) <= {"cpu", "cuda", "xpu"}
    for name, reference in definition.references.items():
        assert implementation(reference).contract == contract(name).name


@pytest.mark.parametrize("op", [one.op for one in KERNELS])
def test_inputs_have_the_declared_names_dtypes_and_shapes(op: str) -> None:
    definition = kernel(op)
    for workload in {point.key: point for point in definition.suites["default"]}.values():
        assert workload.op == op
        inputs = definition.make_inputs(workload, 0)
        assert list(inputs) == [spec.name for spec in definition.inputs]
        extents = dict(workload.axes)
        for spec in definition.inputs:
            tensor = inputs[spec.name]
            assert str(tensor.dtype) == f"torch.{spec.dtype}"
            assert tensor.dim() == len(spec.axes)
            for axis, size in zip(spec.axes, tensor.shape, strict=True):
                assert extents.get(axis, size) == size


@pytest.mark.parametrize("op", [one.op for one in KERNELS])
def test_inputs_repeat_and_differ_by_sample(op: str) -> None:
    definition = kernel(op)
    workload = definition.suites["default"][-1]
    first, again, other = (definition.make_inputs(workload, index) for index in (0, 0, 1))
    assert all(equal(first[name], again[name]) for name in first)
    assert any(not equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("op", [one.op for one in KERNELS])
def test_every_implementation_meets_the_integer_fixtures(op: str) -> None:
    definition = kernel(op)
    cases = definition.integer_cases()
    assert cases
    for found in definition.implementations:
        run = load(found.target)
        for case in cases:
            outputs = definition.named_outputs(run(**case.inputs, **case.constants))
            for name, expected in case.expected.items():
                assert equal(outputs[name], expected), f"{found.name}, {case.name}, {name}"


@pytest.mark.parametrize("op", [one.op for one in KERNELS])
def test_axes_are_those_of_the_vocabulary(op: str) -> None:
    for workloads in kernel(op).suites.values():
        for workload in workloads:
            operator(op).check(workload)


@pytest.mark.parametrize(
    ("lookup", "near"), [(kernel, "moe_expert"), (implementation, "experts_lop")]
)
def test_an_unknown_name_lists_the_known_and_the_close(lookup: object, near: str) -> None:
    with pytest.raises(UsageError, match=r"known: .*did you mean"):
        lookup(near)


def test_an_unknown_contract() -> None:
    with pytest.raises(UsageError, match="moe-torch/1"):
        contract("nothing-like-it")
