"""What holds for every stage of the experts whose bits are the same everywhere."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import (
    act_quant_triton,
    act_triton,
    combine_triton,
    combine_weighted_triton,
    mxfp4_triton,
    quant_triton,
    route_hash_triton,
    route_triton,
)
from bitgate.kernels.moe.act import MOE_ACT
from bitgate.kernels.moe.act_quant import MOE_ACT_QUANT
from bitgate.kernels.moe.combine import MOE_COMBINE
from bitgate.kernels.moe.combine_weighted import MOE_COMBINE_WEIGHTED
from bitgate.kernels.moe.mxfp4 import MOE_DEQUANT_MXFP4
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.moe.route import MOE_ROUTE
from bitgate.kernels.moe.route_hash import MOE_ROUTE_HASH
from bitgate.kernels.spec import Implementation, Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

KERNELS = (
    MOE_ROUTE,
    MOE_ROUTE_HASH,
    MOE_ACT,
    MOE_COMBINE,
    MOE_COMBINE_WEIGHTED,
    MOE_DEQUANT_MXFP4,
    MOE_QUANT,
    MOE_ACT_QUANT,
)
MODULES = {
    "moe_route": route_triton,
    "moe_route_hash": route_hash_triton,
    "moe_act": act_triton,
    "moe_combine": combine_triton,
    "moe_combine_weighted": combine_weighted_triton,
    "moe_dequant_mxfp4": mxfp4_triton,
    "moe_quant": quant_triton,
    "moe_act_quant": act_quant_triton,
}
# Where the size of a tile is decided, if not beside the kernel.
TILED = {"moe_act_quant": quant_triton}
# The axis along which a call is a batch.
BATCH = {kernel.op: kernel.outputs[0].axes[0] for kernel in KERNELS}
EVERY = [
    pytest.param(kernel, found, id=found.name)
    for kernel in KERNELS
    for found in kernel.implementations
]
TRITON = [one for one in EVERY if one.id is not None and one.id.endswith("triton")]
WORKLOADS = [
    pytest.param(kernel, workload, id=workload.key)
    for kernel in KERNELS
    for workload in kernel.suites["default"]
]


def call(kernel: Kernel, found: Implementation, inputs: Tensors, **other: object) -> Tensors:
    run: Callable[..., object] = load(found.target)
    return kernel.named_outputs(run(**inputs, **{**dict(kernel.constants), **other}))


def truth(kernel: Kernel, inputs: Tensors) -> Tensors:
    (name,) = kernel.references.values()
    return call(kernel, next(one for one in kernel.implementations if one.name == name), inputs)


def some(kernel: Kernel, batch: int | None = None) -> Tensors:
    """Inputs of the last workload of the suite, with another number of rows."""
    point = kernel.suites["default"][-1]
    axes = dict(point.axes)
    if batch is not None:
        axes[BATCH[kernel.op]] = batch
    workload = Workload(
        op=kernel.op, axes=tuple(sorted(axes.items())), dtype=point.dtype, case=point.case
    )
    return kernel.make_inputs(workload, 0)


def batched(kernel: Kernel, tensors: Tensors, index: object) -> Tensors:
    """The tensors with those rows only."""
    along = {spec.name for spec in kernel.tensors if spec.axes[0] == BATCH[kernel.op]}
    return {name: value[index] if name in along else value for name, value in tensors.items()}


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("stage", expected, actual)
    assert result.equal, result.mismatches
    assert result.compared == len(expected)


@pytest.mark.parametrize(("kernel", "workload"), WORKLOADS)
def test_no_bit_differs_from_the_replay(kernel: Kernel, workload: Workload) -> None:
    found = next(one for one in kernel.implementations if one.name.endswith("triton"))
    inputs = kernel.make_inputs(workload, 0)
    assert_same(truth(kernel, inputs), call(kernel, found, inputs))


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_no_rows_give_empty_outputs(kernel: Kernel, found: Implementation) -> None:
    outputs = call(kernel, found, some(kernel, 0))
    for spec in kernel.outputs:
        assert outputs[spec.name].shape[0] == 0
        assert outputs[spec.name].ndim == len(spec.axes)
        assert str(outputs[spec.name].dtype) == f"torch.{spec.dtype}"


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_a_row_does_not_depend_on_its_batch(kernel: Kernel, found: Implementation) -> None:
    inputs = some(kernel, 7)
    together = call(kernel, found, inputs)
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    for index in (order, slice(2, 3), slice(6, 7)):
        alone = call(kernel, found, batched(kernel, inputs, index))
        assert_same(batched(kernel, together, index), alone)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_threads_change_no_bit(kernel: Kernel) -> None:
    inputs = some(kernel, 300)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(truth(kernel, inputs))
    finally:
        torch.set_num_threads(before)
    assert_same(*results)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, at an odd offset."""
    buffer = torch.zeros(tensor.numel() * 2 + 1, dtype=tensor.dtype)
    view = buffer[1::2].view(tensor.shape)
    view.copy_(tensor)
    return view


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_strides_change_no_bit(kernel: Kernel, found: Implementation) -> None:
    inputs = some(kernel)
    gaps = {name: strided(value) for name, value in inputs.items()}
    assert not any(value.is_contiguous() for value in gaps.values())
    assert_same(call(kernel, found, inputs), call(kernel, found, gaps))


@pytest.mark.parametrize(("kernel", "found"), EVERY)
def test_inputs_are_left_alone(kernel: Kernel, found: Implementation) -> None:
    inputs = some(kernel)
    before = {name: value.clone() for name, value in inputs.items()}
    call(kernel, found, inputs)
    assert_same(before, inputs)


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_tiles_of_a_device_change_no_bit(
    kernel: Kernel, found: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter takes larger tiles than a device does; here it takes a device's."""
    inputs = some(kernel, 9 if kernel is MOE_ACT else 40)
    expected = call(kernel, found, inputs)
    seen: list[int] = []
    module = MODULES[kernel.op]
    original = module.launch

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        seen.append(grid[0] * grid[-1])
        original(kernel, grid, *arguments, **constants)

    monkeypatch.setattr(module, "launch", launch)
    tiled = TILED.get(kernel.op, module)
    # What a module has of the two that choose a tile.
    monkeypatch.setattr(tiled, "interpreting", lambda: False, raising=False)
    monkeypatch.setattr(tiled, "rows_of", lambda width: max(1, 1024 // width), raising=False)
    assert_same(expected, call(kernel, found, inputs))
    assert seen[0] > 1


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_multiply_add_fusion_is_off(
    kernel: Kernel, found: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    module = MODULES[kernel.op]
    (name,) = [name for name in vars(module) if name.endswith("_kernel")]
    original = getattr(module, name)

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **options: Any) -> None:
                seen.append(options["enable_fp_fusion"])
                original[grid](*arguments, **options)

            return launch

    monkeypatch.setattr(module, name, Recorder())
    call(kernel, found, some(kernel, 1))
    assert seen == [False]


# --- outputs of the caller -----------------------------------------------------------------------


@pytest.mark.parametrize("poison", [-1, 0x7F], ids=["nan", "finite"])
@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_outputs_of_the_caller_are_filled_whole(
    kernel: Kernel, found: Implementation, poison: int
) -> None:
    inputs = some(kernel)
    expected = truth(kernel, inputs)
    given = {name: torch.empty_like(value) for name, value in expected.items()}
    for value in given.values():
        value.view(torch.int8).fill_(poison)
    returned = call(kernel, found, inputs, **given)
    assert all(returned[name] is given[name] for name in given)
    assert_same(expected, given)


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_unfit_outputs_are_refused(kernel: Kernel, found: Implementation) -> None:
    inputs = some(kernel, 3)
    for name, value in truth(kernel, inputs).items():
        with pytest.raises(UsageError, match=f"expected {name} to be contiguous"):
            call(kernel, found, inputs, **{name: strided(value)})
        with pytest.raises(UsageError, match=name):
            call(kernel, found, inputs, **{name: value[:1]})
        with pytest.raises(UsageError, match=name):
            call(kernel, found, inputs, **{name: value.double()})


@pytest.mark.parametrize(("kernel", "found"), TRITON)
def test_outputs_over_inputs_are_refused(kernel: Kernel, found: Implementation) -> None:
    inputs = some(kernel, 3)
    for name, value in truth(kernel, inputs).items():
        for source in kernel.inputs:
            memory = torch.zeros(1 << 14, dtype=torch.uint8)
            over = {}
            for one, tensor in ((source.name, inputs[source.name]), (name, value)):
                over[one] = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            over[source.name].copy_(inputs[source.name])
            with pytest.raises(UsageError, match=f"expected {name} apart from {source.name}"):
                call(kernel, found, inputs | over)


# SHA-256 over the outputs' bytes in name order. Golden on every machine: inputs are made from
# integers, and these stages leave no bit to the machine.
GOLDEN = {
    "moe_route": "d2b9de84c417b1933aa5b9a9d5a7026f2fa24d137012cdf687a9e0ef0ad38496",
    "moe_route_hash": "c6498c587471cc80c6da91f159d50d5ced7fc2ce4d7ebf22ad36c4c0cb5df512",
    "moe_act": "62a99e50c65722d621f0d867e72a801863bb211f073d52e1ce57238b9b8214f4",
    "moe_combine": "65b5f9fe51cd5d9abac98322e94b3499668cc52893821c47443c520997a3bf87",
    "moe_combine_weighted": "f9457586e22284b49a8d361fdf971e04f7f386ae275f4b98f2cd3011c7915173",
    "moe_dequant_mxfp4": "7c20d8582834e4d0944ae9b5fd4be7d8b33cc5727a21beb8f379af7275605538",
    "moe_quant": "939290334bca1aaf676ff475e7199631ca24e34e3aaab6d958734e617bba2b5d",
    "moe_act_quant": "4d06a8588bdcf10cc33bc03cbe6c9c713911b9712b62f5cf87dcb66bd2699c01",
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_golden_bits(kernel: Kernel) -> None:
    content = hashlib.sha256()
    for _, value in sorted(truth(kernel, some(kernel)).items()):
        content.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    assert content.hexdigest() == GOLDEN[kernel.op]
