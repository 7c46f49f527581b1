"""The kernels of the hyper-connections."""

from bitgate.kernels.compile_specs.base import CompileSpec, pointers

_MHC = "bitgate.kernels.mhc"

MHC: tuple[CompileSpec, ...] = (
    CompileSpec(
        name="mhc_dot_sq",
        target=f"{_MHC}.pre_triton:dot_sq_kernel",
        arguments=(
            *pointers("residual", "i16"),
            *pointers("fn dot sq", "fp32"),
            ("size", "i32:16"),
        ),
    ),
    CompileSpec(
        name="mhc_finish",
        target=f"{_MHC}.pre_triton:finish_kernel",
        arguments=(
            *pointers("dot sq scale base pre post comb", "fp32"),
            ("tokens", "i32"),
            ("size", "fp32"),
            ("rms_eps", "fp32"),
            ("pre_eps", "fp32"),
            ("sink_eps", "fp32"),
            ("post_mult", "fp32"),
            ("sinkhorn_iters", "i32"),
            ("zero", "i32"),
        ),
        constants=(("BLOCK", 128),),
    ),
    CompileSpec(
        name="mhc_apply_pre",
        target=f"{_MHC}.pre_triton:apply_pre_kernel",
        arguments=(
            *pointers("residual", "i16"),
            *pointers("pre", "fp32"),
            *pointers("layer_input", "i16"),
            ("hidden", "i32:16"),
        ),
        constants=(("BLOCK", 1024),),
    ),
    CompileSpec(
        name="mhc_post",
        target=f"{_MHC}.post_triton:post_kernel",
        arguments=(
            *pointers("x residual", "i16"),
            *pointers("post comb", "fp32"),
            *pointers("residual_out", "i16"),
            ("hidden", "i32:16"),
        ),
        constants=(("BLOCK", 1024),),
    ),
    CompileSpec(
        name="mhc_post_dot",
        target=f"{_MHC}.post_pre_triton:post_dot_kernel",
        arguments=(
            *pointers("x residual", "i16"),
            *pointers("post comb fn", "fp32"),
            *pointers("residual_out", "i16"),
            *pointers("dot sq", "fp32"),
            ("hidden", "i32:16"),
        ),
    ),
)
