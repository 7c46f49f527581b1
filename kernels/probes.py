"""Questions about a device's arithmetic whose answers are known: what does it really do?

Each question is asked twice, of torch's operators and of kernels that Triton builds, because they
reach the device by different compilers. The answers go into every record: two nodes that differ
here differ in bits, whatever their names say.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.devices import device as device_named
from bitgate.records.errors import EnvironmentUnfit
from bitgate.records.provenance import process_environment
from bitgate.records.types import Pairs

Floats = npt.NDArray[np.float32]

_SAMPLES = 4096
_CHILD_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question: its float32 inputs, and what an output (as float32) says."""

    name: str
    inputs: Callable[[], tuple[Floats, ...]]
    answer: Callable[[Floats], str]


def run(device: str) -> Pairs:
    """All answers of the device, (question, answer) in name order.

    Names are ``torch:QUESTION`` and ``triton:QUESTION``. On a processor the Triton kernels are
    interpreted, in a process of their own where this one was not started for it. Where they
    cannot run, the single pair ``triton`` says why.

    Raises:
        UsageError: no such kind of device.
        EnvironmentUnfit: it is not usable on this node.
    """
    device_named(device)
    return tuple(sorted((*torch_answers(device), *_triton_answers(device))))


def ask(prefix: str, device: str, ways: Mapping[str, tuple[str, Callable[..., Tensor]]]) -> Pairs:
    """Answers of some ways to compute: `ways` maps a label to (question, function of tensors)."""
    questions = {question.name: question for question in QUESTIONS}
    answers = []
    for label, (name, compute) in ways.items():
        question = questions[name]
        tensors = [torch.from_numpy(values).to(device) for values in question.inputs()]
        try:
            output = compute(*tensors).to(torch.float32).cpu().numpy()
        except RuntimeError as error:
            # What a device cannot do is an answer too.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            answers.append((f"{prefix}:{label}", f"failed: {reason}"))
        else:
            answers.append((f"{prefix}:{label}", question.answer(output)))
    return tuple(answers)


def torch_answers(device: str) -> Pairs:
    """The answers of torch's operators on the device."""
    return ask("torch", device, _TORCH)


# --- the questions -------------------------------------------------------------------------------


def _contraction_inputs() -> tuple[Floats, ...]:
    # a * a is 1 + 2^-11 + 2^-24; rounded to float32 the last term is gone, inside a fused
    # multiply-add it is not.
    a = np.full(_SAMPLES, 1 + 2.0**-12, dtype=np.float32)
    return a, a.copy(), np.full(_SAMPLES, -(1 + 2.0**-11), dtype=np.float32)


def _contraction_answer(output: Floats) -> str:
    if (output == 0).all():
        return "separate"
    if (output == np.float32(2.0**-24)).all():
        return "fused"
    return f"neither: {output[0]!r}"


# As bit patterns: this process may itself flush subnormals where it converts or compares them.
_TO_SUBNORMAL = np.array([0x0080_0000, 0x0008_0000], dtype=np.int32)  # 2^-126, 2^-130
_FACTORS = np.array([2.0**-1, 2.0**20], dtype=np.float32)
_KEPT = np.array([0x0040_0000, 0x0880_0000], dtype=np.int32)  # 2^-127, 2^-110


def _subnormal_inputs() -> tuple[Floats, ...]:
    # First a subnormal result of normal factors, then a normal result of a subnormal factor.
    return _TO_SUBNORMAL.view(np.float32), _FACTORS


def _subnormal_answer(output: Floats) -> str:
    bits = output.view(np.int32)
    result, argument = (bool(same) for same in bits == _KEPT)
    if not ((bits == _KEPT) | (bits == 0)).all():
        return f"neither kept nor flushed: {output.tolist()}"
    if result and argument:
        return "kept"
    if not result and not argument:
        return "flushed"
    return "arguments flushed" if result else "results flushed"


# Two ties, one to each side, and one value just above a tie.
_TIES = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-16], dtype=np.float32)
_TIE_ANSWERS = {
    (1.0, 1 + 2.0**-6, 1 + 2.0**-7): "nearest even",
    (1.0, 1 + 2.0**-7, 1.0): "truncates",
    (1 + 2.0**-7, 1 + 2.0**-6, 1 + 2.0**-7): "ties away",
}


def _tie_answer(output: Floats) -> str:
    return _TIE_ANSWERS.get(tuple(output.tolist()), f"none of the known: {output.tolist()}")


def _positive(name: str) -> Floats:
    """Positive float32 with full mantissas and exponents from -20 to 20."""
    stream = IntegerStream(sum(name.encode()))
    mantissas = stream.integers((_SAMPLES,), 1 << 23, (1 << 24) - 1).astype(np.float64)
    exponents = stream.integers((_SAMPLES,), -43, -3)
    return (mantissas * 2.0**exponents).astype(np.float32)


def _exponents() -> Floats:
    """From -80 to 80 in even steps, without their ends."""
    steps = IntegerStream(3).integers((_SAMPLES,), -(80 << 16), 80 << 16)
    return (steps * 2.0**-16).astype(np.float32)


def _rounding(exact: npt.NDArray[np.float64]) -> Callable[[Floats], str]:
    """Compare with the exact values rounded once; says how many are off and by how much."""
    nearest = exact.astype(np.float32)

    def answer(output: Floats) -> str:
        if not np.isfinite(output).all():
            return f"{int((~np.isfinite(output)).sum())} of {_SAMPLES} not finite"
        units = np.abs(output.view(np.int32).astype(np.int64) - nearest.view(np.int32))
        wrong = int((units > 0).sum())
        if not wrong:
            return "nearest"
        return f"{wrong} of {_SAMPLES} not nearest, at most {int(units.max())} ulp"

    return answer


def _questions() -> tuple[Question, ...]:
    top, bottom, radicand, power = (
        _positive("top"),
        _positive("bottom"),
        _positive("r"),
        _exponents(),
    )
    # Division and square root in float64, rounded once more, are the nearest float32.
    quotient = top.astype(np.float64) / bottom.astype(np.float64)
    return (
        Question(name="contraction", inputs=_contraction_inputs, answer=_contraction_answer),
        Question(name="subnormal", inputs=_subnormal_inputs, answer=_subnormal_answer),
        Question(name="bf16-tie", inputs=lambda: (_TIES,), answer=_tie_answer),
        Question(name="div", inputs=lambda: (top, bottom), answer=_rounding(quotient)),
        Question(
            name="sqrt",
            inputs=lambda: (radicand,),
            answer=_rounding(np.sqrt(radicand.astype(np.float64))),
        ),
        Question(
            name="exp", inputs=lambda: (power,), answer=_rounding(np.exp(power.astype(np.float64)))
        ),
    )


QUESTIONS: tuple[Question, ...] = _questions()

_TORCH: Mapping[str, tuple[str, Callable[..., Tensor]]] = {
    "contraction": ("contraction", lambda a, b, c: a * b + c),
    "addcmul-contraction": ("contraction", lambda a, b, c: torch.addcmul(c, a, b)),
    "subnormal": ("subnormal", lambda a, b: a * b),
    "bf16-tie": ("bf16-tie", lambda a: a.to(torch.bfloat16)),
    "div": ("div", lambda a, b: a / b),
    "sqrt": ("sqrt", torch.sqrt),
    "exp": ("exp", torch.exp),
}


# --- Triton --------------------------------------------------------------------------------------


def _triton_answers(device: str) -> Pairs:
    try:
        from bitgate.kernels.interpreter import interpreting
        from bitgate.kernels.probes_triton import triton_answers

        if device != "cpu" or interpreting():
            return triton_answers(device)
        return _interpreted()
    except EnvironmentUnfit as error:
        return (("triton", f"not run: {error}"),)


def _interpreted() -> Pairs:
    """Ask in a child: whether Triton interprets is decided when it is imported."""
    command = (sys.executable, "-P", "-m", "bitgate.kernels.probes_triton")
    try:
        done = subprocess.run(
            command,
            env=process_environment({"TRITON_INTERPRET": "1"}),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfit(f"the interpreter took over {_CHILD_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise EnvironmentUnfit(f"the interpreter's process failed: {last[0]}") from error
    return tuple((name, answer) for name, answer in json.loads(done.stdout))
