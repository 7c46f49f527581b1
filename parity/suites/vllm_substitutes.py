"""What stands in for the operators of vLLM that no CPU build has, so that its Triton kernels run.

vLLM compiles its alignment, activation and sum for GPUs alone. Without them nothing could be driven
in Triton's interpreter; with these, both sides of a comparison are, alike, and the result names
them. They are our references under the rules of that version, so they say nothing about vLLM's own
operators: only a GPU does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bitgate.kernels import interpreter
from bitgate.kernels.moe.act_reference import moe_act
from bitgate.kernels.moe.align_reference import moe_align
from bitgate.kernels.moe.combine_reference import moe_combine
from bitgate.parity.suites.vllm_engine import Engine
from bitgate.parity.suites.vllm_versions import VllmRules


@contextmanager
def substituted(engine: Engine) -> Iterator[Engine]:
    """The engine with whatever its build lacks, which is taken away again afterwards."""
    interpreter.repair()
    library = torch.ops._C  # noqa: SLF001 - the name of vLLM's library
    native = torch.ops._moe_C  # noqa: SLF001 - and of its experts'
    wanted: list[tuple[Any, str, bool, Callable[..., Any], str]] = [
        (
            engine.operators,
            "moe_align_block_size",
            hasattr(native, "moe_align_block_size"),
            aligner(engine.rules),
            "moe_align_block_size by moe_align-sort",
        ),
        (
            engine.operators,
            "moe_sum",
            hasattr(native, "moe_sum"),
            adder(engine.rules),
            "moe_sum by moe_combine-replay",
        ),
        (
            library,
            "silu_and_mul",
            hasattr(library, "silu_and_mul"),
            silu,
            "silu_and_mul by moe_act",
        ),
        (
            engine.experts,
            "get_device_name_as_file_name",
            not _nameless(),
            lambda: "interpreter",
            "the device's name in the look-up of tiles: interpreter",
        ),
    ]
    lacking = [one for one in wanted if not one[2]]
    before = [(owner, name, vars(owner).get(name)) for owner, name, *_ in lacking]
    try:
        for owner, name, _, stand_in, _ in lacking:
            setattr(owner, name, stand_in)
        yield replace(engine, substitutes=tuple(what for *_, what in lacking))
    finally:
        for owner, name, original in before:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def aligner(rules: VllmRules) -> Callable[..., None]:
    """`moe_align_block_size` of _custom_ops.

    By position it takes ids, experts, rows of a block, the three tensors to fill, and in some
    versions the map.
    """

    def align(*given: Any) -> None:
        topk_ids, experts, block_m = given[:3]
        # vLLM maps the experts of the blocks itself where pairs of other ranks are kept.
        expert_map = given[6] if len(given) > 6 else None
        if expert_map is None:
            expert_map = torch.arange(experts, dtype=torch.int32, device=topk_ids.device)
        ours = moe_align(
            topk_ids=topk_ids.long(), expert_map=expert_map, block_m=block_m, layout=rules.layout
        )
        for theirs, our in zip(given[3:6], ours, strict=True):
            # The last block of vLLM's buffer may be cut; no pair lies there.
            theirs.copy_(our[: len(theirs)])

    return align


def adder(rules: VllmRules) -> Callable[..., None]:
    """`moe_sum` of _custom_ops: adds the slots of [tokens, slots, n] into [tokens, n]."""

    def add(rows: Tensor, out: Tensor, *_: Any) -> None:
        slots = rows.shape[1]
        ids = torch.zeros(rows.shape[:2], dtype=torch.int64, device=rows.device)
        stepwise = rules.moe_sum == "bf16-step" and slots in (2, 3, 4)
        accumulate = "bf16-step" if stepwise else "fp32"
        out.copy_(moe_combine(y=rows.contiguous(), topk_ids=ids, experts=1, accumulate=accumulate))

    return add


def silu(out: Tensor, gate_up: Tensor) -> None:
    """`silu_and_mul` of vLLM's library: bfloat16 after silu and after the product."""
    out.copy_(moe_act(gate_up=gate_up, swiglu_limit=float("inf")))


def _nameless() -> bool:
    """Whether vLLM found no device whose tuned tiles it could look for."""
    platform = import_module("vllm.platforms").current_platform
    try:
        platform.get_device_name()
    except NotImplementedError:
        return True
    return False
