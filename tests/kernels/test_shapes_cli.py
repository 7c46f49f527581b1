"""`bitgate kernels config|shapes`: tiles with their origin, shapes with their sources."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bitgate.kernels.cli import app
from bitgate.records.errors import UsageError
from bitgate.records.models import names

ASKED = ("--experts", "128", "--intermediate", "768", "--tokens", "4096")
ON = ("--device-name", "NVIDIA_H200")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def facts(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke(*arguments, "--json").stdout)
    return found


def test_config_without_a_file_warns() -> None:
    found = facts("config", *ASKED, *ON)
    assert found["file_name"] == "E=128,N=768,device_name=NVIDIA_H200.json"
    assert found["tiles"]["BLOCK_SIZE_M"] == 128
    assert found["source"] == "default of vLLM 0.33.0, no file"
    assert found["without_dtype"] is None
    shown = " ".join(invoke("config", *ASKED, *ON).stdout.split())
    assert "warning: no E=128,N=768,device_name=NVIDIA_H200.json" in shown
    assert "0.836 ms" in shown


def test_config_finds_a_file_and_tells_what_a_wrong_lookup_does(tmp_path: Path) -> None:
    tiles = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    content = {"1024": tiles | {"num_warps": 8, "num_stages": 4}}
    fp8 = (*ASKED, *ON, "--dtype", "fp8_w8a8", "--block-shape", "128,64", "--folder", str(tmp_path))
    path = tmp_path / facts("config", *fp8)["file_name"]
    path.write_text(json.dumps(content))
    found = facts("config", *fp8)
    assert found["key"] == 1024
    assert found["tiles"]["BLOCK_SIZE_K"] == 64
    assert found["without_dtype"]["BLOCK_SIZE_M"] == 128
    shown = " ".join(invoke("config", *fp8).stdout.split())
    assert "a lookup that forgets the dtype launches with" in shown
    assert "BLOCK_SIZE_K 128 is launched as 64: block_shape [128, 64]" in shown
    old = facts("config", *ASKED, *ON, "--engine", "0.10.2", "--dtype", "fp8_w8a8")
    assert old["tiles"]["BLOCK_SIZE_K"] == 32


@pytest.mark.parametrize("text", ["128", "128,x", "128,128,128", "128,", "9" * 5000 + ",128"])
def test_config_refuses_what_is_no_block_shape(text: str) -> None:
    found = invoke("config", *ASKED, *ON, "--dtype", "fp8_w8a8", "--block-shape", text)
    assert isinstance(found.exception, UsageError)
    assert "two extents such as 128,128" in str(found.exception)


def test_shapes_lists_every_model() -> None:
    shown = invoke("shapes").stdout
    assert all(name in shown for name in names())
    listed = json.loads(invoke("shapes", "--json").stdout)
    assert [one["name"] for one in listed] == list(names())


def test_shapes_shows_a_rank_with_its_sources() -> None:
    found = facts("shapes", "Qwen3-235B-A22B@tp8")
    assert found["rank"] == {"experts": 128, "intermediate": 192}
    assert found["rest_of_128"] == {"hidden": 0, "intermediate": 64}
    assert found["first_overflow_tokens"] == 65_536
    assert facts("shapes", "Mixtral-8x7B@tp8")["first_overflow_tokens"] == 262_144
    assert "aiconfigurator" in found["source"]
    shown = invoke("shapes", "GLM-4.5-Air").stdout
    assert "nobody has looked it up" in shown
    assert "not read" in shown
    assert isinstance(invoke("shapes", "Qwen4").exception, UsageError)
