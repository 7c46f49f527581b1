import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from bitgate.parity import cli
from bitgate.records.errors import EnvironmentUnfit, UsageError

Toy = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command("capture")(cli.capture_command)
    app.add_typer(cli.app, name="parity")
    return CliRunner().invoke(app, [str(item) for item in arguments])


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    out = tmp_path_factory.mktemp("cli") / "bundle"
    result = run("capture", "--tiny", "deepseek-v4", "--tokens", 2, "--keep", 1, "--out", out)
    assert result.exception is None, result.exception
    assert "frames captured" in result.stdout
    return out


def test_capture_writes_a_bundle_that_inspect_shows(captured: Path) -> None:
    shown = run("parity", "inspect", captured, "--limit", 2).stdout
    assert "attn_hc/L0/c0/prefill/r0" in shown
    assert "mhc-torch/1" in shown
    assert "124 more frames; --limit 0 shows all" in shown
    only = json.loads(run("parity", "inspect", captured, "--boundary", "hc_head", "--json").stdout)
    assert [frame["boundary"].split("/")[0] for frame in only["frames"]] == ["hc_head"] * 6
    assert [frame["kept"] for frame in only["frames"]] == [False] * 5 + [True]
    assert only["manifest"]["selection"] == [["keep_steps", "1"]]
    assert only["frames_captured"] == 126


def test_a_checkpoint_of_ones_own_works_the_same_way(tmp_path: Path) -> None:
    from bitgate.parity.tiny import build, tiny

    build(tiny("qwen3-moe"), tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("We hold these truths\n")
    arguments = ("--model", tmp_path / "model", "--prompts", tmp_path / "prompts.txt")
    result = run(
        "capture", *arguments, "--tokens", 2, "--keep-all", "--json", "--out", tmp_path / "b"
    )
    facts = json.loads(result.stdout)
    assert (facts["model"], facts["requests"], facts["steps"]) == ("model", 1, 2)
    assert facts["steps_with_tensors"] == 2
    again = run("capture", *arguments, "--tokens", 2, "--keep-all", "--out", tmp_path / "b")
    assert isinstance(again.exception, UsageError)


def test_compare_says_which_by_its_exit_code(toy: Toy, tmp_path: Path) -> None:
    def change(name: str, step: int, out: dict[str, torch.Tensor]) -> None:
        if (name, step) == ("scale0", 1):
            out["y"][0, 1] = 7

    one = toy(tmp_path / "one")
    same, other = toy(tmp_path / "same"), toy(tmp_path / "other", change=change)
    foreign = toy(tmp_path / "foreign", weights="f")

    equal = run("parity", "compare", one, same)
    assert equal.exit_code == 0
    assert "equal: 27 tensors of 9 frames are equal" in equal.stdout

    differs = run("parity", "compare", one, other)
    assert differs.exit_code == 1
    plain = " ".join(differs.stdout.split())
    assert "first culprit of rank 0: scale/L0/c0/decode/r0 at request 0, token 1" in plain
    assert "expected 0x4110, got 0x40e0" in plain
    assert f"again: bitgate parity compare {one}" in plain

    machine = json.loads(run("parity", "compare", one, other, "--json").stdout)
    assert machine["verdict"] == "differs"
    assert machine["frames"] == {"equal": 6, "culprit": 1, "victim": 2}
    assert machine["first_by_rank"]["0"]["differences"][0]["mismatch"]["first_index"] == [0, 1]
    assert len(machine["unequal"]) == 3

    refused = run("parity", "compare", one, foreign)
    assert refused.exit_code == 3
    assert "weights_sha256" in refused.stdout


def test_a_broken_bundle_is_inconclusive_and_names_the_file(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "layout.jsonl").write_bytes((copy / "layout.jsonl").read_bytes()[:-9])
    for arguments in (("compare", folder, copy), ("inspect", copy)):
        error = run("parity", *arguments).exception
        assert getattr(error, "exit_code", None) == 3
        assert f"{copy}/layout.jsonl: truncated" in str(error)


def test_a_path_without_a_bundle_is_a_usage_error(toy: Toy, tmp_path: Path) -> None:
    folder, absent = toy(tmp_path / "b"), tmp_path / "absent"
    seal = folder / "COMPLETE"
    for arguments, missing in (
        (("inspect", absent), absent),
        (("inspect", seal), seal),
        (("compare", folder, absent), absent),
        (("compare", absent, folder), absent),
    ):
        error = run("parity", *arguments).exception
        assert getattr(error, "exit_code", None) == 2, arguments
        assert f"{missing}: expected a bundle directory" in str(error)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((), UsageError, "name either a tiny model"),
        (("--tiny", "deepseek-v4", "--model", "x"), UsageError, "name either a tiny model"),
        (("--model", "x"), UsageError, "--model needs --prompts"),
        (("--tiny", "llama"), UsageError, "known: deepseek-v4, qwen3-moe"),
        (("--tiny", "deepseek-v4", "--prompts", "none.txt"), UsageError, "none.txt"),
        (("--tiny", "deepseek-v4", "--device", "tpu"), UsageError, "unknown device 'tpu'"),
        (("--tiny", "deepseek-v4", "--device", "xpu"), EnvironmentUnfit, "device xpu"),
        (("--tiny", "deepseek-v4", "--tokens", "0"), UsageError, "tokens"),
    ],
)
def test_wrong_arguments_are_explained(
    tmp_path: Path, arguments: tuple[str, ...], kind: type, message: str
) -> None:
    error = run("capture", *arguments, "--out", tmp_path / "b").exception
    assert isinstance(error, kind)
    assert message in str(error)
    assert not list(tmp_path.iterdir())
