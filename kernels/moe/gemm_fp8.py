"""The definition of `moe_gemm_fp8`: each pair's codes times those of its expert, and their scales.

    row(pair) = pair // top_k;  e = expert(pair), as in `moe_gemm`

    scheme block:  step = min(block_k, group_n, group_k), over K ascending:
        part = a[row, step] . w[e, n, step]                                   from +0, float32
        acc = acc + (part * a_scales[row, g]) * w_scales[e, n // group_n, g]  g = k // group_k
        total = acc
    scheme whole:  acc = a[row] . w[e, n], as moe_gemm sums it
        total = (acc * a_scales[row or 0]) * w_scales[e, n or 0]

    out[pair] = (total + bias[e, n]) (* weights[pair] if apply_weights)       rounded to bfloat16

`block` has a scale for each group_k elements of a row of a and for each block of group_n by
group_k of w; `whole` one for each row of a or for all of a ([tokens, 1] or [1, 1]), and one for
each row of an expert or for all of it ([experts, n, 1] or [experts, 1, 1]). The last group of K and
the last block of N may be smaller. A tile of N may span several blocks: each column has its own
scale.

The step of scheme block is the promotion interval: what a matrix instruction sums before float32
does. vLLM clamps BLOCK_SIZE_K to the smaller extent of the block shape in the same way, so under
[128, 64] no step is longer than 64, and no step ever spans two groups. Under scheme whole the
device's accumulator runs through, and nothing is promoted.

`accumulate` names how scaled parts are added (scheme block alone has a use for it):

    mul-mul-add     acc + (part * a) * b, three roundings: no contraction; ours
    mul-fma         fma(part * a, b, acc), two roundings: vLLM's Triton kernel, where the compiler
                    contracts, as Triton does unless fusion is off
    scale-product   acc + part * (a * b): DeepGEMM, and SGLang where a tile of N lies in one block

acc is the accumulator before bias and routing weight, under scheme whole also before the scales.
Sources: vLLM 0.10.2 and 0.33.0, fused_moe.py; SGLang 0.5.23, fused_moe_triton_kernels.py; DeepGEMM
54e2261.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from bitgate.kernels.moe import gemm_fp8_data
from bitgate.kernels.moe.contract import (
    FP8_CONFIG,
    MOE_FP8_1,
    promotion_interval,
    require_power_of_two,
)
from bitgate.kernels.moe.pair_matmul import PairMatmul
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

SCHEMES: Final = ("block", "whole")
ACCUMULATE: Final = ("mul-mul-add", "mul-fma", "scale-product")

MOE_GEMM_FP8 = Kernel(
    op="moe_gemm_fp8",
    summary="grouped matmul of float8 codes, scaled by groups as it sums or as a whole in the end",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="a", dtype="float8_e4m3fn", axes=("tokens", "k")),
        TensorSpec(name="a_scales", dtype="float32", axes=("a_rows", "a_groups")),
        TensorSpec(name="w", dtype="float8_e4m3fn", axes=("experts", "n", "k"), role="param"),
        TensorSpec(
            name="w_scales", dtype="float32", axes=("experts", "w_rows", "w_groups"), role="param"
        ),
        TensorSpec(name="sorted_pairs", dtype="int32", axes=("blocks*block_m",)),
        TensorSpec(name="expert_ids", dtype="int32", axes=("blocks",)),
        TensorSpec(name="padded", dtype="int32", axes=("one",)),
        TensorSpec(name="weights", dtype="float32", axes=("tokens*top_k",)),
        TensorSpec(name="bias", dtype="float32", axes=("experts", "n"), role="param"),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens*top_k", "n"), role="out"),
        TensorSpec(name="acc", dtype="float32", axes=("tokens*top_k", "n"), role="out"),
    ),
    constants=(
        ("accumulate", "mul-mul-add"),
        ("apply_weights", 1),
        ("block_k", FP8_CONFIG.block_k),
        ("block_m", FP8_CONFIG.block_m),
        ("block_n", FP8_CONFIG.block_n),
        ("group_k", gemm_fp8_data.GROUP),
        ("group_n", gemm_fp8_data.GROUP),
        ("scheme", "block"),
        ("top_k", gemm_fp8_data.TOP_K),
    ),
    make_inputs=gemm_fp8_data.make_inputs,
    integer_cases=gemm_fp8_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_gemm_fp8-tile",
            op="moe_gemm_fp8",
            contract=MOE_FP8_1.name,
            tier="native",
            devices=("cpu",),
            target="bitgate.kernels.moe.gemm_fp8_reference:moe_gemm_fp8",
            summary="tile by tile with the host's BLAS; the truth of the step ieee-tile",
            tiled=True,
        ),
        Implementation(
            name="moe_gemm_fp8-triton",
            op="moe_gemm_fp8",
            contract=MOE_FP8_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.gemm_fp8_triton:moe_gemm_fp8",
            summary="one Triton kernel on float8 matrix instructions, or through the interpreter",
            tiled=True,
        ),
    ),
    references={MOE_FP8_1.name: "moe_gemm_fp8-tile"},
    suites={"default": gemm_fp8_data.SUITE},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledMatmul(PairMatmul):
    """One call of moe_gemm_fp8, checked; a and w are float8_e4m3fn.

    Attributes:
        a_scales: float32, [tokens, ceil(k / group_k)]; of scheme whole [tokens, 1] or [1, 1].
        w_scales: float32, [experts, ceil(n / group_n), ceil(k / group_k)]; of scheme whole
            [experts, n, 1] or [experts, 1, 1].
        scheme: block or whole.
        group_n: rows of w that share a scale of scheme block, a power of two.
        group_k: elements of K that do.
        accumulate: one of ACCUMULATE.
    """

    a_scales: torch.Tensor
    w_scales: torch.Tensor
    scheme: str = "block"
    group_n: int = gemm_fp8_data.GROUP
    group_k: int = gemm_fp8_data.GROUP
    accumulate: str = "mul-mul-add"

    @property
    def definition(self) -> Kernel:
        """MOE_GEMM_FP8."""
        return MOE_GEMM_FP8

    @property
    def step(self) -> int:
        """Elements of K in a step: under scheme block the promotion interval."""
        if self.scheme == "whole":
            return self.config.block_k
        return promotion_interval(self.config.block_k, self.group_n, self.group_k)

    @property
    def shared(self) -> tuple[int, int, int]:
        """How many rows of a, rows of an expert and elements of K share a scale."""
        if self.scheme == "block":
            return 1, self.group_n, self.group_k
        (tokens, k), n = self.a.shape, self.w.shape[1]
        of_a = 1 if len(self.a_scales) == tokens else tokens
        of_w = 1 if self.w_scales.shape[1] == n else n
        return of_a, of_w, max(k, 1)

    def _check_constants(self) -> None:
        _check_name("scheme", self.scheme, SCHEMES)
        _check_name("accumulate", self.accumulate, ACCUMULATE)
        for name in ("group_n", "group_k"):
            require_power_of_two("moe_gemm_fp8", name, getattr(self, name), 16, 1024)

    def _check_tensors(self) -> None:
        tokens, k = self.a.shape
        groups = self.group_n, self.group_k
        of_a = [(tokens, -(-k // self.group_k))]
        if self.scheme == "whole":
            of_a = [(tokens, 1), (1, 1)]
        require_scales("moe_gemm_fp8", "a_scales", self.a_scales, self.scheme, groups, of_a)
        of_w = weight_scales(self.scheme, self.w, groups)
        require_scales("moe_gemm_fp8", "w_scales", self.w_scales, self.scheme, groups, of_w)


def weight_scales(scheme: str, w: torch.Tensor, groups: tuple[int, int]) -> list[tuple[int, ...]]:
    """The shapes that the scales of weights [experts, n, k] may have."""
    experts, n, k = w.shape
    if scheme == "block":
        return [(experts, -(-n // groups[0]), -(-k // groups[1]))]
    return [(experts, n, 1), (experts, 1, 1)]


def require_scales(
    op: str,
    name: str,
    scales: torch.Tensor,
    scheme: str,
    groups: tuple[int, int],
    shapes: Sequence[tuple[int, ...]],
) -> None:
    """Raise UsageError unless scales have one of the shapes."""
    if tuple(scales.shape) not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise UsageError(
            f"{op}: expected {name} of {expected} under scheme {scheme} with groups of "
            f"{groups[0]} by {groups[1]}, got {list(scales.shape)}"
        )


def _check_name(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"moe_gemm_fp8: expected {name} of {', '.join(known)}, got {value!r}")
