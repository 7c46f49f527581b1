"""A quantiser to float8 through every gate that runs, in real processes."""

import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bitgate.cli import app
from bitgate.kernels.moe.quant import MOE_QUANT
from bitgate.kernels.moe.quant_reference import moe_quant
from bitgate.parity.capture import Declared, Origin, Plan, capture, tap
from bitgate.records.types import Workload

pytestmark = pytest.mark.slow  # interpreted kernels in fresh processes take a minute

RECIPROCAL = """
    from bitgate.kernels.moe.quant_reference import moe_quant

    def run(**arguments):
        return moe_quant(**arguments | {"rounding": "reciprocal"})
"""
TRITON = "bitgate.kernels.moe.quant_triton:moe_quant"


@pytest.fixture
def bundle(tmp_path: Path, toy_origin: Origin) -> Path:
    """Two calls of the quantiser as a model would make them."""
    constants = dict(MOE_QUANT.constants)
    declared = Declared(
        name="quant", op="moe_quant", contract="moe-fp8/1", constants=constants, closed=True
    )
    out = tmp_path / "bundle"
    with capture(Plan(boundaries=(declared,), origin=toy_origin), out) as session:
        for token, case in enumerate(("random", "edges")):
            axes = (("group", 128), ("k", 320), ("rows", 3))
            workload = Workload(op="moe_quant", axes=axes, dtype="bfloat16", case=case)
            inputs = MOE_QUANT.make_inputs(workload, 0)
            outputs = MOE_QUANT.named_outputs(moe_quant(**inputs, **constants))
            phase = "decode" if token else "prefill"
            with session.step(request=0, token=token, phase=phase):
                tap("quant", inputs, out=outputs)
    return out


def verdict(folder: Path, bundle: Path, impl: str, rows: int = 3) -> dict[str, object]:
    path = folder / "candidate.toml"
    path.write_text(
        textwrap.dedent(f"""
        [candidate]
        name = "quant"
        op = "moe_quant"
        contract = "moe-fp8/1"
        tier = "canonical"
        device = "cpu"
        impl = "{impl}"

        [workloads]
        bundle = "{bundle}"
        dtype = "bfloat16"
        shapes = [{{ group = 128, k = 320, rows = {rows} }}]
        cases = ["random", "edges"]

        [gates]
        cases = 4
        processes = 2
        """)
    )
    arguments = ["gate", "run", str(path), "--evidence", str(folder / "evidence"), "--json"]
    return json.loads(CliRunner().invoke(app, arguments).stdout)


def test_the_triton_quantiser_is_exact(tmp_path: Path, bundle: Path) -> None:
    found = verdict(tmp_path, bundle, TRITON)
    outcomes = {one["gate"]: one["outcome"] for one in found["results"]}
    assert found["kind"] == "exact", found["results"]
    assert all(outcomes[gate] == "pass" for gate in ("G0", "G2", "G4", "G9", "G12"))


def test_a_reciprocal_instead_of_a_division_fails(tmp_path: Path, bundle: Path) -> None:
    """On integers beside 448 it has the same bits: other data must tell."""
    (tmp_path / "planted.py").write_text(textwrap.dedent(RECIPROCAL))
    found = verdict(tmp_path, bundle, "planted:run", rows=64)
    failed = next(one for one in found["results"] if one["outcome"] == "fail")
    assert (found["kind"], failed["gate"]) == ("deterministic-mismatch", "G4")
    assert "codes[" in failed["reason"]
