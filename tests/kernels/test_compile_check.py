"""The compile check: approved kernels pass, planted ones fail by name, the unknown stays open."""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest

from bitgate.kernels import compile_check, mhc, moe
from bitgate.kernels.compile_check import SignatureResult, Signatures
from bitgate.kernels.compile_specs import SPECS, CompileSpec
from bitgate.records.errors import EnvironmentUnfit, UsageError

HERE = str(Path(__file__).parent)
FINISH = next(spec for spec in SPECS if spec.name == "mhc_finish")


def planted(function: str) -> CompileSpec:
    return CompileSpec(
        name=function,
        target=f"planted_kernels:{function}",
        arguments=(("x", "*fp32:16"), ("out", "*fp32:16")),
        constants=(("block", 128),),
        root=HERE,
    )


PLANTED = tuple(
    planted(name)
    for name in ("library_exp", "plain_division", "library_sqrt", "written_fma", "no_such_name")
)

MISSING = planted("nobody")

# The same arithmetic with the zero of its fences at run time, and as a constant, which folds them.
FENCED = replace(planted("contract_sigmoid"), arguments=(*planted("").arguments, ("zero", "i32")))
FOLDED = planted("folded_sigmoid")


@pytest.fixture(scope="module")
def found() -> Signatures:
    """Everything compiled for sm_90, in one process."""
    return compile_check.measure("sm_90", (*SPECS, FENCED, FOLDED, *PLANTED, MISSING))


@pytest.fixture(scope="module")
def approved() -> Signatures:
    signatures = compile_check.committed("sm_90")
    assert signatures is not None
    return signatures


def judged(spec: CompileSpec, found: Signatures, approved: Signatures | None) -> SignatureResult:
    (result,) = compile_check.judge("sm_90", (spec,), found, approved)
    assert result.kernel == spec.name
    return result


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_kernel_has_its_committed_signature(
    spec: CompileSpec, found: Signatures, approved: Signatures
) -> None:
    result = judged(spec, found, approved)
    assert result.outcome == "pass", result.reason
    # With fusion off a fused multiply-add is there only where the source asks for one.
    asked = spec.name == "moe_gemm_fp8_64_fma"
    assert (dict(result.signature)["fma_fusion_off"] > 0) == asked


def test_the_experts_matmul_runs_on_matrix_instructions(found: Signatures) -> None:
    counts = {rows: found.kernels[f"moe_gemm_{rows}"] for rows in ("16", "64", "64_acc")}
    assert (counts["16"]["matrix"] > 0, counts["16"]["wgmma"]) == (True, 0)
    assert counts["64"]["wgmma"] > 0
    # Storing the accumulator changes what is stored, and nothing of the arithmetic.
    arithmetic = ("matrix", "wgmma", "fma_fusion_off", "fma_fusion_on", "calls", "shared_bytes")
    assert {name: counts["64"][name] for name in arithmetic} == {
        name: counts["64_acc"][name] for name in arithmetic
    }
    assert not any(found.kernels[one.name]["matrix"] for one in SPECS if one.canonical)


def test_a_constant_fence_fails_by_its_fma(found: Signatures) -> None:
    approved = replace(found, kernels={FENCED.name: found.kernels[FENCED.name]})
    assert judged(FENCED, found, approved).outcome == "pass"
    # Two products per number are exact (n * LN2_HIGH and the power of two), and may contract.
    assert found.kernels[FENCED.name]["fma_fusion_on"] == 2
    swapped = replace(found, kernels={FENCED.name: found.kernels[FOLDED.name]})
    result = judged(FENCED, swapped, approved)
    assert result.outcome == "fail"
    assert any(text.startswith("fma_fusion_on 2 -> ") for text in result.differences)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("library_exp", "approximate instructions"),
        ("plain_division", "approximate instructions"),
        ("library_sqrt", "approximate instructions"),
        ("written_fma", "fma with fusion off"),
        ("no_such_name", "does not compile"),
    ],
)
def test_planted_kernels_fail_by_name(
    function: str, reason: str, found: Signatures, approved: Signatures
) -> None:
    result = judged(planted(function), found, approved)
    assert (result.kernel, result.outcome) == (function, "fail")
    assert reason in result.reason


CLEAN = {
    "fma_fusion_off": 0,
    "fma_fusion_on": 5,
    "approximate": 0,
    "ftz": 0,
    "div_rn": 1,
    "shared_bytes": 32768,
    "stack_bytes": 0,
    "local_bytes": 0,
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ftz", 1, "1 instructions that flush to zero"),
        ("stack_bytes", 8, "8 bytes of stack"),
        ("local_bytes", 4, "4 bytes or registers spilled"),
        ("shared_bytes", 32769, "32769 bytes of shared memory, over 32768"),
        ("fma_fusion_off", 2, "2 fma with fusion off"),
    ],
)
def test_hard_rules_hold_even_if_committed(name: str, value: int, reason: str) -> None:
    counts = Signatures("3.7.1", {"mhc_finish": {**CLEAN, name: value}})
    result = judged(FINISH, counts, counts)
    assert (result.outcome, result.reason) == ("fail", reason)


def test_a_changed_count_fails_and_is_listed() -> None:
    before = Signatures("3.7.1", {"mhc_finish": CLEAN})
    after = Signatures("3.7.1", {"mhc_finish": {**CLEAN, "fma_fusion_on": 6, "new": 1}})
    result = judged(FINISH, after, before)
    assert result.outcome == "fail"
    assert result.differences == ("fma_fusion_on 5 -> 6", "new absent -> 1")
    assert judged(FINISH, before, before).outcome == "pass"


def test_nothing_passes_by_absence() -> None:
    counts = Signatures("3.7.1", {"mhc_finish": CLEAN})
    assert judged(FINISH, counts, None).outcome == "inconclusive"
    assert judged(FINISH, counts, Signatures("3.7.1", {})).outcome == "fail"
    assert judged(FINISH, Signatures("3.7.1", {}), counts).outcome == "fail"
    other = judged(FINISH, Signatures("3.9.0", counts.kernels), counts)
    assert other.outcome == "inconclusive"
    assert other.reason == "the signature was made by Triton 3.7.1, this is 3.9.0"


def test_a_kernel_that_nobody_compiles_any_more_fails(
    monkeypatch: pytest.MonkeyPatch, approved: Signatures
) -> None:
    monkeypatch.setattr(compile_check, "measure", lambda arch, specs: approved)
    assert {one.outcome for one in compile_check.check("sm_90")} == {"pass"}
    *kept, dropped = compile_check.check("sm_90", SPECS[1:])
    assert {one.outcome for one in kept} == {"pass"}
    assert (dropped.kernel, dropped.outcome) == (SPECS[0].name, "fail")
    assert "no longer compiled" in dropped.reason


def test_every_launched_kernel_is_compiled() -> None:
    launched = set()
    modules = [
        module
        for package in (mhc, moe)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    for module in modules:
        names = vars(importlib.import_module(module.name)).items()
        launched |= {
            f"{module.name}:{name}"
            for name, value in names
            if name.endswith("_kernel") and value.fn.__module__ == module.name
        }
    assert launched == {spec.target for spec in SPECS}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"arch": "sm_90", "triton": "3.7.1"}', "KeyError: 'kernels'"),
        ('{"arch": "sm_90", "triton": "3.7.1", "kernels": {"mhc_post": null}}', "TypeError"),
        ('{"arch": "sm_100", "triton": "3.7.1", "kernels": {}}', "got those of sm_100"),
    ],
)
def test_a_damaged_signature_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str
) -> None:
    monkeypatch.setattr(compile_check, "_SIGNATURES", tmp_path)
    (tmp_path / "sm_90.json").write_text(text)
    with pytest.raises(UsageError, match=rf"sm_90\.json: expected .*{reason}"):
        compile_check.committed("sm_90")


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match=r"of sm_90, sm_100, gfx942, got 'sm_1'"):
        compile_check.check("sm_1")


def test_a_kernel_that_cannot_be_loaded_fails(found: Signatures, approved: Signatures) -> None:
    result = judged(MISSING, found, approved)
    assert result.outcome == "fail"
    assert "has no 'nobody'" in result.reason


def test_a_process_that_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_check.sys, "executable", "false")
    with pytest.raises(EnvironmentUnfit, match="expected Triton to compile for sm_90, got exit"):
        compile_check.measure("sm_90", SPECS)


def test_update_refuses_what_may_not_be_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_check, "SPECS", (FINISH,))
    monkeypatch.setattr(compile_check, "_SIGNATURES", tmp_path)
    bad = Signatures("3.7.1", {"mhc_finish": {**CLEAN, "ftz": 3}})
    monkeypatch.setattr(compile_check, "measure", lambda arch, specs: bad)
    with pytest.raises(UsageError, match="mhc_finish: 3 instructions that flush to zero"):
        compile_check.update("sm_90")
    assert not list(tmp_path.iterdir())
    good = Signatures("3.7.1", {"mhc_finish": CLEAN})
    monkeypatch.setattr(compile_check, "measure", lambda arch, specs: good)
    compile_check.update("sm_90")
    assert compile_check.committed("sm_90") == good


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100", "gfx942"])
def test_other_architectures_have_their_signatures(arch: str) -> None:
    results = compile_check.check(arch)
    assert [result.kernel for result in results] == [spec.name for spec in SPECS]
    assert all(result.outcome == "pass" for result in results), results
