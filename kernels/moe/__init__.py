"""Fused mixture-of-experts: table of contents.

- `experts_kernel`: MOE_EXPERTS, the definition, and MOE_TORCH_1, its contract. Start here.
- `experts`: the two implementations, `experts_loop` and `experts_sorted`.
- `experts_data`, `experts_fixtures`: inputs made from integers; fixtures that are exact in any
  order.
- `experts_oracle`: float64 values with an error bound.
- `route`, `act`, `combine`: stages of `moe-bf16/1` with the same bits on every device. Each has its
  definition there, its inputs and fixtures in `*_data`, the truth in torch and a float64 value with
  an error bound in `*_reference`, and its Triton kernel in `*_triton`.
"""

from bitgate.kernels.moe.contract import MOE_BF16_1, MOE_TORCH_1
from bitgate.kernels.moe.experts_kernel import MOE_EXPERTS

__all__ = ["MOE_BF16_1", "MOE_EXPERTS", "MOE_TORCH_1"]
