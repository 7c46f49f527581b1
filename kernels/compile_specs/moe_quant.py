"""The quantisers."""

from bitgate.kernels.compile_specs.base import CompileSpec, pointers

_MOE = "bitgate.kernels.moe"

MOE_QUANT: tuple[CompileSpec, ...] = (
    *(
        CompileSpec(
            name=f"moe_quant_{name}",
            target=f"{_MOE}.quant_triton:group_kernel",
            arguments=(
                *pointers("x", "i16"),
                *pointers("codes", "i8"),
                *pointers("scales", "fp32"),
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
            *pointers("x", "i16"),
            *pointers("largest", "i32"),
            ("count", "i32:16"),
        ),
        constants=(("BLOCK", 4096),),
    ),
    *(
        CompileSpec(
            name=f"moe_quant_{name}",
            target=f"{_MOE}.quant_whole_triton:whole_kernel",
            arguments=(
                *pointers("x", "i16"),
                *pointers("largest", "i32"),
                *pointers("codes", "i8"),
                *pointers("scales", "fp32"),
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
            *pointers("w", "i16"),
            *pointers("codes", "i8"),
            *pointers("scales", "fp32"),
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
                *pointers("gate_up", "i16"),
                *pointers("codes", "i8"),
                *pointers("scales", "fp32"),
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
