"""The experts of vllm-xpu-kernels on an Intel GPU, against ours.

Written after its public sources (fused_moe_interface.py and csrc/moe, main, summer of 2026) and
tried with stand-ins only: no Intel GPU was at hand. Its rounding contract is one of its own: the
routing weight multiplies the rounded row of the second product, in the gather, so that bits equal
to `moe-bf16/1` are not to be had. What is compared:

- our order of its own operators (remap, product, activation, product, gather) with what its class
  passes on the way and returns, bit for bit; rows by pair, since atomics hand out their places;
- both with float64, within the bound of `moe-torch/1`, which rounds wherever this order does, and
  at more places besides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch
from torch import Tensor

from bitgate.kernels.moe.contract import MOE_TORCH_1
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.parity.suites.bounded import within
from bitgate.parity.suites.cases import NAME, Case, cases, make
from bitgate.parity.suites.composition import Inputs
from bitgate.parity.suites.judge import shapes
from bitgate.parity.suites.results import CaseResult, Checked, SuiteResult, agree
from bitgate.records.errors import EnvironmentUnfit

PACKAGE: Final = "vllm_xpu_kernels"
CLAIM: Final = (
    "bitwise with the engine's own path at the same operators; both within the bound of "
    f"{MOE_TORCH_1.name} around float64"
)
_NO_LIMIT: Final = float("inf")
Rows = dict[str, Tensor]


@dataclass(slots=True)
class Passed:
    """What passed the engine's operators in one call.

    Attributes:
        rows: rows by place, how many each expert has, and the place of every pair.
        named: the names of the arguments of remap, which grew over time.
    """

    rows: Rows = field(default_factory=dict)
    named: tuple[str, ...] = ()


def run() -> SuiteResult:
    """Run the cases in bfloat16 that its operators take, at full size.

    Raises:
        EnvironmentUnfit: no XPU that torch sees, or no vllm-xpu-kernels.
    """
    if not torch.xpu.is_available():
        raise EnvironmentUnfit(
            "expected an Intel GPU, got none that this torch sees; run on the node itself, with "
            "the torch of its XPU wheels"
        )
    try:
        experts: Callable[..., Any] = import_module(f"{PACKAGE}.fused_moe_interface").XpuFusedMoe
        found = version(PACKAGE)
    except (ModuleNotFoundError, PackageNotFoundError, AttributeError) as error:
        raise EnvironmentUnfit(
            f"expected vllm-xpu-kernels with the class XpuFusedMoe, got: {error}; run inside the "
            "engine's XPU image"
        ) from error
    return SuiteResult(
        suite=NAME,
        device="xpu",
        path="XpuFusedMoe",
        engine=f"vllm-xpu-kernels {found}",
        cases=tuple(
            judge(case, experts, "xpu", found)
            for case in cases(full=True)
            if case.block_shape is None
        ),
        facts={
            "torch": torch.__version__,
            "device": torch.xpu.get_device_name(),
            "tried": "with stand-ins only, before this run",
            "not asked": "FP8 in blocks: Xe2 multiplies in bfloat16 after dequantising",
        },
    )


def judge(case: Case, experts: Callable[..., Any], device: str, found: str) -> CaseResult:
    """Compare one case boundary by boundary.

    Args:
        case: in bfloat16.
        experts: the class XpuFusedMoe.
        device: where the tensors lie.
        found: the version of the engine.
    """
    checked: list[Checked] = []
    theirs_name = f"XpuFusedMoe of vllm-xpu-kernels {found}"
    for number, inputs in enumerate(make(case, device), 1):
        engine = _Experts(inputs, experts)
        with tracing() as engines:
            theirs = engine.apply(inputs)
        with tracing() as composed:
            ours = _compose(engines.named, inputs, engine.weights)
        found_here = [
            *_compared(inputs, (engines.rows, composed.rows), (theirs, ours)),
            *_bounded(inputs, (("XpuFusedMoe", theirs), ("ours", ours))),
        ]
        prefix = f"call {number}: " if case.calls > 1 else ""
        checked += [one.in_call(prefix) for one in found_here]
    return CaseResult(
        name=case.name,
        asks=case.asks,
        status="equal" if agree(checked) else "differs",
        claim=CLAIM,
        sides=(f"bitgate's order of the operators of {PACKAGE} {found}", theirs_name),
        shapes=shapes(case),
        checked=tuple(checked),
    )


class _Experts:
    """The engine's class over the weights of a case, in the layout that this version takes."""

    def __init__(self, inputs: Inputs, experts: Callable[..., Any]) -> None:
        loaded = (inputs.w_gate_up, inputs.w_down)
        self._experts = self._made(inputs, experts, loaded)
        if torch.equal(self._experts.w13, loaded[0]):
            # Older ones want k before n, and do not turn the weights themselves.
            turned = (loaded[0].mT.contiguous(), loaded[1].mT.contiguous())
            self._experts = self._made(inputs, experts, turned)
        self.weights = (self._experts.w13, self._experts.w2)

    @staticmethod
    def _made(inputs: Inputs, experts: Callable[..., Any], weights: tuple[Tensor, Tensor]) -> Any:
        # It writes into the weights that it is given.
        w13, w2 = (weight.clone() for weight in weights)
        return experts(
            w13=w13,
            w13_scales=None,
            w13_bias=None,
            w2=w2,
            w2_scales=None,
            w2_bias=None,
            n_experts_per_token=inputs.topk_ids.shape[1],
            activation="silu",
            num_experts=len(inputs.w_down),
            ep_rank=0,
            ep_size=inputs.experts // len(inputs.w_down),
            expert_map=inputs.expert_map,
        )

    def apply(self, inputs: Inputs) -> Tensor:
        out = torch.full_like(inputs.x, float("nan"))
        self._experts.apply(
            output=out,
            hidden_states=inputs.x,
            topk_weights=inputs.topk_weights,
            topk_ids=inputs.topk_ids.to(torch.int32),
            expert_map=inputs.expert_map,
        )
        return out


@contextmanager
def tracing() -> Iterator[Passed]:
    """Note what passes the operators of vllm-xpu-kernels, whoever calls them.

    Its class looks the activation up when it is made, so that one is read off the operand of the
    second product.
    """
    own, products = (getattr(torch.ops, name) for name in ("_moe_C", "_xpu_C"))
    remap_hidden_states = own.remap_hidden_states
    grouped_gemm = products.cutlass_grouped_gemm_interface
    passed = Passed()

    def remap(**given: Any) -> None:
        passed.named = tuple(given)
        remap_hidden_states(**given)
        passed.rows["place"] = given["unpermuted_row_to_permuted_row"].clone()
        passed.rows["counts"] = given["rows_per_expert"].clone()
        passed.rows["x"] = given["remapped_hidden_states"].clone()

    def product(**given: Any) -> None:
        second = "gate_up" in passed.rows
        if second:
            passed.rows["activated"] = given["ptr_A"].clone()
        grouped_gemm(**given)
        passed.rows["down" if second else "gate_up"] = given["ptr_D"].clone()

    own.remap_hidden_states = remap
    products.cutlass_grouped_gemm_interface = product
    try:
        yield passed
    finally:
        own.remap_hidden_states = remap_hidden_states
        products.cutlass_grouped_gemm_interface = grouped_gemm


def _compose(named: tuple[str, ...], inputs: Inputs, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Our order of the operators: remap, product, activation, product, gather."""
    (tokens, hidden), top_k = inputs.x.shape, inputs.topk_ids.shape[1]
    local, intermediate = len(inputs.w_down), inputs.w_down.shape[2]
    library, own, products = (getattr(torch.ops, name) for name in ("_C", "_moe_C", "_xpu_C"))
    rows = inputs.x.new_zeros(tokens * top_k, hidden)
    per_expert = torch.zeros(local, dtype=torch.int32, device=rows.device)
    place = torch.empty((tokens, top_k), dtype=torch.int32, device=rows.device)
    given = {
        "hidden_states": inputs.x,
        "hidden_states_scales": None,
        "remapped_hidden_states": rows,
        "remapped_hidden_states_scales": None,
        "expert_map": inputs.expert_map,
        "rows_per_expert": per_expert,
        "unpermuted_row_to_permuted_row": place,
        "topk_ids": inputs.topk_ids.to(torch.int32),
        "total_experts_num": inputs.experts,
        "local_experts_num": local,
    }
    # What later versions added is for scales, of which there are none here.
    own.remap_hidden_states(**{**dict.fromkeys(named), **given})

    def product(a: Tensor, w: Tensor, n: int) -> Tensor:
        out = a.new_zeros(len(a), n)
        products.cutlass_grouped_gemm_interface(
            ptr_A=a,
            ptr_A_scale=None,
            ptr_B=w,
            ptr_B_scale=None,
            ptr_bias=None,
            ptr_D=out,
            rows_per_expert=per_expert,
            N=n,
            K=a.shape[1],
            num_experts=local,
        )
        return out

    gate_up = product(rows, weights[0], 2 * intermediate)
    activated = gate_up.new_zeros(len(gate_up), intermediate)
    library.silu_and_mul(activated, gate_up)
    down = product(activated, weights[1], hidden)
    out = torch.full_like(inputs.x, float("nan"))
    own.moe_gather(out, down, inputs.topk_weights, place, local)
    return out


def _compared(
    inputs: Inputs, passed: tuple[Rows, Rows], outs: tuple[Tensor, Tensor]
) -> Iterator[Checked]:
    theirs, ours = passed
    mapped = inputs.topk_ids if inputs.expert_map is None else inputs.expert_map[inputs.topk_ids]
    local = (mapped >= 0).flatten()
    for side, rows in (("vLLM's", theirs), ("ours", ours)):
        yield Checked.bits(f"rows per expert, {side}", _counted(mapped, inputs), rows["counts"])
    for name in ("x", "gate_up", "activated", "down"):
        sides = []
        for rows in (theirs, ours):
            places = rows["place"].flatten()[local].long()
            sides.append(rows[name][places])
        yield Checked.bits(name, sides[0], sides[1])
    yield Checked.bits("out", *outs)


def _counted(mapped: Tensor, inputs: Inputs) -> Tensor:
    flat = mapped.flatten()
    return torch.bincount(flat[flat >= 0], minlength=len(inputs.w_down)).to(torch.int32)


def _bounded(inputs: Inputs, outs: tuple[tuple[str, Tensor], ...]) -> Iterator[Checked]:
    tensors = {name: tensor.cpu() for name, tensor in inputs.tensors.items()}
    if inputs.expert_map is not None:
        tensors["topk_ids"] = inputs.expert_map.cpu()[tensors["topk_ids"]].long()
    value, bound = experts_float64(**tensors, swiglu_limit=_NO_LIMIT, contract=MOE_TORCH_1)
    for name, out in outs:
        yield within(f"{name} and float64", out, value, bound)
