"""A toy operator with a trusted reference, and candidates that carry one planted fault each."""

import textwrap
from pathlib import Path

import pytest
import torch

from bitgate.kernels.spec import Contract, Implementation, IntegerCase, Kernel, Tensors, TensorSpec
from bitgate.records.types import Workload

CONTRACT = Contract(
    name="toy/1",
    summary="one product and one sum per element",
    batch_invariant=True,
    cross_device=True,
)

REFERENCE = """
    import torch

    def run(*, x, w, shift):
        y = x * w + shift
        return y, y[:, 0] - y[:, -1]
"""


def make_inputs(workload: Workload, index: int) -> Tensors:
    generator = torch.Generator().manual_seed(workload.seed(index))
    rows, width = workload.axis("rows"), workload.axis("width")
    numbers = torch.randint(-999, 1000, (rows + 1, width), generator=generator)
    floats = numbers.to(torch.float32) / 64 + 1 / 3
    return {"x": floats[:rows].contiguous(), "w": floats[rows].contiguous()}


def integer_cases() -> tuple[IntegerCase, ...]:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = [[4 * row + column for column in range(4)] for row in range(3)]
    y = [[value * (column + 1) + 2 for column, value in enumerate(row)] for row in y]
    expected = {
        "y": torch.tensor(y, dtype=torch.float32),
        "edge": torch.tensor([row[0] - row[-1] for row in y], dtype=torch.float32),
    }
    case = IntegerCase(
        name="small", inputs={"x": x, "w": w}, constants={"shift": 2}, expected=expected
    )
    return (case,)


def write(root: Path, body: str, name: str = "planted") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{name}.py").write_text(textwrap.dedent(body))
    return root


@pytest.fixture(scope="session")
def toy() -> Kernel:
    reference = Implementation(
        name="toy-reference",
        op="toy",
        contract="toy/1",
        tier="canonical",
        devices=("cpu",),
        target="toy_reference:run",
        summary="the truth",
    )
    return Kernel(
        op="toy",
        summary="a product, a sum and a difference",
        tensors=(
            TensorSpec(name="x", dtype="float32", axes=("rows", "width")),
            TensorSpec(name="w", dtype="float32", axes=("width",), role="param"),
            TensorSpec(name="y", dtype="float32", axes=("rows", "width"), role="out"),
            TensorSpec(name="edge", dtype="float32", axes=("rows",), role="out"),
        ),
        constants=(("shift", 0.5),),
        make_inputs=make_inputs,
        integer_cases=integer_cases,
        implementations=(reference,),
        references={"toy/1": "toy-reference"},
        suites={"default": (workload(),)},
    )


def workload(rows: int = 3, width: int = 8) -> Workload:
    return Workload(op="toy", axes=(("rows", rows), ("width", width)), dtype="float32")


@pytest.fixture(scope="session")
def reference_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("reference"), REFERENCE, "toy_reference")
