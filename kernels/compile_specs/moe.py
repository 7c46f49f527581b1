"""The kernels of routing, alignment, activation and combination."""

from bitgate.kernels.compile_specs.base import CompileSpec, pointers

_MOE = "bitgate.kernels.moe"

MOE: tuple[CompileSpec, ...] = (
    *(
        CompileSpec(
            name=f"moe_route_{name}",
            target=f"{_MOE}.route_triton:route_kernel",
            arguments=(
                *pointers("logits correction_bias topk_weights", "fp32"),
                *pointers("topk_ids", "i64"),
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
            *pointers("logits", "fp32"),
            *pointers("table token_ids", "i64"),
            *pointers("topk_weights", "fp32"),
            *pointers("topk_ids", "i64"),
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
                *pointers("ids", "i64"),
                *pointers("expert_map counts sorted_pairs expert_ids", "i32"),
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
                *pointers("ids", "i64"),
                *pointers("expert_map counts sorted_pairs expert_ids padded", "i32"),
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
            name=name,
            target=f"{_MOE}.act_triton:act_kernel",
            arguments=(
                *pointers("gate_up out", "i16"),
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
                *pointers("y", "i16"),
                *pointers("topk_ids", "i64"),
                *pointers("out", "i16"),
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
            *pointers("codes scales", "u8"),
            *pointers("out", "i16"),
            ("rows", "i32:16"),
            ("width", "i32:16"),
        ),
        constants=(("ROWS", 1), ("BLOCK", 1024)),
    ),
    CompileSpec(
        name="moe_combine_weighted",
        target=f"{_MOE}.combine_weighted_triton:combine_weighted_kernel",
        arguments=(
            *pointers("y", "i16"),
            *pointers("topk_ids", "i64"),
            *pointers("topk_weights", "fp32"),
            *pointers("out", "i16"),
            ("tokens", "i32"),
            ("hidden", "i32:16"),
            ("experts", "i32:16"),
            ("zero", "i32"),
        ),
        constants=(("TOP_K", 8), ("ROWS", 1), ("BLOCK", 1024)),
    ),
)
