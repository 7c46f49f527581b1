"""What the fused experts of each version of vLLM do, and how they are called: data.

Read for this table: `fused_moe.py`, `moe_align_block_size.py` and `utils.py` of
vllm/model_executor/layers/fused_moe, csrc/moe/moe_align_sum_kernels.cu and per_token_group_quant.cu
(both move between csrc and csrc/libtorch_stable) of the source distributions 0.10.2, 0.11.0,
0.12.0, 0.13.0, 0.14.0, 0.16.0, 0.17.0, 0.18.0, 0.19.0, 0.20.0, 0.23.0, 0.24.0, 0.25.0, 0.26.0,
0.28.0, 0.30.0, 0.32.0 and 0.33.0. Every change lies between two releases of this list without one
in between; a release that is not in it lies between two that agree.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from bitgate.kernels.moe.align_layouts import layout_of
from bitgate.records.errors import EnvironmentUnfit

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """The fused experts of the versions from `first` to `last`, both included.

    The first group of attributes says how to call them, the second what their bits depend on
    beside the tiles; `changed` is what set this range off from the one before it, with its source.

    Attributes:
        first: the first release.
        last: the last; a bug-fix release after it counts.
        gemm: the function of fused_moe.py that multiplies, with the arguments A, B, C and so on.
        quantisation: whether fused_experts takes FP8 as flags and scales, or in one quant_config.
        chunk_tokens: calls of more tokens are cut, each part with its own tiles; None: never.
        layout: the rules of the alignment, one of kernels.moe.align_layouts.
        moe_sum: how slots are added: in bfloat16 for top-k 2, 3 and 4 and by torch otherwise, or
            in float32, slots ascending.
        quantiser: what a group of FP8 activations does with its scale.
        epilogue: the order after the accumulator, before the one rounding.
        changed: what is new, and where it stands.
    """

    first: Release
    last: Release
    gemm: Literal["invoke_fused_moe_kernel", "dispatch_fused_moe_kernel"]
    quantisation: Literal["flags", "config"]
    chunk_tokens: int | None
    layout: str
    moe_sum: Literal["bf16-step", "fp32"]
    quantiser: Literal["divide", "reciprocal"]
    epilogue: Literal["bias, weight, scales", "scales, bias, weight"]
    changed: str

    @property
    def drops_nonlocal(self) -> bool:
        """Pairs of another rank are left out of the alignment, and their output rows zeroed."""
        return layout_of(self.layout).drops_nonlocal

    @property
    def name(self) -> str:
        """Such as 0.14.0 to 0.17.x."""
        return f"{'.'.join(map(str, self.first))} to {self.last[0]}.{self.last[1]}.x"


_DEFAULT_CHUNK: Final = 32768

VERSIONS: Final = (
    VllmRules(
        first=(0, 10, 2),
        last=(0, 10, 2),
        gemm="invoke_fused_moe_kernel",
        quantisation="flags",
        chunk_tokens=_DEFAULT_CHUNK,
        layout="vllm-0.10.2",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="bias, weight, scales",
        changed="the oldest version read; VLLM_FUSED_MOE_CHUNK_SIZE is 32768 unless it is set",
    ),
    VllmRules(
        first=(0, 11, 0),
        last=(0, 12, 0),
        gemm="invoke_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=_DEFAULT_CHUNK,
        layout="vllm-0.10.2",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="bias, weight, scales",
        changed="fused_experts takes FusedMoEQuantConfig (fused_moe.py of 0.11.0)",
    ),
    VllmRules(
        first=(0, 13, 0),
        last=(0, 13, 0),
        gemm="invoke_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=_DEFAULT_CHUNK,
        layout="vllm-0.13",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="bias, weight, scales",
        changed="ignore_invalid_experts, and the second product zeroed under a map (fused_moe.py, "
        "moe_align_sum_kernels.cu of 0.13.0; pull request 29642)",
    ),
    VllmRules(
        first=(0, 14, 0),
        last=(0, 16, 0),
        gemm="dispatch_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=_DEFAULT_CHUNK,
        layout="vllm-0.13",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="scales, bias, weight",
        changed="dispatch_fused_moe_kernel; without a map, at most a fourth as many pairs as "
        "experts are not aligned; scales before bias and weight (fused_moe.py of 0.14.0)",
    ),
    VllmRules(
        first=(0, 17, 0),
        last=(0, 17, 1),
        gemm="dispatch_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=_DEFAULT_CHUNK,
        layout="vllm-0.33",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="scales, bias, weight",
        changed="unused blocks are -1 (moe_align_sum_kernels.cu of 0.17.0; pull request 35161)",
    ),
    VllmRules(
        first=(0, 18, 0),
        last=(0, 24, 0),
        gemm="dispatch_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=None,
        layout="vllm-0.33",
        moe_sum="bf16-step",
        quantiser="divide",
        epilogue="scales, bias, weight",
        changed="no chunks any more (fused_moe.py of 0.18.0; pull request 34086)",
    ),
    VllmRules(
        first=(0, 25, 0),
        last=(0, 32, 0),
        gemm="dispatch_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=None,
        layout="vllm-0.33",
        moe_sum="fp32",
        quantiser="divide",
        epilogue="scales, bias, weight",
        changed="moe_sum adds in float32 for every top-k (moe_align_sum_kernels.cu of 0.25.0; pull "
        "request 46643)",
    ),
    VllmRules(
        first=(0, 33, 0),
        last=(0, 33, 0),
        gemm="dispatch_fused_moe_kernel",
        quantisation="config",
        chunk_tokens=None,
        layout="vllm-0.33",
        moe_sum="fp32",
        quantiser="reciprocal",
        epilogue="scales, bias, weight",
        changed="a group's codes are x * (1 / scale) (per_token_group_quant.cu of 0.33.0)",
    ),
)


def rules_for(version: str, assumed: str | None = None) -> VllmRules:
    """The rules of a version, such as "0.32.0" or "0.10.2+cu128"; of `assumed` instead, if given.

    Raises:
        EnvironmentUnfit: a version that is in no range of the table.
    """
    asked = version if assumed is None else assumed
    number = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+.*)?$", asked)
    if number:
        release = (int(number[1]), int(number[2]), int(number[3]))
        for rules in VERSIONS:
            if rules.first <= release and release[:2] <= rules.last[:2]:
                return rules
    known = ", ".join(rules.name for rules in VERSIONS)
    raise EnvironmentUnfit(
        f"expected a vLLM of {known}, got {asked}: its fused experts may be called in another way "
        "and add in another order. Read its fused_moe.py and add its range to "
        "parity/suites/vllm_versions.py, or drive it as a known one: --assume-version 0.33.0"
    )
