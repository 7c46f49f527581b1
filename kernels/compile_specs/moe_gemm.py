"""The experts' grouped matmuls: bfloat16, float8, and with the activation as epilogue."""

from bitgate.kernels.compile_specs.base import CompileSpec, pointers

_MOE = "bitgate.kernels.moe"

MOE_GEMM: tuple[CompileSpec, ...] = (
    *(
        CompileSpec(
            name=f"moe_gemm_{block_m}{'_acc' if stored else ''}",
            target=f"{_MOE}.gemm_triton:gemm_kernel",
            arguments=(
                *pointers("a w", "bf16"),
                *pointers("sorted_pairs expert_ids padded", "i32"),
                *pointers("weights bias", "fp32"),
                *pointers("out", "i16"),
                *pointers("acc_out", "fp32"),
                ("pairs", "i32:16"),
                ("experts", "i32:16"),
                ("k", "i32:16"),
                ("n", "i32:16"),
                ("a_row", "i32:16"),
                ("w_expert", "i32:16"),
                ("w_row", "i32:16"),
                ("top_k", "i32"),
                ("blocks", "i32"),
            ),
            constants=(
                ("BLOCK_M", block_m),
                ("BLOCK_N", 128),
                ("BLOCK_K", 64),
                ("GROUP_M", 8),
                ("APPLY_WEIGHTS", 1),
                ("BIAS", bias),
                ("STORE_ACC", stored),
            ),
            num_stages=3,
            canonical=False,
        )
        # 16 rows take another matrix instruction than 64; the store of the accumulator, none.
        for block_m, stored, bias in ((16, 0, 0), (64, 0, 0), (64, 1, 1))
    ),
    *(
        CompileSpec(
            name=f"moe_gemm_act_{block_m}",
            target=f"{_MOE}.fused_triton:gemm_act_kernel",
            arguments=(
                *pointers("a w", "bf16"),
                *pointers("sorted_pairs expert_ids padded", "i32"),
                *pointers("out", "i16"),
                ("pairs", "i32:16"),
                ("experts", "i32:16"),
                ("k", "i32:16"),
                ("intermediate", "i32:16"),
                ("a_row", "i32:16"),
                ("w_expert", "i32:16"),
                ("w_row", "i32:16"),
                ("top_k", "i32"),
                ("blocks", "i32"),
                ("limit", "fp32"),
                ("alpha", "fp32"),
                ("zero", "i32"),
            ),
            constants=(
                ("BLOCK_M", block_m),
                ("BLOCK_N", 128),
                ("BLOCK_K", 64),
                ("GROUP_M", 8),
                ("KIND", 0),
                ("ROUND_BETWEEN", 1),
            ),
            num_stages=3,
            canonical=False,
        )
        for block_m in (16, 64)
    ),
    *(
        CompileSpec(
            name=f"moe_gemm_fp8_{name}",
            target=f"{_MOE}.gemm_fp8_triton:gemm_fp8_kernel",
            arguments=(
                *pointers("a", "fp8e4nv"),
                *pointers("a_scales", "fp32"),
                *pointers("w", "fp8e4nv"),
                *pointers("w_scales", "fp32"),
                *pointers("sorted_pairs expert_ids padded", "i32"),
                *pointers("weights bias", "fp32"),
                *pointers("out", "i16"),
                *pointers("acc_out", "fp32"),
                ("pairs", "i32:16"),
                ("experts", "i32:16"),
                ("k", "i32:16"),
                ("n", "i32:16"),
                ("a_row", "i32:16"),
                ("w_expert", "i32:16"),
                ("w_row", "i32:16"),
                ("scale_row", "i32:16"),
                ("scale_expert", "i32:16"),
                ("scale_column", "i32:16"),
                ("group_n", "i32:16"),
                ("group_k", "i32:16"),
                ("top_k", "i32"),
                ("blocks", "i32"),
            ),
            constants=(
                ("BLOCK_M", block_m),
                ("BLOCK_N", 64),
                ("BLOCK_K", 64),
                ("GROUP_M", 8),
                ("PROMOTE", promote),
                ("ACCUMULATE", accumulate),
                ("APPLY_WEIGHTS", 1),
                ("BIAS", 0),
                ("STORE_ACC", 0),
            ),
            num_stages=3,
            canonical=False,
        )
        # 16 rows multiply as fp16, 64 as float8; unpromoted sums stay in the instruction. Larger
        # tiles take minutes for gfx942, which has other float8 numbers and converts these.
        for name, block_m, promote, accumulate in (
            ("16", 16, 1, 0),
            ("64", 64, 1, 0),
            ("64_fma", 64, 1, 1),
            ("64_whole", 64, 0, 0),
        )
    ),
)
