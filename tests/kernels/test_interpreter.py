"""Triton's interpreter: wrong as it comes, right once repaired, refused if untested."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from bitgate.kernels import interpreter
from bitgate.records.errors import EnvironmentUnfit
from bitgate.records.provenance import process_environment

# Runs a cast, dots and a fused multiply-add in a fresh process, with or without the repair, and
# prints how many of their elements differ from torch's.
PROBE = """
    import json, sys
    import torch
    from bitgate.kernels.interpreter import repair, tl, triton

    @triton.jit
    def cast(x, out, N: tl.constexpr):
        at = tl.arange(0, N)
        tl.store(out + at, tl.load(x + at).to(tl.bfloat16))

    @triton.jit
    def dot(a, b, out, N: tl.constexpr):
        at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))

    @triton.jit
    def fma(x, y, z, out, N: tl.constexpr):
        at = tl.arange(0, N)
        tl.store(out + at, tl.fma(tl.load(x + at), tl.load(y + at), tl.load(z + at)))

    repaired = repair() if sys.argv[1] == "repaired" else False
    steps = torch.arange(1024, dtype=torch.float32)
    x = (steps * 37 % 1021) / 256 + steps / 65536
    out = torch.empty(1024, dtype=torch.bfloat16)
    cast[(1,)](x, out, N=1024)
    a = ((torch.arange(1024) * 29 % 61) - 30).reshape(32, 32).to(torch.bfloat16)
    b = ((torch.arange(1024) * 23 % 53) - 26).reshape(32, 32).to(torch.bfloat16)
    product = torch.empty(32, 32)
    dot[(1,)](a, b, product, N=32)
    exact = (a.long() @ b.long()).float()
    codes = torch.ones(32, 32, dtype=torch.float8_e4m3fn)
    codes.view(torch.uint8)[3, 5] = 0x7F
    eighths = torch.empty(32, 32)
    dot[(1,)](codes, torch.ones(32, 32, dtype=torch.float8_e4m3fn), eighths, N=32)
    y = 1 + steps * 2.0**-12
    once = ((y.double() * y.double()) - y.double()).float()
    fused = torch.empty(1024)
    fma[(1,)](y, y, -y, fused, N=1024)
    print(json.dumps({
        "repaired": repaired,
        "cast": int((out != x.to(torch.bfloat16)).sum()),
        "dot": int((product != exact).sum()),
        "float8": int(32 - eighths[3].isnan().sum()),
        "fma": int((fused != once).sum()),
    }))
"""


def probe(tmp_path, how: str, interpret: str = "1") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "probe.py"
    script.write_text(textwrap.dedent(PROBE))
    environment = process_environment({"TRITON_INTERPRET": interpret})
    return subprocess.run(
        [sys.executable, str(script), how],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_repaired_bits_are_those_of_a_device(tmp_path) -> None:
    result = probe(tmp_path, "repaired")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "repaired": True,
        "cast": 0,
        "dot": 0,
        "float8": 0,
        "fma": 0,
    }


def test_without_the_repair_the_bits_really_are_wrong(tmp_path) -> None:
    result = probe(tmp_path, "as it comes")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["cast"] > 300
    assert found["dot"] > 900
    assert found["float8"] == 32
    # Triton 3.9 rounds once by itself.
    assert found["fma"] > 100 or interpreter.triton.__version__ == "3.9.0"


def bf16_bits(values: np.ndarray) -> list[int]:
    return [int(bits) for bits in interpreter.to_bfloat16(values)]


def test_rounding_is_to_nearest_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000], np.uint32)
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80]
    assert bf16_bits(bits.view(np.float32)) == expected


def test_subnormals_overflow_and_zeros() -> None:
    bits = np.array([0x00000001, 0x00008000, 0x00018000, 0x7F7FFFFF, 0x80000000], np.uint32)
    assert bf16_bits(bits.view(np.float32)) == [0, 0, 2, 0x7F80, 0x8000]


def test_a_nan_keeps_its_sign_and_payload_and_turns_quiet() -> None:
    bits = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FA10000], np.uint32)
    assert bf16_bits(bits.view(np.float32)) == [0x7FC0, 0x7FC0, 0xFFFF, 0x7FE1]


def test_rounding_towards_zero_stays_available() -> None:
    values = np.array([0x3F80FFFF, 0xBF80FFFF], np.uint32).view(np.float32)
    assert [int(b) for b in interpreter.to_bfloat16(values, towards_zero=True)] == [0x3F80, 0xBF80]


def test_every_bfloat16_survives_the_round_trip() -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = interpreter.to_float32(every)
    as_torch = torch.from_numpy(every.view(np.int16)).view(torch.bfloat16).float()
    assert np.array_equal(values.view(np.int32), as_torch.view(torch.int32).numpy())
    back = interpreter.to_bfloat16(values)
    quiet = np.where(np.isnan(values), every | np.uint16(0x40), every)
    assert np.array_equal(back, quiet)


def test_agrees_with_torch_on_a_sweep_of_exponents() -> None:
    bits = (np.arange(1 << 17, dtype=np.uint64) * 32749 % (1 << 32)).astype(np.uint32)
    values = bits.view(np.float32)
    finite = ~np.isnan(values)
    expected = torch.from_numpy(values[finite].copy()).to(torch.bfloat16).view(torch.int16)
    found = interpreter.to_bfloat16(values[finite]).view(np.int16)
    assert finite.sum() > 100_000
    assert np.array_equal(found, expected.numpy())


def test_an_untested_version_is_refused_and_told_what_was_tested() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"expected Triton 3\.7\.1 or .*got 9\.9\.9"):
        interpreter.require_tested("9.9.9")
    interpreter.require_tested(interpreter.TESTED[0])


def test_nothing_is_patched_where_nothing_is_interpreted() -> None:
    code = (
        "from bitgate.kernels import interpreter; from triton.runtime import interpreter as own; "
        "before = own._convert_float; "
        "print(interpreter.repair(), own._convert_float is before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=process_environment({"TRITON_INTERPRET": "0"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.split() == ["False", "True"]


def test_a_missing_triton_is_named() -> None:
    code = "import sys; sys.modules['triton'] = None; import bitgate.kernels.interpreter"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "EnvironmentUnfit: expected Triton" in result.stderr
    assert "bitgate[cpu]" in result.stderr
