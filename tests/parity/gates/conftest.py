"""A toy operator with a trusted reference, and candidates that carry one planted fault each."""

import hashlib
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from bitgate.kernels.spec import Contract, Implementation, IntegerCase, Kernel, Tensors, TensorSpec
from bitgate.parity import gates
from bitgate.parity.bundle import Bundle
from bitgate.parity.capture import Declared, Plan, capture, tap
from bitgate.parity.gates import Budget, Subject
from bitgate.parity.gates.base import Done
from bitgate.parity.gates.evidence import Document, decode
from bitgate.parity.gates.run import _ask
from bitgate.parity.gates.session import Session
from bitgate.parity.instance import Instance
from bitgate.parity.settings import settings
from bitgate.parity.worker import CallFailed, Facts, Launch, LoadFailed, Reply
from bitgate.records import provenance
from bitgate.records.types import Evidence, GateResult, Verdict, Workload

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
def kernel() -> Kernel:
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


# --- workers without processes: a freshly executed module stands in for a fresh process ----------


class LocalWorker:
    """A worker in this process, so that a fault costs milliseconds. State lives in its module."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._answer: Reply | CallFailed | None = None
        torch.set_num_threads(launch.threads)
        module, _, function = launch.target.partition(":")
        path = launch.root / f"{module}.py"
        before = settings()
        namespace: dict[str, Any] = {"__name__": module}
        try:
            exec(compile(path.read_text(), str(path), "exec"), namespace)
        except Exception as error:  # as the worker does
            raise LoadFailed(str(error)) from error
        self.facts = Facts(
            file=str(path.resolve()),
            torch=torch.__version__,
            python="3",
            device="cpu",
            before=before,
            after=settings(),
        )
        self._threads = torch.get_num_threads()
        self._instance = Instance(namespace[function], "cpu")

    def send(self, inputs, constants, *, placement="same", poison=0xFF) -> None:
        torch.set_num_threads(self._threads)
        plain = {name: value.contiguous().clone() for name, value in inputs.items()}
        try:
            answer = self._instance.call(plain, constants, placement, poison)
            outputs = self._launch.kernel.named_outputs(answer.outputs)
        except Exception as error:
            raise CallFailed(str(error)) from error
        self._threads = torch.get_num_threads()
        self._answer = Reply(
            outputs=outputs,
            mutated=answer.mutated,
            settings=answer.settings,
            overwritten=answer.overwritten,
        )

    def receive(self) -> Reply:
        assert self._answer is not None
        return self._answer

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Store(dict[str, bytes]):
    """Evidence in memory."""

    def put(self, data: bytes, media: str) -> Evidence:
        sha256 = hashlib.sha256(data).hexdigest()
        self[sha256] = data
        return Evidence(sha256=sha256, size_bytes=len(data), media=media)


CORRECT = """
    def run(*, x, w, shift):
        y = x * w + shift
        return y, y[:, 0] - y[:, -1]
"""


@dataclass
class Bench:
    """Judges planted candidates of the toy operator; every part may be replaced."""

    kernel: Kernel
    reference_root: Path
    folder: Path
    store: Store = field(default_factory=Store)
    budget: Budget = field(default_factory=lambda: Budget(cases=8, processes=2, call_timeout_s=20))
    workloads: tuple[Workload, ...] = field(default_factory=lambda: (workload(),))
    contract: Contract = CONTRACT
    bundle: Bundle | None = None
    launcher: Any = LocalWorker
    written: int = 0

    def subject(self, body: str = CORRECT, **changes: Any) -> Subject:
        """A candidate with this source, in a directory of its own."""
        self.written += 1
        root = write(self.folder / str(self.written), body)
        candidate = provenance.candidate(
            name="planted",
            op="toy",
            contract="toy/1",
            tier="canonical",
            device="cpu",
            implementation="planted:run",
            root=root,
            switches=(),
        )
        known = {
            "kernel": self.kernel,
            "candidate": candidate,
            "root": root,
            "reference": self.kernel.implementations[0],
            "constants": dict(self.kernel.constants),
            "reference_root": self.reference_root,
            "contract": self.contract,
        }
        return Subject(**{**known, **changes})

    def run(self, subject: Subject | str = CORRECT, done: Done | None = None) -> Verdict:
        """All gates in order."""
        return gates.run(
            self.subject(subject) if isinstance(subject, str) else subject,
            workloads=self.workloads,
            bundle=self.bundle,
            budget=self.budget,
            put=self.store.put,
            done=done,
            launcher=self.launcher,
        )

    def ask(self, gate: str, subject: Subject | str = CORRECT) -> GateResult:
        """One gate alone, whatever the earlier ones say."""
        subject = self.subject(subject) if isinstance(subject, str) else subject
        session = Session(
            subject=subject,
            workloads=self.workloads,
            bundle=self.bundle,
            budget=self.budget,
            put=self.store.put,
            progress=lambda *_: None,
            launcher=self.launcher,
        )
        with session:
            return _ask(session, next(item for item in gates.GATES if item.id == gate))

    def document(self, result: GateResult) -> Document:
        """The evidence of a result."""
        return decode(self.store[result.evidence.sha256])


@pytest.fixture
def bench(kernel, reference_root, tmp_path) -> Bench:
    return Bench(kernel=kernel, reference_root=reference_root, folder=tmp_path)


@pytest.fixture
def catch(bench) -> Callable[[Any], None]:
    """Checks that a fault is caught by its gate, and that the finding and the reason name it."""

    def check(fault: Any) -> None:
        unseen = bench.kernel.make_inputs(bench.workloads[0], bench.budget.cases)["x"][0, 0]
        result = bench.ask(fault.gate, fault.body.replace("FORBIDDEN", repr(float(unseen))))
        assert (result.outcome, result.finding) == ("fail", fault.finding), result.reason
        assert re.search(fault.text, result.reason, re.DOTALL), (fault.text, result.reason)
        document = bench.document(result)
        assert [case.kind for case in document.cases].count("equal") < len(document.cases)
        assert result.bounds == ()

    return check


@pytest.fixture(scope="session")
def write_bundle(toy_origin, tmp_path_factory) -> Callable[..., Bundle]:
    """Captures two boundaries of the toy operator over three steps of a made-up model."""

    def build(contract: str = "toy/1", op: str = "toy", nudge: float = 0.0, **plan: Any) -> Bundle:
        out = tmp_path_factory.mktemp("captured") / "bundle"
        declared = tuple(
            Declared(name="scale", layer=layer, op=op, contract=contract, constants={"shift": 0.25})
            for layer in range(2)
        )
        with capture(Plan(boundaries=declared, origin=toy_origin, **plan), out) as session:
            for token in range(3):
                with session.step(request=0, token=token, phase="decode"):
                    x, w = make_inputs(workload(2), token).values()
                    for layer in range(2):
                        y = x * w + 0.25 + nudge
                        edge = y[:, 0] - y[:, -1]
                        tap("scale", {"x": x, "w": w}, layer=layer, out={"y": y, "edge": edge})
                        x = y
        return Bundle.open(out)

    return build
