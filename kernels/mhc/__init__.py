"""Manifold-constrained hyper-connections: `mhc_pre`, `mhc_post` and the fused `mhc_post_pre`.

A table of contents:

    contract    the orders `mhc-c1` and `mhc-torch/1`, and what arguments must look like
    replay      the truth of mhc-c1, stage by stage, in plain torch
    reference   plain torch in float32 (mhc-torch/1) and the float64 oracle
    data        inputs made from integers; fixtures: integer-exact cases
    pre, post, post_pre                      the definitions: MHC_PRE, MHC_POST, MHC_POST_PRE
    pre_triton, post_triton, post_pre_triton the canonical Triton kernels and their host functions
    fast        the fused implementation for CPUs; fast_loops: its half that numba compiles
"""
