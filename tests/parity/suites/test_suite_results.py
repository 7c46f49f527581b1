"""What a suite concludes and how it ends; nothing passes that was not compared."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bitgate.parity.cli import app
from bitgate.parity.suites import catalogue
from bitgate.parity.suites.cases import NAME
from bitgate.parity.suites.results import CaseResult, Checked, SuiteResult
from bitgate.records.errors import UsageError

EQUAL = Checked(boundary="out", compared=8)
CASE = CaseResult(
    name="one",
    asks="?",
    status="equal",
    claim="bitwise",
    sides=("ours", "theirs"),
    shapes={"tokens": 2},
    tiles=({"BLOCK_SIZE_K": 64},),
    checked=(EQUAL,),
)
DIFFERS = replace(
    CASE,
    status="differs",
    checked=(
        Checked(boundary="gate_up", compared=8, difference="1 of 8", max_ulp=-3),
        Checked(boundary="out", compared=8, difference="2 of 8", max_ulp=1),
    ),
)
SKIPPED = replace(CASE, status="skipped", checked=(), reason="no such GPU")


def of(*cases: CaseResult) -> SuiteResult:
    return SuiteResult(
        suite="vllm-moe", device="cpu", path="p", engine="vLLM 0", cases=cases, facts={"a": "b"}
    )


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ((CASE,), "passed"),
        ((CASE, replace(CASE, status="within bound")), "passed"),
        ((), "inconclusive"),
        ((CASE, SKIPPED), "inconclusive"),
        ((SKIPPED,), "inconclusive"),
        ((replace(CASE, checked=()),), "inconclusive"),
        ((replace(CASE, checked=(replace(EQUAL, compared=0),)),), "inconclusive"),
        ((CASE, DIFFERS), "differs"),
        ((SKIPPED, DIFFERS), "differs"),
        ((replace(DIFFERS, status="outside bound"),), "differs"),
    ],
)
def test_the_verdict(cases, verdict):
    assert of(*cases).verdict == verdict
    assert of(*cases).plain["verdict"] == verdict


def test_the_first_difference_and_the_largest_distance_are_told():
    told = of(DIFFERS).plain["cases"][0]
    assert (told["first_difference"], told["max_ulp"]) == ("gate_up", 3)
    assert told["compared_elements"] == 16
    assert of(CASE).plain["cases"][0]["first_difference"] is None


@pytest.fixture
def ends_with(monkeypatch):
    """Makes the suite end with a result, whatever vLLM there is."""

    def give(result: SuiteResult) -> None:
        monkeypatch.setitem(catalogue.SUITES, NAME, lambda *_: result)

    return give


def call(*options: str):
    return CliRunner().invoke(app, ["run", "--suite", "vllm-moe", *options])


@pytest.mark.parametrize(("cases", "code"), [((CASE,), 0), ((DIFFERS,), 1), ((CASE, SKIPPED), 3)])
def test_the_exit_code(ends_with, cases, code):
    ends_with(of(*cases))
    shown = call()
    assert shown.exit_code == code
    assert shown.stdout.splitlines()[-1].startswith("verdict: ")


def test_a_reader_sees_what_was_compared(ends_with):
    ends_with(of(CASE, DIFFERS, SKIPPED))
    shown = " ".join(call().stdout.split())
    for told in ("gate_up: 1 of 8", "no such GPU", "BLOCK_SIZE_K 64", "claim: bitwise", "tokens 2"):
        assert told in shown


def test_json_and_the_file_hold_the_same(ends_with, tmp_path):
    ends_with(of(CASE))
    path = tmp_path / "suite.json"
    shown = call("--json", "--out", str(path))
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(shown.stdout)["schema"] == "bitgate-suite/1"


def test_a_file_that_is_there_is_kept_and_nothing_runs(ends_with, tmp_path):
    ends_with(of(CASE))
    path = tmp_path / "suite.json"
    path.write_text("mine", encoding="utf-8")
    for place in (path, tmp_path / "nowhere" / "suite.json"):
        assert isinstance(call("--out", str(place)).exception, UsageError)
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--suite", "vllm-mhc"]])
def test_an_unknown_suite_or_device_is_told_what_there_is(options):
    shown = call(*options)
    assert isinstance(shown.exception, UsageError)
    assert "expected --suite of vllm-moe and --device of cuda, xpu, cpu" in str(shown.exception)
