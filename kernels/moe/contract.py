"""The arithmetic orders of the experts: `moe-bf16/1`, `moe-fp8/1` and the model's own loop.

`moe-bf16/1`, from the router's logits to the reduced rows:

1. Routing is `moe_route`'s: float32 scores, the largest chosen, of equal ones the lower expert;
   weights from the scores without the bias, divided by their sum over the slots in order where the
   model does so, then times the scale. A score that is NaN or infinite counts as 0.
2. A pair is token * top_k + slot. Pairs are grouped by expert and ascend within it; every group is
   filled up to a multiple of block_m with the padding value tokens * top_k. Pairs whose expert is
   below 0, not below the number of experts or on another rank are dropped. A block without pairs
   has expert -1.
3. A matmul starts at +0 in float32 and runs over K in ascending steps of block_k: each step is one
   product of tiles padded with +0 to [block_m, block_k] and [block_k, block_n], then one addition.
   What a step is has a name, and a claim never spans two of them. On the CPU it is `ieee-tile`:
   the product is the host BLAS's float32 product of C-ordered tiles, and the addition is IEEE's.
   On a GPU it is a chain of the device's own matrix instructions, ascending in K as well.
4. The bias of an expert, where it has one, is added to the accumulator in float32. Then the routing
   weight, in float32, multiplies the sum of the second matmul (of the first, where a model weights
   the input); no multiply is contracted with an add. Then follows the one rounding to bfloat16, to
   nearest even; a NaN becomes the one canonical NaN. Rows of dropped pairs are +0.
5. The gate half is clamped above and the up half on both sides. silu is gate / (1 + exp(-gate)) in
   float32 with the exp of `kernels.arithmetic`, rounded to bfloat16, then multiplied by up and
   rounded again.
6. A token's rows are added in float32 from +0, slots ascending, dropped pairs left out, and rounded
   to bfloat16 once.

Inputs must be finite. What the order leaves to the host makes the contract neither portable nor
batch invariant: OpenBLAS sums a row of a tile in another way at another place of the tile on some
processors (its Haswell and Zen kernels; its Nehalem, Sandy Bridge and Skylake-X kernels do not),
and a row's place depends on the rows before it. The bits of `ieee-tile` depend on block_k, too, so
implementations agree only at one block_k; the catalogue's use DEFAULT_CONFIG.

`moe-fp8/1` is the same with both matmuls over codes of float8_e4m3fn and their float32 scales:

1. What a matmul is given is quantised by `moe_quant`: x before the first, the activation, which
   was rounded to bfloat16, before the second. The scales of a row come before those of a weight
   wherever both multiply. A scale of the whole tensor (its scheme tensor) makes each token's bits
   depend on all tokens of the call: a contract with it is not batch invariant. Scales of tokens and
   of groups do not.
2. Scales by groups (scheme block of `moe_gemm_fp8`): a step is `promotion_interval` long, its
   product starts at +0, is multiplied by the scale of the row, then by that of the weight, and
   added to the accumulator: mul-mul-add, each of the three rounded in float32. On a device whose
   float8 instructions keep fewer bits (Hopper: 13), the interval is what bounds their error.
3. Scales of whole rows or tensors (scheme whole): the accumulator is that of rule 3 above, and the
   two scales multiply it before the bias.
"""

from dataclasses import dataclass
from typing import Final

from bitgate.kernels.arguments import shown
from bitgate.kernels.spec import Contract
from bitgate.records.errors import UsageError

MOE_BF16_1: Final = Contract(
    name="moe-bf16/1",
    summary="pairs sorted by expert, tiled matmuls in float32 over ascending K, bf16 after each "
    "matmul, after silu and after the gated product, routing weight before the second matmul's "
    "rounding, slots added in float32 and rounded once",
    batch_invariant=False,
    cross_device=False,
)
MOE_TORCH_1: Final = Contract(
    name="moe-torch/1",
    summary="torch's own bf16 matmul per expert over slot-major rows; bf16 after each matmul, "
    "after silu, after the gated product, after the routing weight and after each addition, "
    "experts ascending",
    # torch picks another order of additions inside the matmul by row count, and by host.
    batch_invariant=False,
    cross_device=False,
)
MOE_FP8_1: Final = Contract(
    name="moe-fp8/1",
    summary="the order of moe-bf16/1 with both matmuls over float8_e4m3fn: rows and activations "
    "are quantised by `moe_quant`, by integer arithmetic to nearest even, at most 448",
    batch_invariant=False,
    cross_device=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """How a grouped matmul is cut into tiles and launched.

    block_m, block_n and block_k are the extents of a tile in rows, columns and summed elements;
    only block_k belongs to the order. group_m row blocks are computed side by side, so that they
    share the weights in the cache. num_warps and num_stages are the launch's.

    Raises:
        UsageError: a block is no power of two of at least 16, num_warps none up to 16, or group_m
            or num_stages is below 1.
    """

    block_m: int = 16
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            # Matrix instructions take 16 rows, columns and elements at least.
            require_power_of_two("TileConfig", name, getattr(self, name), 16, 1024)
        require_power_of_two("TileConfig", "num_warps", self.num_warps, 1, 16)
        for name in ("group_m", "num_stages"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"TileConfig: expected {name} of at least 1, got {getattr(self, name)}"
                )


def require_power_of_two(where: str, name: str, value: int, low: int, high: int) -> None:
    """Raise UsageError unless an integer is a power of two from `low` to `high`."""
    if type(value) is not int or not low <= value <= high or value & (value - 1):
        raise UsageError(
            f"{where}: expected {name} to be a power of two from {low} to {high}, got "
            f"{shown(value)}"
        )


def promotion_interval(block_k: int, group_n: int, group_k: int) -> int:
    """Elements of K that are summed before scales and float32 come in, as vLLM clamps its tile.

    All three are powers of two, so that no interval spans two groups.
    """
    return min(block_k, group_n, group_k)


DEFAULT_CONFIG: Final = TileConfig()
# As deep as the usual block of a weight's scales, vLLM's default under them.
FP8_CONFIG: Final = TileConfig(block_k=128)
