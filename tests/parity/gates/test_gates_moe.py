"""The Triton experts through every gate that runs, in real processes, on a model's own tensors."""

import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bitgate.cli import app

pytestmark = pytest.mark.slow  # interpreted kernels in fresh processes take minutes

SEED_DEFECT = """
    from dataclasses import replace

    from bitgate.kernels.moe import staged_triton

    def act(*, gate_up, swiglu_limit):
        return gate_up.chunk(2, dim=1)[0].contiguous()

    def combine(*, y, topk_ids, experts):
        return y[:, 0].contiguous()

    staged_triton.TRITON = replace(staged_triton.TRITON, act=act, combine=combine)
    run = staged_triton.experts_triton
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("capture") / "bundle"
    arguments = ["capture", "--tiny", "qwen3-moe", "--tokens", "2", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return out


def verdict(folder: Path, bundle: Path, impl: str) -> dict[str, object]:
    path = folder / "candidate.toml"
    path.write_text(
        textwrap.dedent(f"""
        [candidate]
        name = "experts-triton"
        op = "moe_experts"
        contract = "moe-bf16/1"
        tier = "native"
        device = "cpu"
        impl = "{impl}"

        [workloads]
        bundle = "{bundle}"
        dtype = "bfloat16"
        shapes = [{{ experts = 4, hidden = 40, intermediate = 24, tokens = 3, top_k = 2 }}]
        cases = ["random", "padding"]

        [gates]
        cases = 4
        processes = 2
        """)
    )
    arguments = ["gate", "run", str(path), "--evidence", str(folder / "evidence"), "--json"]
    return json.loads(CliRunner().invoke(app, arguments).stdout)


def test_the_triton_experts_are_exact(tmp_path: Path, bundle: Path) -> None:
    found = verdict(tmp_path, bundle, "bitgate.kernels.moe.staged_triton:experts_triton")
    outcomes = {one["gate"]: one["outcome"] for one in found["results"]}
    assert found["kind"] == "exact"
    assert all(outcomes[gate] == "pass" for gate in ("G0", "G2", "G4", "G9", "G12"))


def test_the_gate_half_unactivated_and_unreduced_fails_on_integers(
    tmp_path: Path, bundle: Path
) -> None:
    (tmp_path / "planted.py").write_text(textwrap.dedent(SEED_DEFECT))
    found = verdict(tmp_path, bundle, "planted:run")
    failed = next(one for one in found["results"] if one["outcome"] == "fail")
    assert (found["kind"], failed["gate"]) == ("deterministic-mismatch", "G2")
    assert "moe_experts#integer/small: out[" in failed["reason"]
