"""Which Triton kernels are compiled for the compile check, and at which point; add yours here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec:
    """One kernel at one point: `target` is module:function, below `root` where that is given.

    `arguments` are (name, type) with Triton's type names; `:16` says that a pointer or an integer
    is a multiple of 16, as launches find it. `constants` are the compile-time arguments. Without
    `num_stages` it is the backend's default.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int | None = None
    canonical: bool = True
    root: str | None = None


def _pointers(names: str, kind: str) -> tuple[tuple[str, str], ...]:
    """Aligned pointers to elements of one kind; `names` are parted by spaces."""
    return tuple((name, f"*{kind}:16") for name in names.split())


_MHC = "bitgate.kernels.mhc"
_MOE = "bitgate.kernels.moe"

SPECS: tuple[CompileSpec, ...] = (
    CompileSpec(
        name="mhc_dot_sq",
        target=f"{_MHC}.pre_triton:dot_sq_kernel",
        arguments=(
            *_pointers("residual", "i16"),
            *_pointers("fn dot sq", "fp32"),
            ("size", "i32:16"),
        ),
    ),
    CompileSpec(
        name="mhc_finish",
        target=f"{_MHC}.pre_triton:finish_kernel",
        arguments=(
            *_pointers("dot sq scale base pre post comb", "fp32"),
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
            *_pointers("residual", "i16"),
            *_pointers("pre", "fp32"),
            *_pointers("layer_input", "i16"),
            ("hidden", "i32:16"),
        ),
        constants=(("BLOCK", 1024),),
    ),
    CompileSpec(
        name="mhc_post",
        target=f"{_MHC}.post_triton:post_kernel",
        arguments=(
            *_pointers("x residual", "i16"),
            *_pointers("post comb", "fp32"),
            *_pointers("residual_out", "i16"),
            ("hidden", "i32:16"),
        ),
        constants=(("BLOCK", 1024),),
    ),
    CompileSpec(
        name="mhc_post_dot",
        target=f"{_MHC}.post_pre_triton:post_dot_kernel",
        arguments=(
            *_pointers("x residual", "i16"),
            *_pointers("post comb fn", "fp32"),
            *_pointers("residual_out", "i16"),
            *_pointers("dot sq", "fp32"),
            ("hidden", "i32:16"),
        ),
    ),
    *(
        CompileSpec(
            name=f"moe_route_{name}",
            target=f"{_MOE}.route_triton:route_kernel",
            arguments=(
                *_pointers("logits correction_bias topk_weights", "fp32"),
                *_pointers("topk_ids", "i64"),
                ("tokens", "i32"),
                ("experts", "i32:16"),
                ("top_k", "i32"),
                ("groups", "i32"),
                ("keep_groups", "i32"),
                ("size", "i32"),
                ("renormalize", "i32"),
                ("scale", "fp32"),
                ("zero", "i32"),
            ),
            constants=(
                ("SCORE", score),
                ("RANK", rank),
                ("ROWS", 4),
                ("WIDTH", 256),
                ("LEVELS", 8),
                ("GROUPS", 16),
                ("SLOTS", 16),
            ),
        )
        for name, score, rank in (
            ("softmax", 0, 0),
            ("sigmoid", 1, 0),
            ("sqrt_softplus", 2, 0),
            ("softmax_selected", 3, 0),
            ("softmax_max", 0, 1),
            ("sigmoid_top2", 1, 2),
        )
    ),
    CompileSpec(
        name="moe_route_hash",
        target=f"{_MOE}.route_hash_triton:route_hash_kernel",
        arguments=(
            *_pointers("logits", "fp32"),
            *_pointers("table token_ids", "i64"),
            *_pointers("topk_weights", "fp32"),
            *_pointers("topk_ids", "i64"),
            ("tokens", "i32"),
            ("experts", "i32:16"),
            ("vocab", "i32"),
            ("top_k", "i32"),
            ("renormalize", "i32"),
            ("scale", "fp32"),
            ("zero", "i32"),
        ),
        constants=(("SCORE", 2), ("ROWS", 4), ("WIDTH", 256), ("LEVELS", 8), ("SLOTS", 16)),
    ),
    *(
        CompileSpec(
            name=f"moe_align_count{name}",
            target=f"{_MOE}.align_triton:align_count_kernel",
            arguments=(
                *_pointers("ids", "i64"),
                *_pointers("expert_map counts sorted_pairs expert_ids", "i32"),
                ("pairs", "i32:16"),
                ("blocks", "i32"),
                ("experts", "i32:16"),
            ),
            constants=(
                ("BLOCK_M", 64),
                ("DROPS", drops),
                ("TAIL", tail),
                ("ROWS", 1),
                ("CHUNK", 1024),
            ),
        )
        for name, drops, tail in (("", 1, -1), ("_kept", 0, 0))
    ),
    *(
        CompileSpec(
            name=f"moe_align_place{name}",
            target=f"{_MOE}.align_triton:align_place_kernel",
            arguments=(
                *_pointers("ids", "i64"),
                *_pointers("expert_map counts sorted_pairs expert_ids padded", "i32"),
                ("pairs", "i32:16"),
                ("experts", "i32:16"),
            ),
            constants=(
                ("BLOCK_M", 64),
                ("DROPS", drops),
                ("EXPERTS", 256),
                ("ROWS", 1),
                ("CHUNK", 1024),
            ),
        )
        for name, drops in (("", 1), ("_kept", 0))
    ),
    *(
        CompileSpec(
            name=f"moe_gemm_{block_m}{'_acc' if stored else ''}",
            target=f"{_MOE}.gemm_triton:gemm_kernel",
            arguments=(
                *_pointers("a w", "bf16"),
                *_pointers("sorted_pairs expert_ids padded", "i32"),
                *_pointers("weights bias", "fp32"),
                *_pointers("out", "i16"),
                *_pointers("acc_out", "fp32"),
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
                *_pointers("a w", "bf16"),
                *_pointers("sorted_pairs expert_ids padded", "i32"),
                *_pointers("out", "i16"),
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
                *_pointers("a", "fp8e4nv"),
                *_pointers("a_scales", "fp32"),
                *_pointers("w", "fp8e4nv"),
                *_pointers("w_scales", "fp32"),
                *_pointers("sorted_pairs expert_ids padded", "i32"),
                *_pointers("weights bias", "fp32"),
                *_pointers("out", "i16"),
                *_pointers("acc_out", "fp32"),
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
    *(
        CompileSpec(
            name=name,
            target=f"{_MOE}.act_triton:act_kernel",
            arguments=(
                *_pointers("gate_up out", "i16"),
                ("rows", "i32"),
                ("intermediate", "i32:16"),
                ("limit", "fp32"),
                ("alpha", "fp32"),
                ("zero", "i32"),
            ),
            constants=(
                ("KIND", kind),
                ("ROUND_BETWEEN", round_between),
                ("ROWS", 1),
                ("BLOCK", 1024),
            ),
        )
        for name, kind, round_between in (
            ("moe_act", 0, 1),
            ("moe_act_product", 0, 0),
            ("moe_act_oai", 1, 0),
            ("moe_act_step", 2, 0),
            ("moe_act_step_rounded", 2, 1),
        )
    ),
    *(
        CompileSpec(
            name=name,
            target=f"{_MOE}.combine_triton:combine_kernel",
            arguments=(
                *_pointers("y", "i16"),
                *_pointers("topk_ids", "i64"),
                *_pointers("out", "i16"),
                ("tokens", "i32"),
                ("hidden", "i32:16"),
                ("experts", "i32:16"),
            ),
            constants=(("TOP_K", top_k), ("STEP", step), ("ROWS", 1), ("BLOCK", 1024)),
        )
        for name, top_k, step in (("moe_combine", 8, 0), ("moe_combine_step", 4, 1))
    ),
    CompileSpec(
        name="moe_dequant_mxfp4",
        target=f"{_MOE}.mxfp4_triton:dequant_mxfp4_kernel",
        arguments=(
            *_pointers("codes scales", "u8"),
            *_pointers("out", "i16"),
            ("rows", "i32:16"),
            ("width", "i32:16"),
        ),
        constants=(("ROWS", 1), ("BLOCK", 1024)),
    ),
    CompileSpec(
        name="moe_combine_weighted",
        target=f"{_MOE}.combine_weighted_triton:combine_weighted_kernel",
        arguments=(
            *_pointers("y", "i16"),
            *_pointers("topk_ids", "i64"),
            *_pointers("topk_weights", "fp32"),
            *_pointers("out", "i16"),
            ("tokens", "i32"),
            ("hidden", "i32:16"),
            ("experts", "i32:16"),
            ("zero", "i32"),
        ),
        constants=(("TOP_K", 8), ("ROWS", 1), ("BLOCK", 1024)),
    ),
    *(
        CompileSpec(
            name=f"moe_quant_{name}",
            target=f"{_MOE}.quant_triton:group_kernel",
            arguments=(
                *_pointers("x", "i16"),
                *_pointers("codes", "i8"),
                *_pointers("scales", "fp32"),
                ("rows", "i32"),
                ("k", "i32:16"),
                ("group", "i32:16"),
                ("amax_floor", "fp32"),
                ("scale_floor", "fp32"),
            ),
            constants=(
                ("TILE", tile),
                ("WIDTH", width),
                ("UE8M0", ue8m0),
                ("RECIPROCAL", reciprocal),
            ),
            num_warps=num_warps,
        )
        for name, tile, width, ue8m0, reciprocal, num_warps in (
            ("group", 8, 128, 0, 0, 4),
            ("group_reciprocal", 8, 128, 0, 1, 4),
            ("group_ue8m0", 8, 128, 1, 0, 4),
            ("token", 1, 8192, 0, 0, 16),
        )
    ),
    CompileSpec(
        name="moe_quant_amax",
        target=f"{_MOE}.quant_whole_triton:amax_kernel",
        arguments=(
            *_pointers("x", "i16"),
            *_pointers("largest", "i32"),
            ("count", "i32:16"),
        ),
        constants=(("BLOCK", 4096),),
    ),
    *(
        CompileSpec(
            name=f"moe_quant_{name}",
            target=f"{_MOE}.quant_whole_triton:whole_kernel",
            arguments=(
                *_pointers("x", "i16"),
                *_pointers("largest", "i32"),
                *_pointers("codes", "i8"),
                *_pointers("scales", "fp32"),
                ("count", "i32:16"),
                ("given", "fp32"),
            ),
            constants=(("BLOCK", 4096), ("STATIC", static), ("UE8M0", 0), ("RECIPROCAL", 1)),
        )
        for name, static in (("tensor", 0), ("static", 1))
    ),
    CompileSpec(
        name="moe_quant_weight",
        target=f"{_MOE}.quant_weight_triton:block_kernel",
        arguments=(
            *_pointers("w", "i16"),
            *_pointers("codes", "i8"),
            *_pointers("scales", "fp32"),
            ("n", "i32:16"),
            ("k", "i32:16"),
            ("amax_floor", "fp32"),
        ),
        constants=(("BLOCK_N", 128), ("BLOCK_K", 128), ("UE8M0", 0), ("RECIPROCAL", 1)),
        num_warps=8,
    ),
    *(
        CompileSpec(
            name=name,
            target=f"{_MOE}.act_quant_triton:act_quant_kernel",
            arguments=(
                *_pointers("gate_up", "i16"),
                *_pointers("codes", "i8"),
                *_pointers("scales", "fp32"),
                ("rows", "i32"),
                ("intermediate", "i32:16"),
                ("group", "i32:16"),
                ("limit", "fp32"),
                ("alpha", "fp32"),
                ("amax_floor", "fp32"),
                ("scale_floor", "fp32"),
                ("zero", "i32"),
            ),
            constants=(
                ("KIND", 0),
                ("ROUND_BETWEEN", rounded),
                ("ROUND_PRODUCT", rounded),
                ("TILE", 8),
                ("WIDTH", 128),
                ("UE8M0", 0),
                ("RECIPROCAL", 0),
            ),
        )
        for name, rounded in (("moe_act_quant", 1), ("moe_act_quant_product", 0))
    ),
)
