"""The command `bitgate bench tune`: its grid, what it refuses, and one run that writes a file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bitgate.bench import tune_cli
from bitgate.bench.cli import app
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.configs import read, tile_config
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.records.errors import UsageError

SMALL = ("--tokens", "1", "--shape", "experts=4,hidden=96,intermediate=32,top_k=2")
FP8 = "block_k=128,block_n=128,experts=4,hidden=128,intermediate=128,top_k=2"


def test_a_grid_leaves_the_default_out() -> None:
    found = tune_cli.configs("block_m=16,32 num_warps=4,8")
    assert len(found) == 3
    assert DEFAULT_CONFIG not in found
    assert len(tune_cli.configs(tune_cli.GRID)) == 23


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block=16", "expected fields of block_m"),
        ("block_m=", "got 'block_m='"),
        ("block_m=16 block_m=32", "each once"),
        ("block_m=24", "power of two"),
        ("block_m=" + "9" * 5000, "each once with numbers"),
        ("block_m=\u0663\u0662", "each once with numbers"),
        ("block_m=16", "others than the default"),
        ("", "others than the default"),
    ],
)
def test_a_grid_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune_cli.configs(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "1,1", "--model", "Qwen3-30B-A3B"), "--tokens: expected different numbers"),
        (("--tokens", "0", "--model", "Qwen3-30B-A3B"), "--tokens"),
        (("--tokens", "01,1", "--model", "Qwen3-30B-A3B"), "--tokens: expected different numbers"),
        (("--tokens", "9" * 5000, "--model", "Qwen3-30B-A3B"), "--tokens: expected different"),
        (("--tokens", "1"), "either --model or --shape"),
        (("--tokens", "1", "--shape", "experts=4,experts=8"), "each once, such as experts=8"),
        (("--tokens", "1", "--shape", "experts=4,tokens=8"), "got 'tokens=8'"),
        (("--tokens", "1", "--shape", "experts=" + "9" * 5000), "expected axes other than tokens"),
        ((*SMALL, "--alpha", "nan"), "--alpha: Plan.alpha: expected a decimal"),
        ((*SMALL, "--margin", "x"), "--alpha: Plan.margin: expected a decimal"),
        ((*SMALL, "--rounds", "0"), "rounds and processes are positive"),
        ((*SMALL, "--report", "nowhere/report.json"), "expected a folder that exists"),
        (
            ("--tokens", "1", "--shape", FP8, "--implementation", "experts_fp8_triton"),
            "moe_experts_fp8: no error bound is known, so its tiles cannot be judged",
        ),
        (("--tokens", "1", "--shape", "experts"), "such as experts=8,hidden=64"),
        (("--tokens", "1", "--shape", "experts=4"), "hidden"),
        (("--tokens", "1", "--model", "Qwen3-30B-A3B@ep3"), "cannot be divided"),
        (
            ("--tokens", "1", "--model", "Qwen3-30B-A3B", "--implementation", "moe_gemm-triton"),
            "name those of moe_gemm with --shape",
        ),
    ],
)
def test_the_command_refuses(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    found = CliRunner().invoke(app, ["tune", "--out", str(tmp_path), *arguments])
    assert isinstance(found.exception, UsageError)
    assert message in str(found.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # three processes and a hundred calls in Triton's interpreter: minutes
def test_the_command_times_and_writes(tmp_path: Path) -> None:
    arguments = [
        "--shape",
        "experts=4,hidden=96,intermediate=32,top_k=2",
        "--tokens",
        "2",
        "--out",
        str(tmp_path),
        "--json",
    ]
    effort = ["--rounds", "4", "--processes", "1", "--samples", "1", "--grid", "block_n=32"]
    found = CliRunner().invoke(app, ["tune", *arguments, *effort])
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    (tried,) = facts["tried"]
    narrow = TileConfig(block_n=32)
    assert tried["rejected"] is None
    assert min(tried["candidate_ns"]) > 0
    assert tile_config(tiles.at(read(Path(facts["file"])), 2)) in {narrow, DEFAULT_CONFIG}
