"""Probes: each answer for planted outputs, and what this processor answers."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bitgate.kernels import probes
from bitgate.records.errors import EnvironmentUnfit, UsageError

QUESTIONS = {question.name: question for question in probes.QUESTIONS}
FUSED = np.full(4096, 2.0**-24, dtype=np.float32)
EVEN, TRUNCATED, AWAY = (
    (1, 1.015625, 1.0078125),
    (1, 1.0078125, 1),
    (1.0078125, 1.015625, 1.0078125),
)


def answer(name: str, output: object) -> str:
    return QUESTIONS[name].answer(np.asarray(output, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("contraction", FUSED * 0, "separate"),
        ("contraction", FUSED, "fused"),
        ("contraction", FUSED * 2, "neither"),
        ("contraction", np.append(FUSED[1:], 0), "neither"),
        ("subnormal", [2.0**-127, 2.0**-110], "kept"),
        ("subnormal", [0, 2.0**-110], "results flushed"),
        ("subnormal", [2.0**-127, 0], "arguments flushed"),
        ("subnormal", [0, 0], "flushed"),
        ("subnormal", [1, 2.0**-110], "neither kept nor flushed"),
        ("bf16-tie", EVEN, "nearest even"),
        ("bf16-tie", TRUNCATED, "truncates"),
        ("bf16-tie", AWAY, "ties away"),
        ("bf16-tie", (1, 1, 1), "none of the known"),
    ],
)
def test_known_outputs_have_known_answers(name: str, output: object, expected: str) -> None:
    assert answer(name, output).startswith(expected)


@pytest.mark.parametrize(
    ("name", "exact"), [("div", np.divide), ("sqrt", np.sqrt), ("exp", np.exp)]
)
def test_rounding_is_judged_value_by_value(name: str, exact: np.ufunc) -> None:
    inputs = [values.astype(np.float64) for values in QUESTIONS[name].inputs()]
    nearest = exact(*inputs).astype(np.float32)
    assert answer(name, nearest) == "nearest"
    off = nearest.copy()
    off[7] = np.nextafter(off[7], np.float32(0))
    off[9] = np.nextafter(np.nextafter(off[9], np.float32(np.inf)), np.float32(np.inf))
    assert answer(name, off) == "2 of 4096 not nearest, at most 2 ulp"
    off[3] = np.nan
    assert answer(name, off) == "1 of 4096 not finite"


def test_the_fused_question_tells_fused_from_separate_on_exact_numbers() -> None:
    a, b, c = (values.astype(np.float64) for values in QUESTIONS["contraction"].inputs())
    assert answer("contraction", a * b + c) == "fused"


def test_this_processor_answers_every_question() -> None:
    answers = dict(probes.run("cpu"))
    asked = {name.partition(":")[2] for name in answers}
    assert set(QUESTIONS) <= asked
    assert {name.partition(":")[0] for name in answers} == {"torch", "triton"}
    assert list(answers) == sorted(answers)
    for name in ("contraction", "contraction-off"):
        assert answers[f"triton:{name}"] == "separate"
    for name in ("div", "div_rn", "sqrt", "sqrt_rn"):
        assert answers[f"triton:{name}"] == "nearest"
    assert answers["torch:bf16-tie"] == answers["triton:bf16-tie"] == "nearest even"
    assert answers["torch:contraction"] == "separate"
    assert answers["torch:div"] == "nearest"


def test_a_processor_set_to_flush_is_found_out() -> None:
    assert dict(probes.torch_answers("cpu"))["torch:subnormal"] == "kept"
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        flushed = dict(probes.torch_answers("cpu"))["torch:subnormal"]
    finally:
        torch.set_flush_denormal(False)
    assert flushed == "flushed"


def test_what_a_device_cannot_do_is_an_answer() -> None:
    def refuse(*tensors: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such operator\nwith details")

    assert probes.ask("x", "cpu", {"div": ("div", refuse)}) == (
        ("x:div", "failed: no such operator"),
    )


def test_the_interpreter_is_asked_in_its_own_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A folder of the package's name in the current directory must not be taken for it.
    (tmp_path / "bitgate").mkdir()
    monkeypatch.chdir(tmp_path)
    here = tuple(pair for pair in probes.run("cpu") if pair[0].startswith("triton:"))
    monkeypatch.setattr("bitgate.kernels.interpreter.interpreting", lambda: False)
    there = tuple(pair for pair in probes.run("cpu") if pair[0].startswith("triton:"))
    assert here == there
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert dict(probes.run("cpu"))["triton"].startswith("not run: the interpreter's process failed")


def test_absent_and_unknown_devices() -> None:
    with pytest.raises(UsageError, match="known: cpu, cuda, xpu"):
        probes.run("npu")
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentUnfit, match="device cuda was asked for"):
            probes.run("cuda")
