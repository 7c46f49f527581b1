"""The compiling half of `compile_check`: a process of its own, where Triton really compiles.

Reads {"arch": ..., "specs": [...]} from standard input and writes {"triton": version, "kernels":
{name: counts, or {"error": text}}} to standard output. No GPU is needed.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bitgate.kernels.interpreter import interpreting, triton
from bitgate.kernels.loading import load
from bitgate.records.errors import EnvironmentUnfit

Counts = dict[str, int]

_PTX_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*(?:[.:]+\w+)+)\s", re.MULTILINE)
_PTX_MATRIX = re.compile(r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_AMD_INSTRUCTION = re.compile(r"^\s+([sv]_\w+)", re.MULTILINE)
# What does not round as IEEE 754 says, in PTX: ex2.approx, rcp.approx, div.full and the like.
_APPROXIMATE = frozenset({"approx", "full"})


def _count(instructions: Counter[str], *, name: str = "", suffix: str = "") -> int:
    """How many instructions have this first part (`name`) and this dotted part (`suffix`)."""
    return sum(
        count
        for text, count in instructions.items()
        if (not name or text.split(".")[0] == name) and (not suffix or suffix in text.split("."))
    )


def _cuda_counts(off: Any, on: Any) -> Counts:
    """The signature of one kernel for NVIDIA, from PTX and the resources of its machine code."""
    plain, fused = (Counter(_PTX_INSTRUCTION.findall(one.asm["ptx"])) for one in (off, on))
    both = plain + fused
    return {
        "fma_fusion_off": _count(plain, name="fma"),
        "fma_fusion_on": _count(fused, name="fma"),
        "approximate": sum(_count(both, suffix=suffix) for suffix in _APPROXIMATE),
        "ftz": _count(both, suffix="ftz"),
        "div_rn": _count(plain, name="div", suffix="rn"),
        "sqrt_rn": _count(plain, name="sqrt", suffix="rn"),
        "calls": _count(plain, name="call"),
        "matrix": sum(count for text, count in plain.items() if _PTX_MATRIX.match(text)),
        "wgmma": _count(plain, name="wgmma"),
        "shared_bytes": int(off.metadata.shared),
        **_cuda_resources(off.asm["cubin"]),
    }


def _cuda_resources(cubin: bytes) -> Counts:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", listing))
    return {
        "registers": int(found["REG"]),
        "stack_bytes": int(found["STACK"]),
        "local_bytes": int(found["LOCAL"]),
    }


def _hip_counts(off: Any, on: Any) -> Counts:
    """The signature of one kernel for AMD, where an exact division is itself made of fma."""
    text = off.asm["amdgcn"]
    plain, fused = (Counter(_AMD_INSTRUCTION.findall(one.asm["amdgcn"])) for one in (off, on))

    def fma(instructions: Counter[str]) -> int:
        return sum(
            count for name, count in instructions.items() if re.match(r"v_(?!mfma).*fma", name)
        )

    def field(name: str) -> int:
        return sum(int(value) for value in re.findall(rf"\.{name}:\s+(\d+)", text))

    return {
        "fma_fusion_off": fma(plain),
        "fma_fusion_on": fma(fused),
        "matrix": sum(count for name, count in plain.items() if name.startswith("v_mfma")),
        "shared_bytes": int(off.metadata.shared),
        "registers": field("vgpr_count"),
        "stack_bytes": field("private_segment_fixed_size"),
        "local_bytes": field("vgpr_spill_count") + field("sgpr_spill_count"),
    }


def _target(arch: str) -> tuple[Any, Callable[[Any, Any], Counts]]:
    from triton.backends.compiler import GPUTarget

    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), _cuda_counts
    return GPUTarget("hip", arch, 64), _hip_counts


def _signature(spec: dict[str, Any], arch: str) -> Counts:
    """Compile one kernel with multiply-add fusion off and on, and count."""
    from triton.compiler import ASTSource

    root = None if spec["root"] is None else Path(spec["root"])
    kernel: Any = load(spec["target"], root)
    constants = dict(spec["constants"])
    types = {name: kind.split(":")[0] for name, kind in spec["arguments"]}
    # In order: Triton keys its cache by the text of these, and a set has another one each time.
    aligned = [name for name, kind in spec["arguments"] if kind.endswith(":16")]
    positions = {name: index for index, name in enumerate(kernel.arg_names)}
    target, counts = _target(arch)
    given = {name: spec[name] for name in ("num_warps", "num_stages")}
    options = {name: value for name, value in given.items() if value is not None}
    compiled = [
        triton.compile(
            ASTSource(
                fn=kernel,
                signature={**types, **dict.fromkeys(constants, "constexpr")},
                constexprs=constants,
                attrs={(positions[name],): [["tt.divisibility", 16]] for name in aligned},
            ),
            target=target,
            options={**options, "enable_fp_fusion": fusion},
        )
        for fusion in (False, True)
    ]
    return counts(*compiled)


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    if interpreting():
        raise EnvironmentUnfit(
            "expected a process in which Triton compiles; unset TRITON_INTERPRET"
        )
    kernels: dict[str, Any] = {}
    for spec in request["specs"]:
        try:
            kernels[spec["name"]] = _signature(spec, request["arch"])
        except EnvironmentUnfit:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the compiler says is the finding
            kernels[spec["name"]] = {"error": f"{type(error).__name__}: {error}"}
    json.dump({"triton": triton.__version__, "kernels": kernels}, sys.stdout)


if __name__ == "__main__":
    main()
