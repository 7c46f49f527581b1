"""The definition of `mhc_post_pre`: one layer's mhc_post followed by the next one's mhc_pre.

It is the composition of the two, and its second half reads the residual as rounded to bfloat16.
Engines carry (x, residual, post, comb) over a layer's border, so that both run as one.
"""

from bitgate.kernels.mhc import data, fixtures
from bitgate.kernels.mhc.contract import MHC_C1
from bitgate.kernels.mhc.post import INPUTS
from bitgate.kernels.mhc.pre import CONSTANTS, MAPPING
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec

MHC_POST_PRE = Kernel(
    op="mhc_post_pre",
    summary="mhc_post of one layer fused with mhc_pre of the next",
    definition=str(__doc__),
    tensors=(
        *INPUTS,
        *MAPPING,
        TensorSpec(
            name="residual_out", dtype="bfloat16", axes=("tokens", "streams", "hidden"), role="out"
        ),
        TensorSpec(name="post_out", dtype="float32", axes=("tokens", "streams"), role="out"),
        TensorSpec(
            name="comb_out", dtype="float32", axes=("tokens", "streams", "streams"), role="out"
        ),
        TensorSpec(name="layer_input", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=CONSTANTS,
    make_inputs=data.post_pre_inputs,
    integer_cases=fixtures.post_pre_cases,
    implementations=(
        Implementation(
            name="mhc_post_pre-replay",
            op="mhc_post_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.replay:mhc_post_pre",
            summary="the contract's order in plain torch; slow, the truth",
        ),
        Implementation(
            name="mhc_post_pre-triton",
            op="mhc_post_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.post_pre_triton:mhc_post_pre",
            summary="the new residual feeds the projection in one kernel; two small ones follow",
        ),
        Implementation(
            name="mhc_post_pre-numba",
            op="mhc_post_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu",),
            target="bitgate.kernels.mhc.fast:mhc_post_pre",
            summary="mhc_post, then mhc_pre of what it rounded, each fused and compiled by numba",
        ),
    ),
    references={MHC_C1.name: "mhc_post_pre-replay"},
    suites=data.suites("mhc_post_pre"),
)
