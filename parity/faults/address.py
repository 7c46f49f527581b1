"""Faults of addresses: indices of 32 bits, and reads past the end of a buffer.

A target for everything that `address_calls` watches; its faults are its own kernels with the 64-bit
indices taken away. Checks: `bits` runs small tensors, `bounds` watches them lane by lane, `wide`
watches tensors beyond 2^31 elements.
"""

from collections.abc import Mapping
from typing import Any

import torch

from bitgate.kernels.loading import load
from bitgate.kernels.moe import gemm_triton
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.gemm import MOE_GEMM, GroupedMatmul
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.address_calls import (
    LIMIT,
    Watched,
    everything,
    size,
    smallest,
    watched,
)
from bitgate.parity.faults.addresses import narrowed, widens
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run, Target
from bitgate.parity.faults.checks import Sample, present
from bitgate.records.errors import UsageError

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


def area() -> Area:
    """A target and its narrow kernels for all that is watched."""
    every = everything()
    narrow = [fault for calls in every for fault in narrow_faults(calls)]
    return Area(
        name="address",
        targets=tuple(map(target_of, every)),
        faults=(*narrow, short_buffer()),
    )


def _finding(run: Run, sample: Sample) -> str | None:
    found = watched(run, sample).findings
    return f"{sample.name}: {found[0]}" if found else None


def target_of(calls: Watched) -> Target:
    """Watched kernels with their three checks."""

    def bounds(new: New) -> str | None:
        return checks.first(_finding(new(), sample) for sample in present(calls.small))

    def wide(new: New) -> str | None:
        look = _refused if calls.refuses else _finding
        return checks.first(look(new(), sample) for sample in present(calls.wide))

    return Target(
        name=calls.name,
        correct={calls.name: calls.run},
        hosts=(calls.name,),
        checks=(
            checks.bits(calls.truth, calls.small),
            Check(name="bounds", look=bounds),
            Check(name="wide", look=wide),
        ),
    )


def _refused(run: Run, sample: Sample) -> str | None:
    try:
        found = _finding(run, sample)
    except UsageError:
        return None
    return found or f"{sample.name}: answered at extents that it was to refuse"


def narrow_faults(calls: Watched) -> tuple[Fault, ...]:
    """One for each kernel that the calls launch and that has a 64-bit index to lose."""
    if calls.refuses:
        return ()
    launched = [name for sample in calls.wide() for name in watched(calls.run, sample).kernels]
    return tuple(_narrow(calls, name) for name in dict.fromkeys(launched) if widens(load(name)))


def _narrow(calls: Watched, name: str) -> Fault:
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
            fired(max(size(given), *(value.numel() for value in result.values())) >= LIMIT)
            return result

        return run

    return Fault(
        id=_PUBLISHED.get(short, f"A-{short.partition(':')[2].removesuffix('_kernel')}"),
        title=title,
        trigger=trigger,
        sources=sources,
        target=calls.name,
        plant=plant,
        witness=lambda run: checks.first(_finding(run, sample) for sample in calls.wide()),
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
        witness=lambda run: checks.first(_finding(run, sample) for sample in smallest(MOE_GEMM)),
        caught_by=("bounds",),
        note="the 32-bit wrap of the same issue is B1; memory behind the entries exists here, so "
        "that nothing is read which is not ours",
    )
