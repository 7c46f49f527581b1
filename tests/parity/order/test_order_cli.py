"""`bitgate parity order` over bundles and files, and its exit codes."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from bitgate.parity import cli
from bitgate.parity.order.calls import read_calls, save_call
from bitgate.parity.order.catalogue import orders_of
from bitgate.records.errors import UsageError


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command("capture")(cli.capture_command)
    app.add_typer(cli.app, name="parity")
    return CliRunner().invoke(app, [str(item) for item in arguments])


@pytest.fixture
def saved(tools, inputs, tmp_path) -> Callable[..., Path]:
    """A file of the first call of an operator, as its first named order computes it."""

    def save(op: str, **changed: torch.Tensor) -> Path:
        orders, path = orders_of(op), tmp_path / f"{op}{len(changed)}.safetensors"
        call = tools.calls(orders, orders.named[0][1], inputs(op))[0]
        save_call(path, op, call.constants, {**call.inputs, **call.observed, **changed})
        return path

    return save


def test_a_file_is_identified_in_text_and_json(saved) -> None:
    path = saved("mhc_post")
    shown = run("parity", "order", path)
    assert shown.exit_code == 0, shown.exception
    assert "one order of the catalogue reproduces the bits" in shown.stdout
    assert "among them: mhc-c1" in shown.stdout
    assert "the layer's output first, streams ascending" in shown.stdout
    (facts,) = json.loads(run("parity", "order", path, "--json").stdout)
    assert facts["verdict"] == "one"
    assert facts["reproducing"] == [{"post product": "split", "terms": "x-first"}]
    assert facts["elements_compared"] == 6400
    assert facts["nearest"][0]["differing"] > 0


def test_several_are_told_as_such(saved) -> None:
    path = saved("moe_combine")
    shown = run("parity", "order", path)
    assert shown.exit_code == 0
    assert "several orders reproduce the bits: this input does not tell them apart" in shown.stdout
    assert "any of 2: fp32-slots, torch-sum" in shown.stdout
    assert "the fewer distinct results" in shown.stdout.replace("\n", " ")


def test_an_order_that_nobody_knows_ends_with_1(saved) -> None:
    path = saved("moe_combine", out=torch.zeros(64, 64, dtype=torch.bfloat16))
    shown = run("parity", "order", path)
    assert shown.exit_code == 1
    assert "no order of the catalogue reproduces the bits" in shown.stdout
    assert shown.stdout.count("nearest: out: ") == 3
    facts = json.loads(run("parity", "order", path, "--json").stdout)
    assert [one["verdict"] for one in facts] == ["none"]
    # One that is known beside it changes nothing.
    assert run("parity", "order", path, saved("mhc_post")).exit_code == 1


def test_nothing_to_compare_ends_with_3(tmp_path) -> None:
    path = tmp_path / "empty.safetensors"
    tensors = {"y": torch.zeros(0, 2, 4).bfloat16(), "topk_ids": torch.zeros(0, 2).long()}
    save_call(path, "moe_combine", {"experts": 4}, tensors | {"out": torch.zeros(0, 4).bfloat16()})
    shown = run("parity", "order", path)
    assert shown.exit_code == 3
    assert "nothing was compared" in shown.stdout


def test_two_files_of_one_operator_are_two_calls(tools, inputs, tmp_path) -> None:
    orders, paths = orders_of("moe_gemm"), []
    for call in tools.calls(orders, orders.named[0][1], inputs("moe_gemm")):
        paths.append(tmp_path / f"{call.label}.safetensors")
        save_call(paths[-1], "moe_gemm", call.constants, {**call.inputs, **call.observed})
    (facts,) = json.loads(run("parity", "order", *paths, "--json").stdout)
    assert (facts["calls"], facts["verdict"], facts["named"]) == (2, "several", ["moe-bf16/1"])
    (one,) = json.loads(run("parity", "order", *paths, "--calls", 1, "--json").stdout)
    assert one["calls"] == 1
    assert "1 of 2 calls" in run("parity", "order", *paths, "--calls", 1).stdout


def test_constants_of_a_file_come_back(saved) -> None:
    path = saved("moe_act")
    (call,) = read_calls([path], None)["moe_act"]
    assert call.constants["swiglu_limit"] == inf
    assert (set(call.inputs), set(call.observed)) == ({"gate_up"}, {"out"})


def test_what_is_no_call_is_refused(saved, tmp_path) -> None:
    text = tmp_path / "text"
    text.write_text("no tensors")
    plain, broken = tmp_path / "plain.safetensors", tmp_path / "broken.safetensors"
    save_file({"x": torch.zeros(1)}, plain)
    save_file({"y": torch.zeros(1)}, broken, {"op": "moe_act", "constants": "{"})
    known = saved("mhc_post")
    for arguments, message in (
        ((tmp_path / "nowhere",), "expected a bundle's directory or a safetensors file"),
        ((text,), "expected a safetensors file, got"),
        ((plain,), "no orders are known for ''"),
        ((broken,), "expected constants as JSON"),
        ((known, "--op", "moe_gemm"), "expected kept calls of moe_gemm, got mhc_post"),
        ((known, "--op", "moe_route"), "no orders are known for 'moe_route'"),
        ((known, "--tokens", 0), "expected --calls of 0 or more and --tokens of 1 or more"),
    ):
        result = run("parity", "order", *arguments)
        assert isinstance(result.exception, UsageError), arguments
        assert message in str(result.exception)
    with pytest.raises(UsageError, match="no orders are known for 'moe_route'"):
        save_call(tmp_path / "other", "moe_route", {}, {})


@pytest.mark.slow  # Captures a model.
def test_the_experts_of_a_captured_model_add_as_moe_torch_1_says(tmp_path) -> None:
    out = tmp_path / "bundle"
    done = run("capture", "--tiny", "qwen3-moe", "--tokens", 2, "--out", out)
    assert done.exception is None, done.exception
    (facts,) = json.loads(run("parity", "order", out, "--json").stdout)
    assert facts["verdict"] == "several"
    assert facts["named"] == ["moe-torch/1"]
    assert facts["possible"]["gate_up"] == ["bf16"]
    assert facts["possible"]["activation"] == ["bf16-between"]
    assert facts["calls"] > 5
    refused = run("parity", "order", out, "--op", "mhc_pre")
    assert "expected kept calls of mhc_pre, got moe_experts" in str(refused.exception)
    assert run("parity", "order", out, "--boundary", "experts/L1", "--tokens", 1).exit_code == 0
