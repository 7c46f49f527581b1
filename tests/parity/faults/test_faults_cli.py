"""`bitgate parity faults`: the children, the page, and the exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bitgate.parity.cli import app as parity_app
from bitgate.parity.faults import cli
from bitgate.records.errors import EnvironmentUnfit, UsageError


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.add_typer(parity_app, name="parity")
    return CliRunner().invoke(app, ["parity", "faults", *map(str, arguments)])


def document(*problems: str) -> dict[str, Any]:
    fault = {
        "area": "config",
        "caught": ["published"],
        "host": "resolve",
        "id": "X1",
        "idle": [],
        "missed": [],
        "note": "",
        "problems": list(problems),
        "sources": ["planted"],
        "target": "tile config",
        "title": "one too many",
        "trigger": "three",
    }
    return {
        "passed": not problems,
        "faults": [fault],
        "controls": [],
        "open": [],
        "problems": list(problems),
    }


@pytest.mark.slow  # another Python with torch and Triton; the whole matrix is judged in this one
def test_an_area_is_judged_in_a_process_of_its_own() -> None:
    result = run("--area", "config", "--json")
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)
    assert found["passed"]
    assert [fault["id"] for fault in found["faults"]] == ["S4", "B23", "B36a"]
    assert {one["check"] for one in found["controls"]} == {"published", "legal", "promotion"}


def test_a_problem_fails_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = document("X1 in resolve: published is listed, and does not catch it (missed)")
    monkeypatch.setattr(cli, "_child", lambda areas: bad)
    result = run("--area", "config")
    assert result.exit_code == 1
    assert "! X1" in result.stdout
    assert "problem: X1 in resolve: published is listed" in result.stdout
    assert "failed: 1 of 1 faults caught, 1 problems" in result.stdout


def test_the_page_is_written_for_the_whole_catalogue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "_child", lambda areas: document())
    result = run("--write", tmp_path / "page.md")
    assert result.exit_code == 0, result.exception
    assert "| X1 | one too many | three | planted |" in (tmp_path / "page.md").read_text()
    refused = run("--write", tmp_path / "other.md", "--area", "config")
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "other.md").exists()


def test_a_document_with_a_problem_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "_child", lambda areas: document("X1 in resolve: it fails"))
    assert run("--write", tmp_path / "page.md").exit_code == 1
    assert not (tmp_path / "page.md").exists()


def test_an_unknown_area_is_named() -> None:
    error = run("--area", "nothing").exception
    assert isinstance(error, UsageError)
    assert "unknown areas ['nothing']; known: routing, align" in str(error)


def test_a_child_that_fails_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.sys, "executable", "/bin/false")
    error = run("--area", "config").exception
    assert isinstance(error, EnvironmentUnfit)
    assert "the process of config failed: it said nothing" in str(error)
