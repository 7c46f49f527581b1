"""The definition of `mhc_post`: a layer's output goes back into the residual streams.

    residual_out[j, h] = post[j] * x[h] + sum_i comb[i, j] * residual[i, h]

in float32, rounded once to bfloat16. The sum runs over the first index of comb.
"""

from bitgate.kernels.mhc import data, fixtures
from bitgate.kernels.mhc.contract import MHC_C1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec

INPUTS = (
    TensorSpec(name="x", dtype="bfloat16", axes=("tokens", "hidden")),
    TensorSpec(name="residual", dtype="bfloat16", axes=("tokens", "streams", "hidden")),
    TensorSpec(name="post", dtype="float32", axes=("tokens", "streams")),
    TensorSpec(name="comb", dtype="float32", axes=("tokens", "streams", "streams")),
)

MHC_POST = Kernel(
    op="mhc_post",
    summary="expand a layer's output into the four residual streams and mix them",
    definition=str(__doc__),
    tensors=(
        *INPUTS,
        TensorSpec(
            name="residual_out", dtype="bfloat16", axes=("tokens", "streams", "hidden"), role="out"
        ),
    ),
    constants=(),
    make_inputs=data.post_inputs,
    integer_cases=fixtures.post_cases,
    implementations=(
        Implementation(
            name="mhc_post-replay",
            op="mhc_post",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.replay:mhc_post",
            summary="the contract's order in plain torch; slow, the truth",
        ),
        Implementation(
            name="mhc_post-triton",
            op="mhc_post",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.post_triton:mhc_post",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
        Implementation(
            name="mhc_post-numba",
            op="mhc_post",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu",),
            target="bitgate.kernels.mhc.fast:mhc_post",
            summary="one pass per token, compiled by numba",
        ),
    ),
    references={MHC_C1.name: "mhc_post-replay"},
    suites=data.suites("mhc_post"),
)
