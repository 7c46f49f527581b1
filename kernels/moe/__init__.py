"""Fused mixture-of-experts: table of contents.

- `experts_kernel`: MOE_EXPERTS, the definition. Start here.
- `contract`: the orders `moe-bf16/1` and `moe-fp8/1`, rule by rule, and `moe-torch/1`; the tiles of
  a matmul.
- `experts`: `experts_loop` and `experts_sorted`, both of `moe-torch/1`.
- `staged`: the pipeline of both and its boundaries, with settings for what other models and engines
  do in it; `staged_reference` runs it by the references of its stages (`experts_tile`,
  `experts_fp8_tile`), `staged_triton` by their kernels (`experts_triton`, `experts_fp8_triton`, and
  `experts_fp8_fused` with the fused quantiser).
- `experts_fp8`: MOE_EXPERTS_FP8, the definition over float8 weights; `experts_fp8_data`,
  `experts_fp8_oracle` as below.
- `experts_data`, `experts_fixtures`: inputs made from integers; fixtures that are exact in any
  order.
- `experts_oracle`: float64 values with an error bound for either contract; `experts_dense`: the
  function alone in float32 or float64, for any activation, bias and place of the weights.
- `fused_triton`: the pipeline with the activation as an epilogue of the first matmul
  (`experts_fused`).
- `route`, `route_hash`, `align`, `gemm`, `gemm_fp8`, `act`, `combine`: the stages. Each has its
  definition there, its inputs and fixtures in `*_data` (`route_fixtures`), the truth in
  `*_reference`, with a float64 value and an error bound where it rounds (`route_oracle`), and its
  Triton kernels in `*_triton`. But for the matmuls they have the same bits on every device.
- `route_rules`: what routers differ in. `align_layouts`: what the engines' alignments differ in, as
  data; `align_sets` compares alignments whose order inside a group is free.
- `pair_matmul`: what the calls of both grouped matmuls share.
- `roundings`: where each engine and version rounds, as data, and who may be compared.
- `quant`, `quant_weight`: rows and weights in float8_e4m3fn with scales, of `moe-fp8/1`; what the
  engines' quantisers differ in is data in `quant_rules`. `act_quant`: `act` and `quant` in one.
- `combine_weighted`: the sum where the routing weight multiplies in it, of `moe-gather/1`.
- `mxfp4`: 4-bit weights as the bfloat16 numbers that they are, of `mxfp4/1`.
- `configs`, `configs_vllm`: tuned tile files and what an engine makes of them; `tiles`: their way
  into an implementation that takes a TileConfig.
- `arguments`: what the experts refuse.
"""

from bitgate.kernels.moe.contract import MOE_BF16_1, MOE_FP8_1, MOE_TORCH_1
from bitgate.kernels.moe.experts_kernel import MOE_EXPERTS

__all__ = ["MOE_BF16_1", "MOE_EXPERTS", "MOE_FP8_1", "MOE_TORCH_1"]
