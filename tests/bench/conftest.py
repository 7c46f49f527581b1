"""A tiny capture of moe_experts, and candidates below a folder of their own."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitgate.bench import session
from bitgate.bench.effect import NULL_ROUNDS
from bitgate.bench.stages import RunReport, run_candidate
from bitgate.kernels import catalogue, probes
from bitgate.kernels.moe.experts import experts_loop
from bitgate.kernels.spec import Tensors
from bitgate.parity.bundle_format import ModelIdentity
from bitgate.parity.capture import Declared, Origin, Plan, capture, tap
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.coin import flips
from bitgate.records.ledger import Ledger
from bitgate.records.types import Environment, Harness, Measurement, Workload
from bitgate.records.types import Plan as TimingPlan

AXES = {"experts": 4, "hidden": 8, "intermediate": 8, "tokens": 5, "top_k": 2}
WORKLOAD = Workload(op="moe_experts", axes=tuple(AXES.items()), dtype="bfloat16")
SHAPE = ", ".join(f"{name} = {extent}" for name, extent in AXES.items())
SAME = """
    from bitgate.kernels.moe.experts import experts_loop

    def run(**arguments):
        return experts_loop(**arguments)
"""
SIDE = """\
[{section}]
name = "{name}"
op = "moe_experts"
contract = "moe-torch/1"
tier = "native"
device = "cpu"
impl = "{name}:run"
"""
SETTINGS = f"""\
[workloads]
bundle = "captured"
shapes = [{{{SHAPE}}}]
dtype = "bfloat16"
[gates]
cases = 29
processes = 2
[bench]
rounds = 24
margin = 0.2
processes = 1
order_seed = 5
"""


def origin() -> Origin:
    return Origin(
        producer=Harness(version="0", commit=None, dirty=False, source_sha256="a" * 64),
        model=ModelIdentity(
            name="toy", model_type="toy", config_sha256="a" * 64, weights_sha256="b" * 64
        ),
        environment=Environment(
            device="cpu",
            device_name="test",
            device_count=1,
            node="n",
            os="o",
            python="3",
            threads=1,
            packages=(),
            libraries=(),
            switches=(),
            probes=(),
        ),
    )


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with two steps of one expert layer."""
    kernel = catalogue.kernel("moe_experts")
    out = tmp_path_factory.mktemp("bundle") / "captured"
    constants = dict(kernel.constants)
    declared = Declared(
        name="experts",
        layer=0,
        op="moe_experts",
        contract="moe-torch/1",
        constants=constants,
        closed=True,
    )
    with capture(Plan(boundaries=(declared,), origin=origin()), out) as session:
        for token in range(2):
            inputs = kernel.make_inputs(WORKLOAD, 1000 + token)
            with session.step(request=0, token=token, phase="decode"):
                result = experts_loop(**inputs, **constants)
                tap("experts", inputs, layer=0, out={"out": result})
    return out


@pytest.fixture(autouse=True)
def _known_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes have tests of their own; here they would only take time."""
    monkeypatch.setattr(probes, "run", lambda device: (("torch:div", "nearest"),))


@pytest.fixture
def folder(tmp_path: Path, captured: Path) -> Path:
    """A candidate's folder with the bundle beside it."""
    (tmp_path / "captured").symlink_to(captured)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    """Write a module and its candidate file; `baseline` names another written module."""

    def write(
        name: str,
        body: str = SAME,
        *,
        baseline: str | None = None,
        settings: str = SETTINGS,
    ) -> Path:
        (folder / f"{name}.py").write_text(textwrap.dedent(body))
        text = SIDE.format(section="candidate", name=name)
        if baseline == "promoted":
            text = 'baseline = "promoted"\n' + text
        elif baseline is not None:
            text += SIDE.format(section="baseline", name=baseline)
        path = folder / f"{name}.toml"
        path.write_text(text + settings)
        return path

    return write


class Answers:
    """The reference in this process; the gates' own session has tests of its own."""

    def __init__(self, **arguments: Any) -> None:
        self.progress = arguments["progress"]

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""

    def expected(self, key: str, inputs: Tensors) -> Tensors:
        kernel = catalogue.kernel("moe_experts")
        copies = {name: tensor.clone() for name, tensor in inputs.items()}
        return {"out": experts_loop(**copies, **dict(kernel.constants))}


@pytest.fixture
def answers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the reference's own process, and most of the warm-up."""
    monkeypatch.setattr(session, "References", Answers)
    monkeypatch.setattr(session, "WARM_ROUNDS", 2)


def quiet(what: str, done: int, total: int) -> None:
    """Report nothing."""


@pytest.fixture
def ledger(folder: Path) -> Ledger:
    return Ledger(folder / "book" / "ledger")


@pytest.fixture
def settings() -> str:
    """The end of a candidate file; its last section is [bench]."""
    return SETTINGS


@pytest.fixture
def go(ledger: Ledger) -> Callable[..., RunReport]:
    """Run a candidate file against the test's ledger."""

    def go(path: Path, **options: Any) -> RunReport:
        return run_candidate(
            load_candidate_file(path), ledger, author="tester", progress=quiet, **options
        )

    return go


def fabricated(
    baseline: list[int], candidate: list[int], *, processes: int = 5, **changes: Any
) -> Measurement:
    """A well-formed measurement whose A/A run has no difference."""
    plan = {
        "regime": "warm",
        "rounds": len(baseline) + len(changes.get("discards", ())),
        "processes": processes,
        "calls_per_sample": 1,
        "margin": "0",
        "alpha": "0.05",
        "order_seed": 3,
    } | changes.pop("plan", {})
    discards = changes.pop("discards", ())
    dropped = {discard.round for discard in discards}
    order = flips(plan["order_seed"], len(baseline) + len(discards))
    fields = {
        "plan": TimingPlan(**plan),
        "timer": "test",
        "resolution_ns": 40,
        "baseline_ns": tuple(baseline),
        "candidate_ns": tuple(candidate),
        "order": "".join(side for i, side in enumerate(order) if i not in dropped),
        "process": tuple(i % processes for i in range(len(baseline))),
        "verified_outputs": 2 * (len(baseline) + len(discards)) * plan["calls_per_sample"],
        "discards": discards,
        "null_baseline_ns": tuple(10_000 + (-1) ** i for i in range(NULL_ROUNDS)),
        "null_candidate_ns": (10_000,) * NULL_ROUNDS,
        "null_order": flips(plan["order_seed"], NULL_ROUNDS, "null"),
    }
    return Measurement(**(fields | changes))


@pytest.fixture(scope="session")
def fabricate() -> Callable[..., Measurement]:
    """Makes a measurement from two lists of samples."""
    return fabricated
