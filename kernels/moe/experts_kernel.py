"""The definition of moe_experts: tensors, constants, suites and implementations."""

from bitgate.kernels.moe import experts
from bitgate.kernels.moe.arguments import INPUTS
from bitgate.kernels.moe.contract import MOE_BF16_1, MOE_TORCH_1
from bitgate.kernels.moe.experts_data import make_inputs
from bitgate.kernels.moe.experts_fixtures import integer_cases
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.types import Workload


def _workloads(shape: dict[str, int], tokens: tuple[int, ...], case: str) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            op="moe_experts",
            axes=tuple(sorted({**shape, "tokens": count}.items())),
            dtype="bfloat16",
            case=case,
        )
        for count in tokens
    )


# Many small experts: what a layer does besides its matmuls weighs as much as in a large model.
_MANY = {"hidden": 32, "intermediate": 32, "experts": 64, "top_k": 2}
_UNEVEN = {"hidden": 96, "intermediate": 40, "experts": 12, "top_k": 4}

MOE_EXPERTS = Kernel(
    op="moe_experts",
    summary="both matmuls of the routed experts, gated activation, routing weights, reduction",
    definition=str(experts.__doc__),
    tensors=(
        *INPUTS,
        TensorSpec(name="out", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=(("swiglu_limit", 10.0),),
    make_inputs=make_inputs,
    integer_cases=integer_cases,
    implementations=(
        Implementation(
            name="experts_loop",
            op="moe_experts",
            contract=MOE_TORCH_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.experts:experts_loop",
            summary="one expert after the other over the tokens that a mask finds for it",
        ),
        Implementation(
            name="experts_sorted",
            op="moe_experts",
            contract=MOE_TORCH_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.experts:experts_sorted",
            summary="pairs sorted by expert once, contiguous rows, combined in expert order",
        ),
        Implementation(
            name="experts_tile",
            op="moe_experts",
            contract=MOE_BF16_1.name,
            tier="native",
            devices=("cpu",),
            target="bitgate.kernels.moe.staged_reference:experts_tile",
            summary="the references of the five stages; the truth of the step ieee-tile",
            tiled=True,
        ),
        Implementation(
            name="experts_fused",
            op="moe_experts",
            contract=MOE_BF16_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.fused_triton:experts_fused",
            summary="the Triton kernels, the activation an epilogue of the first matmul",
            tiled=True,
        ),
        Implementation(
            name="experts_triton",
            op="moe_experts",
            contract=MOE_BF16_1.name,
            tier="native",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.staged_triton:experts_triton",
            summary="the Triton kernels of the stages; on a CPU through Triton's interpreter",
            tiled=True,
        ),
    ),
    references={MOE_TORCH_1.name: "experts_loop", MOE_BF16_1.name: "experts_tile"},
    suites={
        "default": (
            *_workloads(_MANY, (1, 16, 64), "random"),
            *_workloads(_UNEVEN, (3, 33), "random"),
            *_workloads(_UNEVEN, (17,), "padding"),
        ),
        "demo": _workloads(_MANY, (1, 16, 64), "random"),
    },
)
