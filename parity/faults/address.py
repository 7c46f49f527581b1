"""Faults of addresses: indices of 32 bits, and reads past the end of a buffer.

One target for each Triton implementation of a MoE operator in the catalogue, made from its
definition alone: its tensors at extents beyond 2^31 elements (see `addresses`), so a new operator
is covered by a line of `_WIDE` at most. Its faults are its own kernels with the 64-bit indices
taken away. An operator whose integers stay small because it refuses more is in `_REFUSES`.

Checks: `bits` runs small tensors, `bounds` watches them lane by lane, `wide` watches large ones.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import torch

from bitgate.kernels import catalogue
from bitgate.kernels.compile_specs import SPECS
from bitgate.kernels.loading import load
from bitgate.kernels.moe import gemm_triton
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import MOE_GEMM, GroupedMatmul
from bitgate.kernels.spec import Constants, Implementation, Kernel, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.addresses import Contents, Seen, narrowed, watch, widens
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run, Target
from bitgate.parity.faults.checks import Sample
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
# Pipelines launch the kernels of their stages, which are watched one by one.
_PIPELINES = ("moe_experts", "moe_experts_fp8")

# Which published defect a kernel without its 64-bit indices is; the others are of the same kind.
_PUBLISHED = {
    "gemm_triton:gemm_kernel": "B1",
    "combine_triton:combine_kernel": "B2",
    "act_quant_triton:act_quant_kernel": "B3",
    "combine_weighted_triton:combine_weighted_kernel": "B40",
}
_DETAILS: Mapping[str, tuple[str, str, tuple[str, ...], str]] = {
    "B1": (
        "row offsets of the grouped matmul in 32 bits",
        "tokens * top-k * max(2 I, H) of 2^31",
        ("sglang PR 4727, issue 4856", "vllm issue 5938, PRs 19770, 34279"),
        "",
    ),
    "B2": (
        "row offsets of the reduction in 32 bits",
        "Qwen3-30B with 131072 tokens",
        ("CURRENTF/Sparse-vLLM issue 15",),
        "one token more than published, whose row is the first beyond 2^31",
    ),
    "B3": (
        "row offsets of the fused activation and quantiser in 32 bits",
        "2 I * tokens of 2^31",
        ("vllm issue 53390",),
        "",
    ),
    "B40": (
        "row * H in 32 bits in the gather that weighs and sums",
        "tokens * top-k * H of 2^31",
        ("vllm-xpu-kernels moe_gather.cpp and grouped_gemm_xe2.hpp, by reading",),
        "the XPU sources cannot run here; our kernel of that operation has their arithmetic",
    ),
}


def implementations() -> Iterator[tuple[Kernel, Implementation]]:
    """The Triton implementations of the MoE operators in the catalogue, pipelines left out."""
    for kernel in catalogue.KERNELS:
        if kernel.op.startswith("moe_") and kernel.op not in _PIPELINES:
            for one in kernel.implementations:
                if one.target.partition(":")[0].endswith("_triton"):
                    yield kernel, one


def area() -> Area:
    """A target and its narrow kernels for every Triton implementation."""
    targets, faults = [], []
    for kernel, one in implementations():
        target = target_of(kernel, one)
        targets.append(target)
        faults += narrow_faults(kernel, one, target)
    faults.append(short_buffer())
    return Area(name="address", targets=tuple(targets), faults=tuple(faults))


def compiled() -> frozenset[str]:
    """The MoE kernels that the compile check builds, as module:function; all must be watched."""
    return frozenset(spec.target for spec in SPECS if spec.target.startswith("bitgate.kernels.moe"))


# --- the calls ------------------------------------------------------------------------------------


def wide(kernel: Kernel) -> list[Sample]:
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
def device_tiles() -> Iterator[None]:
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


def watched(run: Run, sample: Sample) -> Seen:
    """What a call does with memory; tensors that do not exist are cut into a device's tiles."""

    def call() -> None:
        run(sample.given, sample.constants, Memory())

    if any(tensor.device.type == "meta" for tensor in sample.given.values()):
        with device_tiles():
            return watch(call, _contents(sample.given, sample.constants))
    return watch(call)


def _finding(run: Run, sample: Sample) -> str | None:
    found = watched(run, sample).findings
    return f"{sample.name}: {found[0]}" if found else None


# --- the target of one implementation -------------------------------------------------------------


def target_of(kernel: Kernel, one: Implementation) -> Target:
    """One Triton implementation with its three checks."""
    function = load(one.target)
    reference = checks.into(kernel, load(_reference(kernel, one)))

    def run(given: Tensors, constants: Constants, _: Memory) -> Tensors:
        return kernel.named_outputs(function(**given, **constants))

    @cache
    def small() -> tuple[Sample, ...]:
        return tuple(_smallest(kernel))

    def bounds(new: New) -> str | None:
        return checks.first(_finding(new(), sample) for sample in small())

    def look_wide(new: New) -> str | None:
        if kernel.op in _REFUSES:
            return _refused(new(), wide(kernel)[0])
        return checks.first(_finding(new(), sample) for sample in wide(kernel))

    return Target(
        name=one.name,
        correct={one.name: run},
        hosts=(one.name,),
        checks=(
            checks.bits(reference, small),
            Check(name="bounds", look=bounds),
            Check(name="wide", look=look_wide),
        ),
    )


def _reference(kernel: Kernel, one: Implementation) -> str:
    named = {other.name: other.target for other in kernel.implementations}
    return named[kernel.references[one.contract]]


def _size(given: Tensors) -> int:
    return max(tensor.numel() for tensor in given.values())


def _refused(run: Run, sample: Sample) -> str | None:
    try:
        found = _finding(run, sample)
    except UsageError:
        return None
    return found or f"{sample.name}: answered at extents that it was to refuse"


# --- the faults -----------------------------------------------------------------------------------


def narrow_faults(kernel: Kernel, one: Implementation, target: Target) -> list[Fault]:
    """One for each kernel of an implementation that has a 64-bit index to lose."""
    if kernel.op in _REFUSES:
        return []
    run = target.correct[one.name]
    launched = dict.fromkeys(
        name for sample in wide(kernel) for name in watched(run, sample).kernels
    )
    return [_narrow(kernel, target, name) for name in launched if widens(load(name))]


def _narrow(kernel: Kernel, target: Target, name: str) -> Fault:
    short = name.removeprefix("bitgate.kernels.moe.")
    title, trigger, sources, note = _DETAILS.get(
        _PUBLISHED.get(short, ""),
        ("row offsets in 32 bits", "2^31 elements", ("planted: what B1 is elsewhere",), ""),
    )
    function: Any = load(name)

    def plant(correct: Run, fired: Fired) -> Run:
        def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
            with narrowed(function):
                result = correct(given, constants, memory)
            fired(max(_size(given), *(value.numel() for value in result.values())) >= LIMIT)
            return result

        return run

    return Fault(
        id=_PUBLISHED.get(short, f"A-{short.partition(':')[2].removesuffix('_kernel')}"),
        title=title,
        trigger=trigger,
        sources=sources,
        target=target.name,
        plant=plant,
        witness=lambda run: checks.first(_finding(run, sample) for sample in wide(kernel)),
        caught_by=("wide",),
        note=note,
    )


def short_buffer() -> Fault:
    """The buffer ends with the last pair, one entry into its block, and the block is read."""

    def plant(_: Run, fired: Fired) -> Run:
        def run(given: Tensors, constants: Constants, _: Memory) -> Tensors:
            tiles = {
                name: int(constants.get(name, 0)) for name in ("block_m", "block_n", "block_k")
            }
            config = TileConfig(**{name: value for name, value in tiles.items() if value})
            call = GroupedMatmul(
                **given,
                top_k=int(constants["top_k"]),
                apply_weights=int(constants["apply_weights"]),
                config=config,
            )
            if given["padded"].device.type == "cpu":
                used = (given["sorted_pairs"] < given["weights"].numel()).nonzero()
                entries = int(used[-1]) + 1
                if fired(entries < int(given["padded"])):
                    object.__setattr__(call, "sorted_pairs", call.sorted_pairs[:entries])
            out, acc = call.new(torch.bfloat16), call.new(torch.float32)
            gemm_triton.grouped(call, out, acc)
            return {"out": out, "acc": acc}

        return run

    return Fault(
        id="B4",
        title="the last block is read past the end of sorted_pairs, which is no whole block long",
        trigger="a capacity that is not a multiple of the block: 129 entries, 144 read",
        sources=("vllm issues 45884, 45496",),
        target="moe_gemm-triton",
        plant=plant,
        witness=lambda run: checks.first(_finding(run, sample) for sample in _smallest(MOE_GEMM)),
        caught_by=("bounds",),
        note="the 32-bit wrap of the same issue is B1; memory behind the entries exists here, so "
        "that nothing is read which is not ours",
    )


def _smallest(kernel: Kernel) -> list[Sample]:
    """The sample of the suite that has more than one row and the smallest tensors."""
    several = [one for one in checks.suite(kernel) if len(next(iter(one.given.values()))) > 1]
    return sorted(several, key=lambda sample: _size(sample.given))[:1]
