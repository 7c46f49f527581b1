"""Do the Triton kernels still compile to the instructions that were approved? No GPU is needed.

Every kernel is compiled with multiply-add fusion off and on, its instructions are counted, and the
counts are compared with the committed ones (`signatures/ARCH.json`): a change fails and is listed.
Kernels of a canonical contract obey hard rules besides, because their bits must not depend on the
compiler: nothing approximate, no flush to zero, no spill, no fma with fusion off, and with fusion
on exactly the committed fma, all of whose products are exact.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitgate.kernels.compile_specs import SPECS, CompileSpec
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.provenance import process_environment
from bitgate.records.types import GateOutcome

ARCHITECTURES = ("sm_90", "sm_100", "gfx942")
SHARED_LIMIT_BYTES = 32 * 1024
TIMEOUT_S = 300.0

_SIGNATURES = Path(__file__).parent / "signatures"

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureResult:
    """One kernel's answer; `differences` lists what changed against the committed signature."""

    kernel: str
    arch: str
    outcome: GateOutcome
    reason: str
    signature: tuple[tuple[str, int], ...] = ()
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signatures:
    """The counts of each kernel, or the compiler's error, and the Triton that made them."""

    triton: str
    kernels: Mapping[str, Mapping[str, Any]]


def check(arch: str, specs: tuple[CompileSpec, ...] = SPECS) -> list[SignatureResult]:
    """Compile every kernel for `arch` and judge it against its committed signature.

    A committed kernel that nobody compiles any more fails, too.

    Raises:
        UsageError: the architecture is not one of ARCHITECTURES, or its signatures are damaged.
        EnvironmentUnfit: Triton is missing or cannot run here.
    """
    approved = committed(arch)
    return judge(arch, specs, measure(arch, specs), approved) + _forgotten(arch, specs, approved)


def update(arch: str) -> Path:
    """Compile every kernel for `arch` and write what it finds as the committed signature.

    Raises:
        UsageError: the architecture is unknown, or a kernel does not compile or breaks a hard rule.
        EnvironmentUnfit: Triton is missing or cannot run here.
    """
    found = measure(arch, SPECS)
    broken = [one for one in judge(arch, SPECS, found, found) if one.outcome != "pass"]
    if broken:
        listed = "; ".join(f"{one.kernel}: {one.reason}" for one in broken)
        raise UsageError(f"expected kernels that may be committed for {arch}, got {listed}")
    path = _SIGNATURES / f"{arch}.json"
    content = {"arch": arch, "triton": found.triton, "kernels": found.kernels}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path


def committed(arch: str) -> Signatures | None:
    """The committed signatures of `arch`, or None where there are none.

    Raises:
        UsageError: the file is damaged, or holds another architecture's.
    """
    path = _SIGNATURES / f"{arch}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        kernels = {name: dict(counts) for name, counts in content["kernels"].items()}
        found = Signatures(content["triton"], kernels)
        stated = content["arch"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: expected arch, triton and kernels with their counts, got "
            f"{type(error).__name__}: {error}; restore the file, or write it again with --update"
        ) from error
    if stated != arch:
        raise UsageError(
            f"{path}: expected signatures of {arch}, got those of {stated}; restore it"
        )
    return found


def measure(arch: str, specs: tuple[CompileSpec, ...]) -> Signatures:
    """Compile in a process of its own, where TRITON_INTERPRET is off, and count instructions.

    Raises:
        UsageError: the architecture is not one of ARCHITECTURES.
        EnvironmentUnfit: Triton is missing or cannot run here.
    """
    if arch not in ARCHITECTURES:
        raise UsageError(f"expected an architecture of {', '.join(ARCHITECTURES)}, got {arch!r}")
    request = json.dumps({"arch": arch, "specs": [asdict(spec) for spec in specs]})
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "bitgate.kernels.compile_child"],
            input=request,
            env=process_environment({"TRITON_INTERPRET": "0"}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentUnfit(
            f"expected {len(specs)} kernels to compile within {TIMEOUT_S:.0f} s, got no answer"
        ) from error
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:] or ["no message"]
        raise EnvironmentUnfit(
            f"expected Triton to compile for {arch}, got exit code {answer.returncode}: {last[0]}"
        )
    content = json.loads(answer.stdout)
    return Signatures(content["triton"], content["kernels"])


def judge(
    arch: str, specs: tuple[CompileSpec, ...], found: Signatures, approved: Signatures | None
) -> list[SignatureResult]:
    """One result per specification: hard rules first, then the committed signature."""
    return [_judge_one(arch, spec, found, approved) for spec in specs]


def _forgotten(
    arch: str, specs: tuple[CompileSpec, ...], approved: Signatures | None
) -> list[SignatureResult]:
    """A failure for every committed kernel that has no specification."""
    left = set() if approved is None else approved.kernels.keys() - {spec.name for spec in specs}
    reason = "committed, but no longer compiled; restore its specification, or update and review"
    return [
        SignatureResult(kernel=name, arch=arch, outcome="fail", reason=reason)
        for name in sorted(left)
    ]


def _judge_one(
    arch: str, spec: CompileSpec, found: Signatures, approved: Signatures | None
) -> SignatureResult:
    counts = found.kernels.get(spec.name, {"error": "the compiler gave no answer"})
    broken = _broken_rules(counts) if spec.canonical else _errors(counts)
    known = None if approved is None else approved.kernels.get(spec.name)
    differences = () if known is None else _differences(known, counts)
    outcome: GateOutcome
    if broken:
        outcome, reason = "fail", "; ".join(broken)
    elif approved is None:
        outcome, reason = "inconclusive", f"no signature is committed for {arch}"
    elif approved.triton != found.triton:
        outcome = "inconclusive"
        reason = f"the signature was made by Triton {approved.triton}, this is {found.triton}"
    elif known is None:
        outcome, reason = "fail", "its signature is not committed; update and review it"
    elif differences:
        outcome, reason = "fail", f"changed: {', '.join(differences)}"
    else:
        outcome, reason = "pass", f"{len(counts)} counts as committed"
    return SignatureResult(
        kernel=spec.name,
        arch=arch,
        outcome=outcome,
        reason=reason,
        signature=tuple((name, n) for name, n in sorted(counts.items()) if isinstance(n, int)),
        differences=differences,
    )


def _errors(counts: Mapping[str, Any]) -> list[str]:
    return [f"does not compile: {counts['error']}"] if "error" in counts else []


def _broken_rules(counts: Mapping[str, Any]) -> list[str]:
    """What a kernel of a canonical contract must not have, as sentences."""
    if "error" in counts:
        return _errors(counts)
    broken = [
        f"{counts[name]} {what}"
        for name, what in (
            ("approximate", "approximate instructions"),
            ("ftz", "instructions that flush to zero"),
            ("stack_bytes", "bytes of stack"),
            ("local_bytes", "bytes or registers spilled"),
        )
        if counts.get(name, 0) > 0
    ]
    # Only PTX shows contraction: elsewhere an exact division is itself made of fma.
    if "div_rn" in counts and counts["fma_fusion_off"] > 0:
        broken.append(f"{counts['fma_fusion_off']} fma with fusion off")
    if counts["shared_bytes"] > SHARED_LIMIT_BYTES:
        broken.append(f"{counts['shared_bytes']} bytes of shared memory, over {SHARED_LIMIT_BYTES}")
    return broken


def _differences(known: Mapping[str, Any], counts: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted(known.keys() | counts.keys())
    return tuple(
        f"{name} {known.get(name, 'absent')} -> {counts.get(name, 'absent')}"
        for name in names
        if known.get(name) != counts.get(name)
    )
