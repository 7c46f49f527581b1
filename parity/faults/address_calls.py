"""What is watched: every Triton kernel of the MoE operators, on small and on very large tensors.

Calls are made from the operators' definitions alone: their tensors at extents beyond 2^31 elements,
which do not exist (see `addresses`). So a new operator is covered by a line of `_WIDE` at most, and
a kernel that only a pipeline launches by a `Watched` of its own.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from bitgate.kernels import catalogue
from bitgate.kernels.compile_specs import SPECS
from bitgate.kernels.loading import load
from bitgate.kernels.moe import act_reference, fused_triton, gemm_reference
from bitgate.kernels.moe.act import Activation
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.kernels.moe.gemm import MOE_GEMM, GroupedMatmul
from bitgate.kernels.spec import Constants, Implementation, Kernel, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.addresses import Contents, Seen, watch
from bitgate.parity.faults.base import Memory, Run
from bitgate.parity.faults.checks import Sample, Samples
from bitgate.records.errors import UsageError

LIMIT = 1 << 31

# What every axis is where an operator has no line of its own: one row of 2048 more than 2^31
# elements, of activations and of weights.
_AXES = {
    "experts": 512,
    "groups": 64,
    "hidden": 2048,
    "intermediate": 1024,
    "k": 2048,
    "n": 2048,
    "one": 1,
    "rows": (1 << 20) + 1,
    "tokens": (1 << 17) + 1,
    "top_k": 8,
    "vocab": 1 << 17,
}
_MATMUL = {"experts": (1 << 17) + 1, "k": 128, "n": 128, "tokens": (1 << 24) + 1, "top_k": 1}
_WIDE: Mapping[str, Mapping[str, int]] = {
    "moe_route": {"tokens": (1 << 24) + 1, "experts": 128},
    "moe_route_hash": {"tokens": (1 << 24) + 1, "experts": 128},
    # Few steps of K, whose number costs time.
    "moe_gemm": _MATMUL,
    "moe_gemm_fp8": _MATMUL | {"a_groups": 1, "a_rows": (1 << 24) + 1, "w_groups": 1, "w_rows": 1},
    "moe_quant_weight": {"experts": 513},
}
# The variants of an operator that are kernels or branches of their own.
_VARIANTS: Mapping[str, tuple[Constants, ...]] = {
    "moe_route": tuple({"score": score} for score in ("softmax", "sigmoid", "sqrt-softplus")),
    "moe_quant": tuple({"scheme": scheme} for scheme in ("tensor", "token", "group")),
    "moe_act": ({"kind": "silu"}, {"kind": "swiglu-oai", "round_between": 0}),
}
# Operators whose wrapper refuses what 32 bits do not hold, so that `wide` expects the refusal.
_REFUSES = {"moe_align": {"tokens": 1 << 27}}
_LIMIT_OF_GATES = 10.0
# Pipelines launch the kernels of their stages, which are watched one by one.
_PIPELINES = ("moe_experts", "moe_experts_fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Kernels with the calls that they are watched in.

    `truth` has the bits of `run`; `wide` are calls on meta tensors, which `refuses` says are to be
    refused before anything is launched.
    """

    name: str
    run: Run
    truth: Run
    small: Samples
    wide: Samples
    refuses: bool = False


def everything() -> tuple[Watched, ...]:
    """The Triton implementations of the MoE operators, and the kernels of pipelines alone."""
    of_operators = (
        _of_operator(kernel, one)
        for kernel in catalogue.KERNELS
        if kernel.op.startswith("moe_") and kernel.op not in _PIPELINES
        for one in kernel.implementations
        if one.target.partition(":")[0].endswith("_triton")
    )
    return (*of_operators, _first_matmul())


def compiled() -> frozenset[str]:
    """The MoE kernels that the compile check builds, as module:function; all must be watched."""
    return frozenset(spec.target for spec in SPECS if spec.target.startswith("bitgate.kernels.moe"))


def watched(run: Run, sample: Sample) -> Seen:
    """What a call does with memory; tensors that do not exist are cut into a device's tiles."""

    def call() -> None:
        run(sample.given, sample.constants, Memory())

    if any(tensor.device.type == "meta" for tensor in sample.given.values()):
        with _device_tiles():
            return watch(call, _contents(sample.given, sample.constants))
    return watch(call)


def size(tensors: Tensors) -> int:
    """Elements of the largest."""
    return max(tensor.numel() for tensor in tensors.values())


def smallest(kernel: Kernel) -> list[Sample]:
    """The sample of the suite that has more than one row and the smallest tensors."""
    several = [one for one in checks.suite(kernel) if len(next(iter(one.given.values()))) > 1]
    return sorted(several, key=lambda sample: size(sample.given))[:1]


def _of_operator(kernel: Kernel, one: Implementation) -> Watched:
    function = load(one.target)
    targets = {other.name: other.target for other in kernel.implementations}

    def run(given: Tensors, constants: Constants, _: Memory) -> Tensors:
        return kernel.named_outputs(function(**given, **constants))

    return Watched(
        name=one.name,
        run=run,
        truth=checks.into(kernel, load(targets[kernel.references[one.contract]])),
        small=partial(smallest, kernel),
        wide=partial(_wide, kernel),
        refuses=kernel.op in _REFUSES,
    )


def _first_matmul() -> Watched:
    """The first matmul with the activation as its epilogue, which `experts_fused` launches."""

    def call_of(given: Tensors) -> GroupedMatmul:
        tensors = {name: value for name, value in given.items() if name != "bias"}
        return GroupedMatmul(
            **tensors, top_k=_pairs_per_row(given), apply_weights=0, config=DEFAULT_CONFIG
        )

    def run(given: Tensors, _: Constants, __: Memory) -> Tensors:
        activation = Activation(swiglu_limit=_LIMIT_OF_GATES, op="moe_experts")
        return {"out": fused_triton.gemm_act(call_of(given), activation)}

    def truth(given: Tensors, _: Constants, __: Memory) -> Tensors:
        call = call_of(given)
        gate_up = call.new(torch.bfloat16)
        gemm_reference.grouped(call, gate_up, None)
        out = act_reference.moe_act(gate_up=gate_up, swiglu_limit=_LIMIT_OF_GATES)
        return {"out": out}

    return Watched(
        name="gemm_act",
        run=run,
        truth=truth,
        small=partial(smallest, MOE_GEMM),
        wide=partial(_wide, MOE_GEMM),
    )


def _pairs_per_row(given: Tensors) -> int:
    return len(given["weights"]) // len(given["a"])


def _wide(kernel: Kernel) -> list[Sample]:
    """Calls of an operator on meta tensors beyond 2^31 elements, one for each variant."""
    return [
        Sample(
            name=f"{kernel.op} {dict(variant)}".removesuffix(" {}"),
            given=_meta(kernel, _AXES | dict(_WIDE.get(kernel.op, _REFUSES.get(kernel.op, {})))),
            constants=_constants(kernel, variant),
        )
        for variant in _VARIANTS.get(kernel.op, ({},))
    ]


def _constants(kernel: Kernel, variant: Constants) -> Constants:
    """The kernel's constants, top_k as the tensors have it."""
    axes = _AXES | dict(_WIDE.get(kernel.op, {}))
    asked = dict(kernel.constants)
    return asked | {name: axes[name] for name in ("top_k",) if name in asked} | dict(variant)


def _meta(kernel: Kernel, axes: Mapping[str, int]) -> Tensors:
    pairs, block_m = axes["tokens"] * axes["top_k"], int(dict(kernel.constants).get("block_m", 1))
    known = dict(axes) | {"block_m": block_m, "blocks": pairs // block_m + axes["experts"]}
    return {
        spec.name: torch.empty(
            tuple(_extent(axis, known) for axis in spec.axes),
            dtype=getattr(torch, spec.dtype),
            device="meta",
        )
        for spec in kernel.inputs
    }


def _extent(axis: str, known: Mapping[str, int]) -> int:
    if unknown := [part for part in axis.split("*") if not part.isdigit() and part not in known]:
        raise UsageError(
            f"faults: expected an extent for the axis {', '.join(unknown)}; say how large it is in "
            "_AXES, or for one operator in _WIDE, so that its kernels are watched beyond 2^31"
        )
    return prod(int(part) if part.isdigit() else known[part] for part in axis.split("*"))


def _contents(given: Tensors, constants: Constants) -> Contents:
    """Integers that lead to the largest addresses: the last expert, and all pairs in order."""
    if "sorted_pairs" not in given or given["sorted_pairs"].device.type != "meta":
        return {}
    pairs, blocks = given["weights"].numel(), given["expert_ids"].numel()
    last = len(given["w"]) - 1
    return {
        # Ends in padding, whose value is the number of pairs.
        "sorted_pairs": lambda at: at.clip(0, pairs),
        "expert_ids": lambda at: at * 0 + last,
        "padded": lambda at: at * 0 + blocks * int(constants["block_m"]),
    }


@contextmanager
def _device_tiles() -> Iterator[None]:
    """Let wrappers take a device's tiles; the interpreter would take larger ones."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("bitgate.kernels.moe.") and "interpreting" in vars(module)
    ]
    kept = [(module, vars(module)["interpreting"]) for module in modules]
    try:
        for module in modules:
            vars(module)["interpreting"] = lambda: False
        yield
    finally:
        for module, value in kept:
            vars(module)["interpreting"] = value
