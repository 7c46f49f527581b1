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

from dataclasses import dataclass, replace

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import gemm_data
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1, TileConfig
from bitgate.kernels.spec import Implementation, Kernel, Tensors, TensorSpec
from bitgate.records.errors import UsageError

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
class GroupedMatmul:
    """One call of moe_gemm, checked.

    Attributes:
        a: [tokens, k] bfloat16; of pair p it is the row p // top_k that counts.
        w: [experts, n, k] bfloat16.
        sorted_pairs: [blocks * block_m] int32, and so are the next two, as moe_align gives them.
        expert_ids: [blocks].
        padded: [1].
        weights: [tokens * top_k] float32.
        bias: [experts, n] float32 or bfloat16, which is widened; None is one of zeros.
        top_k: pairs per row of `a`.
        apply_weights: 1 multiplies the accumulator by `weights` before it is rounded, 0 does not.
        config: the tiles; block_m is that of sorted_pairs.

    Raises:
        UsageError: a tensor is not as MOE_GEMM says, or top_k or apply_weights is none.
    """

    a: torch.Tensor
    w: torch.Tensor
    sorted_pairs: torch.Tensor
    expert_ids: torch.Tensor
    padded: torch.Tensor
    weights: torch.Tensor
    top_k: int
    apply_weights: int
    config: TileConfig
    bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        check_pairs("moe_gemm", self.top_k, self.apply_weights)
        fixed = {"top_k": self.top_k, "block_m": self.config.block_m, "one": 1}
        bind("moe_gemm", biased(MOE_GEMM.inputs, self.bias), self.inputs, fixed=fixed)
        check_rows("moe_gemm", self.w)

    @property
    def inputs(self) -> Tensors:
        """The tensors that were given, by name."""
        given = {spec.name: getattr(self, spec.name) for spec in MOE_GEMM.inputs}
        return {name: tensor for name, tensor in given.items() if tensor is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """Of both results: pairs and columns."""
        return self.weights.shape[0], self.w.shape[1]

    def new(self, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a result, +0 as the rows that no block names stay."""
        return torch.zeros(self.shape, dtype=dtype, device=self.a.device)


def check_pairs(op: str, top_k: int, apply_weights: int) -> None:
    """Raise UsageError unless top_k and apply_weights are those of a grouped matmul."""
    if type(top_k) is not int or top_k < 1:
        raise UsageError(f"{op}: expected top_k of at least 1, an int, got {top_k!r}")
    if type(apply_weights) is not int or apply_weights not in (0, 1):
        raise UsageError(f"{op}: expected apply_weights of 0 or 1, an int, got {apply_weights!r}")


def biased(specs: tuple[TensorSpec, ...], bias: torch.Tensor | None) -> tuple[TensorSpec, ...]:
    """The specifications for a bias that may be bfloat16."""
    if bias is None or bias.dtype != torch.bfloat16:
        return specs
    return tuple(replace(one, dtype="bfloat16") if one.name == "bias" else one for one in specs)


def check_rows(op: str, w: torch.Tensor) -> None:
    """Raise UsageError unless the elements of each row of the weights are adjacent."""
    if w.shape[-1] > 1 and w.stride(-1) != 1:
        raise UsageError(
            f"{op}: expected the elements of a row of w to be adjacent, got strides {w.stride()}; "
            "lay the weights out once as [experts, n, k]: copies at each call would be timed"
        )
