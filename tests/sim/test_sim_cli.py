"""`bitgate sim run` as a user meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bitgate.records.errors import BitgateError, UsageError
from bitgate.sim.cli import app
from bitgate.sim.metrics import DEFINITIONS

PEAKS = """
device = "cpu"
name = "a declared CPU"
bytes_per_second = 10_000_000_000
bytes_source = "declared by a test"
flops_source = "declared by a test"
launch_ns = 1_000
launch_source = "declared by a test"
[flops_per_second]
bfloat16 = 50_000_000_000
"""


@pytest.fixture
def sim(tmp_path, monkeypatch):
    """Run the command in an empty directory, with declared peaks and few requests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peaks.toml").write_text(PEAKS)

    def run(*arguments: str):
        short = ["run", "--peaks", "peaks.toml", "--requests", "12", *arguments]
        return CliRunner().invoke(app, short, catch_exceptions=True)

    return run


def test_a_report_has_metrics_coverage_audit_and_notes(sim, tmp_path):
    done = sim("--out", "out")
    assert done.exit_code == 0, done.output
    for text in (
        "ttft",
        "output tok/s",
        "coverage: 0.0 % exact, 0.0 % interpolated, 0.0 % extrapolated, 100.0 % assumed of",
        "audit: passed: 12 requests served once, 0 refused",
        "note: nothing here was measured",
        "summary.json, requests.csv, steps.csv",
    ):
        assert text in done.output
    assert (tmp_path / "out" / "summary.json").is_file()


def test_json_is_the_summary(sim, tmp_path):
    done = sim("--json", "--out", "out", "--name", "mine", "--engine", "block_size=8")
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (found["name"], found["engine"]["block_size"]) == ("mine", 8)


def test_too_little_measured_time_fails_and_says_how_much_there_was(sim):
    assert sim("--min-exact", "0").exit_code == 0
    done = sim("--min-exact", "0.5")
    assert isinstance(done.exception, BitgateError)
    assert done.exception.exit_code == 1
    assert "expected at least 0.5" in str(done.exception)
    assert "audit: passed" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--min-exact", "2"), "expected a share from 0 to 1"),
        (("--min-exact", "half"), "expected a decimal string"),
        (("--prices", "best"), "expected standing or replaced, got 'best'"),
        (("--record",), "there is no ledger to append to"),
        (("--ledger", "nowhere"), "no ledger at nowhere"),
        (("--ledger", "."), "a directory without any row"),
        (("--engine", "max_num_seqs=1", "--max-num-seqs", "2"), "give it once"),
        (("--trace", "nowhere.csv"), "no such trace"),
        (("--model", "nowhere"), "expected a Hugging Face config.json"),
        (("--max-num-seqs", "4096"), "every running request needs a token"),
    ],
)
def test_what_cannot_be_done_says_so(sim, arguments, message):
    done = sim(*arguments)
    assert isinstance(done.exception, UsageError), done.output
    assert message in str(done.exception)


def test_it_is_recorded_in_the_ledger_that_is_there(sim, tmp_path):
    (tmp_path / "ledger").mkdir()
    done = sim("--record")
    assert done.exit_code == 0, done.output
    assert "recorded " in done.output
    assert len(list((tmp_path / "ledger").rglob("0001.jsonl"))) == 1


def test_definitions_are_those_of_the_summary(sim):
    assert json.loads(sim("--definitions", "--json").stdout) == dict(DEFINITIONS)
    shown = sim("--definitions").output
    assert all(name in shown for name in DEFINITIONS)


def test_mounting_the_group_imports_neither_numpy_nor_the_engine():
    code = (
        "import sys, bitgate.sim.cli;"
        "print([m for m in ('numpy', 'bitgate.sim.engine', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
