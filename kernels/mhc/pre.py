"""The definition of `mhc_pre`: from the residual streams to a layer's input and its mixes.

With n = 4 streams, flattened stream-major to 4 * hidden numbers per token (float32 arithmetic):

    mixes = fn . flat * rsqrt(mean(flat^2) + rms_eps)              24 = 4 pre, 4 post, 16 comb
    pre   = sigmoid(mixes * scale[0] + base) + hc_eps
    post  = sigmoid(mixes * scale[1] + base) * post_mult
    comb  = sinkhorn(mixes * scale[2] + base)                      row-major 4 x 4
    layer_input[h] = sum_i pre[i] * residual[i, h]                 rounded once to bfloat16

Sinkhorn: softmax over rows plus hc_eps, divided by (column sum + hc_eps), then sinkhorn_iters - 1
times by (row sum + hc_eps) and by (column sum + hc_eps). The paper is Xie et al., 2026; the
constants of DeepSeek-V4 are the defaults in `constants`.
"""

from bitgate.kernels.mhc import data, fixtures
from bitgate.kernels.mhc.contract import MHC_C1, MHC_TORCH_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec

CONSTANTS = (
    ("hc_eps", 1e-6),
    ("post_mult", 2.0),
    ("rms_eps", 1e-6),
    ("sinkhorn_iters", 20),
)

MAPPING = (
    TensorSpec(name="fn", dtype="float32", axes=("mixes", "streams*hidden"), role="param"),
    TensorSpec(name="scale", dtype="float32", axes=("kinds",), role="param"),
    TensorSpec(name="base", dtype="float32", axes=("mixes",), role="param"),
)

MHC_PRE = Kernel(
    op="mhc_pre",
    summary="collapse four residual streams into a layer's input; compute the mixes for its output",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="residual", dtype="bfloat16", axes=("tokens", "streams", "hidden")),
        *MAPPING,
        TensorSpec(name="post", dtype="float32", axes=("tokens", "streams"), role="out"),
        TensorSpec(name="comb", dtype="float32", axes=("tokens", "streams", "streams"), role="out"),
        TensorSpec(name="layer_input", dtype="bfloat16", axes=("tokens", "hidden"), role="out"),
    ),
    constants=CONSTANTS,
    make_inputs=data.pre_inputs,
    integer_cases=fixtures.pre_cases,
    implementations=(
        Implementation(
            name="mhc_pre-replay",
            op="mhc_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.replay:mhc_pre",
            summary="the contract's order in plain torch; slow, the truth",
        ),
        Implementation(
            name="mhc_pre-triton",
            op="mhc_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.pre_triton:mhc_pre",
            summary="three Triton kernels; on a CPU through Triton's interpreter",
        ),
        Implementation(
            name="mhc_pre-numba",
            op="mhc_pre",
            contract=MHC_C1.name,
            tier="canonical",
            devices=("cpu",),
            target="bitgate.kernels.mhc.fast:mhc_pre",
            summary="one fused pass per token, compiled by numba",
        ),
        Implementation(
            name="mhc_pre-torch",
            op="mhc_pre",
            contract=MHC_TORCH_1.name,
            tier="foreign",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.mhc.reference:mhc_pre",
            summary="the operations that transformers runs, in its order",
        ),
    ),
    references={MHC_C1.name: "mhc_pre-replay", MHC_TORCH_1.name: "mhc_pre-torch"},
    suites=data.suites("mhc_pre"),
)
