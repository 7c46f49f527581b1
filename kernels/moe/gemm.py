"""The definition of `moe_gemm`: each pair's row times the weights of its expert.

    row(pair) = pair // top_k
    acc[pair] = a[row(pair)] . w[expert(pair)].T                   float32, K ascending
    sum[pair] = acc[pair] + bias[expert(pair)]                     float32
    out[pair] = sum[pair] (* weights[pair] if apply_weights)       rounded once to bfloat16

expert(pair) is that of the block of sorted_pairs which names the pair. Only blocks before `padded`
whose expert is one of w are computed; rows of pairs that none of them names are +0. acc is the
accumulator before bias and routing weight: bfloat16 hides in which order it was summed. It is never
-0, so a bias of +0, that of a layer without one, changes no bit.

apply_weights belongs to the second matmul of the experts; where a model weights the input of its
experts (Llama-4; vLLM's apply_router_weight_on_input multiplies the first accumulator), to the
first, and the second has none.

a and w are read where they lie: their rows may be further apart than they are long, as engines pad
weights. Elements within a row of w must be adjacent, for weights are never copied.
"""

from dataclasses import dataclass

from bitgate.kernels.moe import gemm_data
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1
from bitgate.kernels.moe.pair_matmul import PairMatmul
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec

MOE_GEMM = Kernel(
    op="moe_gemm",
    summary="grouped matmul: the rows of each block times the weights of the block's expert",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="a", dtype="bfloat16", axes=("tokens", "k")),
        TensorSpec(name="w", dtype="bfloat16", axes=("experts", "n", "k"), role="param"),
        TensorSpec(name="sorted_pairs", dtype="int32", axes=("blocks*block_m",)),
        TensorSpec(name="expert_ids", dtype="int32", axes=("blocks",)),
        TensorSpec(name="padded", dtype="int32", axes=("one",)),
        TensorSpec(name="weights", dtype="float32", axes=("tokens*top_k",)),
        TensorSpec(name="bias", dtype="float32", axes=("experts", "n"), role="param"),
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens*top_k", "n"), role="out"),
        TensorSpec(name="acc", dtype="float32", axes=("tokens*top_k", "n"), role="out"),
    ),
    constants=(
        ("apply_weights", 1),
        ("block_k", DEFAULT_CONFIG.block_k),
        ("block_m", DEFAULT_CONFIG.block_m),
        ("block_n", DEFAULT_CONFIG.block_n),
        ("top_k", gemm_data.TOP_K),
    ),
    make_inputs=gemm_data.make_inputs,
    integer_cases=gemm_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_gemm-tile",
            op="moe_gemm",
            contract=MOE_BF16_1.name,
            tier="native",
            devices=("cpu",),
            target="bitgate.kernels.moe.gemm_reference:moe_gemm",
            summary="tile by tile with the host's BLAS; the truth of the step ieee-tile",
        ),
        Implementation(
            name="moe_gemm-triton",
            op="moe_gemm",
            contract=MOE_BF16_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.gemm_triton:moe_gemm",
            summary="one Triton kernel on matrix instructions; on a CPU through the interpreter",
            tiled=True,
        ),
    ),
    references={MOE_BF16_1.name: "moe_gemm-tile"},
    suites={"default": gemm_data.SUITE},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMatmul(PairMatmul):
    """One call of moe_gemm, checked; a and w are bfloat16."""

    @property
    def definition(self) -> Kernel:
        """MOE_GEMM."""
        return MOE_GEMM

    def _check_constants(self) -> None:
        """It has none of its own."""

    def _check_tensors(self) -> None:
        """The definition says all."""
