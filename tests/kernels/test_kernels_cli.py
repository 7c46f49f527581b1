"""`bitgate kernels`: lists, shows and probes, and says what it knows when a name is wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bitgate.kernels.catalogue import CONTRACTS, KERNELS
from bitgate.kernels.cli import app
from bitgate.kernels.compile_check import SignatureResult
from bitgate.kernels.spec import Contract
from bitgate.records.errors import EnvironmentUnfit, UsageError

NAMES = [one.name for kernel in KERNELS for one in kernel.implementations]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_list_names_every_implementation() -> None:
    plain = invoke("list")
    assert plain.exit_code == 0
    found = json.loads(invoke("list", "--json").stdout)
    assert [one["name"] for one in found] == NAMES
    assert all(name in plain.stdout for name in NAMES)


@pytest.mark.parametrize("op", [kernel.op for kernel in KERNELS])
def test_show_an_operator(op: str) -> None:
    facts = json.loads(invoke("show", op, "--json").stdout)
    assert facts["operator"] == op
    assert set(facts["implementations"]) <= set(NAMES)
    # A long workload stands on a line of its own.
    plain = " ".join(invoke("show", op).stdout.split())
    # Square brackets are no markup: they must reach the terminal.
    assert f"default: {op}[" in plain
    first = next(one for one in KERNELS if one.op == op).tensors[0]
    assert f"axes=[{first.axes[0]}" in plain


@pytest.mark.parametrize("name", NAMES)
def test_show_an_implementation(name: str) -> None:
    facts = json.loads(invoke("show", name, "--json").stdout)
    assert facts["name"] == name
    assert {"target", "contract", "batch_invariant", "cross_device"} <= set(facts)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda one: one.name)
def test_show_a_contract(contract: Contract) -> None:
    facts = json.loads(invoke("show", contract.name, "--json").stdout)
    assert facts["contract"] == contract.name
    assert "an order of arithmetic" in facts["is"]
    assert facts["summary"] == contract.summary
    for kernel in KERNELS:
        assert (kernel.op in facts["operators"]) == (contract.name in kernel.references)
    made = [one.name for kernel in KERNELS for one in kernel.implementations]
    assert set(facts["implementations"]) <= set(made)
    plain = invoke("show", contract.name)
    assert plain.exit_code == 0
    assert plain.stdout.count(f"{contract.name} is what ") == len(facts["operators"])


def test_show_an_unknown_name_lists_the_known_with_exit_code_two() -> None:
    error = invoke("show", "moe_export").exception
    assert isinstance(error, UsageError)
    assert error.exit_code == 2
    assert all(name in str(error) for name in (*NAMES, "moe_experts", "mhc-c1"))


def test_probe_answers_for_the_processor() -> None:
    answers = json.loads(invoke("probe", "--json").stdout)
    assert answers["torch:contraction"] == "separate"
    plain = invoke("probe", "--device", "cpu").stdout
    assert "torch:bf16-tie" in plain
    assert "nearest even" in plain


def test_probe_of_an_absent_device_never_answers_for_another() -> None:
    result = invoke("probe", "--device", "xpu")
    assert isinstance(result.exception, EnvironmentUnfit)
    assert "device xpu was asked for" in str(result.exception)
    assert not result.stdout


def result(outcome: str) -> SignatureResult:
    return SignatureResult(
        kernel=f"k-{outcome}", arch="sm_90", outcome=outcome, reason="fma [0 -> 12]"
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "fail", "inconclusive"], 1),
        (["pass", "inconclusive"], 3),
        ([], 3),
    ],
)
def test_compile_check_passes_only_if_all_pass(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str], code: int
) -> None:
    results = [result(outcome) for outcome in outcomes]
    monkeypatch.setattr("bitgate.kernels.compile_check.check", lambda arch: results)
    plain = invoke("compile-check", "--arch", "sm_90")
    assert plain.exit_code == code
    assert plain.stdout.count("fma [0 -> 12]") == len(outcomes)
    listed = invoke("compile-check", "--json")
    assert listed.exit_code == code
    assert [one["outcome"] for one in json.loads(listed.stdout)] == outcomes


def test_compile_check_update_says_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bitgate.kernels.compile_check.update", lambda arch: tmp_path / arch)
    written = json.loads(invoke("compile-check", "--update", "--json").stdout)
    assert written == {"arch": "sm_90", "written": str(tmp_path / "sm_90")}


def test_compile_check_of_an_unknown_architecture() -> None:
    error = invoke("compile-check", "--arch", "sm_12").exception
    assert isinstance(error, UsageError)
    assert "sm_90" in str(error)
