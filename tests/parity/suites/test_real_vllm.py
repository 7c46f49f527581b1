"""The suite with vLLM 0.32.0 itself, in processes of its own: one has its GPU build, one its CPU's.

Measured: the eight cases in the interpreter took 40 s on two idle cores and 175 s on two busy ones.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

RUN = "from bitgate.cli import main; main()"
SUITE = ["parity", "run", "--suite", "vllm-moe", "--device", "cpu", "--json"]
# What the tests with a stand-in find by constants, the kernels must find by numbers.
FAULT = """
import json
from dataclasses import replace
from bitgate.parity.suites.cases import cases
from bitgate.parity.suites.composition import compose_as, wiring_of
from bitgate.parity.suites.judge import judge
from bitgate.parity.suites.vllm_engine import open_engine

def one_block_shape(engine, inputs, workspace):
    right = wiring_of(engine, inputs)
    wrong = replace(right, block_shapes=(right.block_shapes[0], None))
    return compose_as(engine, inputs, workspace, wrong)

def half(engine, inputs, workspace):
    wrong = replace(wiring_of(engine, inputs), compute_type="float16")
    return compose_as(engine, inputs, workspace, wrong)

fp8 = next(case for case in cases(full=False) if case.block_shape)
plain = next(case for case in cases(full=False) if case.rank == 1)
with open_engine("cpu", None) as engine:
    found = [judge(engine, fp8, one_block_shape), judge(engine, plain, half)]
print(json.dumps([one.plain for one in found]))
"""


def child(*arguments: str, kernels: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    # Tiles are too small for threads that wait for each other.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    if kernels:
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": str(Path(sys.prefix) / "kernels"),
        }
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def document(output: str) -> Any:
    """The JSON after whatever vLLM prints first."""
    return json.loads(output[min(output.index(sign) for sign in "{[" if sign in output) :])


def test_every_case_is_equal_with_its_triton_kernels(tmp_path):
    path = tmp_path / "suite.json"
    ended = child(RUN, *SUITE, "--out", str(path), kernels=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (result["verdict"], result["engine"]) == ("passed", "vLLM 0.32.0")
    assert len(result["substitutes"]) == 4
    cases = {case["name"]: case for case in result["cases"]}
    assert len(cases) == 8
    assert {case["status"] for case in cases.values()} == {"equal"}
    for launch in cases["fp8-block-128x64"]["tiles"]:
        assert (launch["BLOCK_SIZE_K"], launch["block_shape"]) == (64, "[128, 64]")
        assert launch["use_fp8_w8a8"]


def test_faults_change_the_numbers_of_its_kernels():
    ended = child(FAULT, kernels=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    fp8, half = document(ended.stdout)
    for case, first, product in (
        (fp8, "weighted, launch", "weighted"),
        (half, "gate_up, launch", "gate_up"),
    ):
        assert case["first_difference"] == first
        differing = {one["boundary"] for one in case["boundaries"] if one["difference"]}
        assert {product, "out"} <= differing


def test_its_cpu_build_is_held_to_the_bound():
    ended = child(RUN, *SUITE, kernels=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = document(ended.stdout)
    assert (result["verdict"], result["path"]) == ("passed", "cpu_fused_moe, vec")
    assert {case["status"] for case in result["cases"]} == {"within bound"}
    assert all("bounded" in case["claim"] for case in result["cases"])
