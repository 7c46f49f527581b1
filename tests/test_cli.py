"""The command line as a user meets it: what goes wrong says what to do, with its exit code."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bitgate import cli

CANDIDATE = """
[candidate]
name = "mine"
op = "moe_experts"
contract = "moe-torch/1"
tier = "native"
device = "{device}"
impl = "mine:run"

[workloads]
suite = "demo"
"""


def bitgate(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-m", "bitgate", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def candidate_file(folder: Path, device: str = "cpu") -> Path:
    (folder / "mine.py").write_text("def run(**arguments):\n    return arguments['x']\n")
    path = folder / "mine.toml"
    path.write_text(CANDIDATE.format(device=device))
    return path


def without(folder: Path, package: str) -> Path:
    """A directory that hides an installed package."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(
        f"raise ModuleNotFoundError(\"No module named '{package}'\", name={package!r})\n"
    )
    return folder


def test_help_lists_the_commands_without_torch(tmp_path):
    result = bitgate("--help", path=without(tmp_path / "hidden", "torch"))
    assert result.returncode == 0, result.stderr
    for command in ("doctor", "demo", "capture", "run", "parity", "gate", "records", "kernels"):
        assert command in result.stdout


def commands(group: Any, path: str = "bitgate") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_explains_itself_and_speaks_json():
    known = dict(commands(typer.main.get_command(cli.app)))
    assert len(known) > 20
    for path, command in known.items():
        assert command.help, path
        # The schema is JSON already.
        speaks = any("--json" in option.opts for option in command.params)
        assert speaks or path == "bitgate records schema", path


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("kernels", "list"),
        ("kernels", "show", "mhc_pre"),
        ("kernels", "show", "mhc-c1"),
        ("kernels", "probe"),
        ("gate", "list"),
        ("gate", "size", "--max-p", "0.1"),
        ("new", "candidate", "--out", "{folder}/mine.toml"),
        ("run", "{folder}/mine.toml", "--plan", "--ledger", "{folder}/book"),
        ("records", "list", "--ledger", "{folder}"),
        ("records", "head", "--ledger", "{folder}"),
        ("records", "report", "--ledger", "{folder}", "--out", "{folder}/report.html"),
    ],
    ids=" ".join,
)
def test_json_is_one_document_in_one_style(tmp_path, arguments):
    if arguments[0] == "run":
        candidate_file(tmp_path)
    result = CliRunner().invoke(
        cli.app, [*(word.format(folder=tmp_path) for word in arguments), "--json"]
    )
    document = json.loads(result.stdout)
    assert result.stdout == json.dumps(document, indent=2, sort_keys=True) + "\n"


def test_torch_missing_names_the_package_and_what_to_install(tmp_path):
    hidden = without(tmp_path / "hidden", "torch")
    result = bitgate("run", candidate_file(tmp_path), path=hidden)
    assert result.returncode == 4
    assert "needs torch" in result.stderr
    assert "pip install" in result.stderr


def test_doctor_reports_a_missing_torch_instead_of_failing(tmp_path):
    result = bitgate("doctor", "--json", path=without(tmp_path / "hidden", "torch"))
    findings = json.loads(result.stdout)["findings"]
    assert any(one["area"] == "device" and one["status"] == "unfit" for one in findings)
    assert result.returncode == 4


def test_doctor_finds_this_machine_fit():
    result = bitgate("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["fit"] is True
    assert result.returncode == 0
    devices = {one["name"]: one["status"] for one in report["findings"] if one["area"] == "device"}
    assert devices["cpu"] == "ok"
    assert set(devices) == {"cpu", "cuda", "xpu"}


def test_triton_missing_is_said_by_what_needs_it(tmp_path):
    hidden = without(tmp_path / "hidden", "triton")
    result = bitgate("kernels", "compile-check", "--arch", "sm_90", path=hidden)
    assert result.returncode == 4
    assert "triton" in result.stderr.lower()


def test_an_absent_device_is_refused(tmp_path):
    result = bitgate("run", candidate_file(tmp_path, device="cuda"), "--ledger", tmp_path / "book")
    assert result.returncode == 4
    assert "cuda" in result.stderr
    assert not (tmp_path / "book").exists() or not any((tmp_path / "book").rglob("*.jsonl"))


def test_a_missing_model_directory_is_named(tmp_path):
    (tmp_path / "prompts.txt").write_text("We hold these truths\n")
    arguments = ("--model", tmp_path / "absent", "--prompts", tmp_path / "prompts.txt")
    result = bitgate("capture", *arguments, "--out", tmp_path / "bundle")
    assert result.returncode == 2
    assert str(tmp_path / "absent") in result.stderr


def test_an_unknown_kernel_lists_the_known_ones():
    result = bitgate("kernels", "show", "mhc_pree")
    assert result.returncode == 2
    assert "mhc_pre" in result.stderr
    assert "moe_experts" in result.stderr


def test_a_malformed_candidate_file_is_named_with_line_and_key(tmp_path):
    path = candidate_file(tmp_path)
    path.write_text(path.read_text() + "\n[gates]\ncasess = 40\n")
    result = bitgate("run", path)
    assert result.returncode == 2
    assert f"{path}:{len(path.read_text().splitlines())}" in result.stderr.replace("\n", "")
    assert "casess" in result.stderr


def test_an_absent_ledger_is_not_a_verified_one(tmp_path):
    result = bitgate("records", "verify", "--ledger", tmp_path / "absent")
    assert result.returncode == 2
    assert "absent" in result.stderr


def test_a_full_disk_is_one_clear_message(monkeypatch, capsys):
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out/ledger/0001.jsonl")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "no room left" in capsys.readouterr().err


def test_a_defect_of_ours_is_not_swallowed(monkeypatch):
    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(OSError, match="Input/output"):
        cli.main()


def test_a_misspelt_function_leaves_no_record(tmp_path):
    path = candidate_file(tmp_path)
    path.write_text(path.read_text().replace("mine:run", "mine:runn"))
    result = bitgate("run", path, "--ledger", tmp_path / "book")
    assert result.returncode == 2
    assert "did you mean run" in result.stderr
    assert not (tmp_path / "book").exists()
    planned = bitgate("run", path, "--plan", "--ledger", tmp_path / "book")
    assert planned.returncode == 2
    assert "'runn'" in planned.stdout
