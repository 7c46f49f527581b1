"""Compares our composition with vLLM's fused_experts, boundary by boundary, bit for bit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels.moe.align_reference import moe_align
from bitgate.kernels.moe.align_sets import Alignment, same_alignment
from bitgate.parity.suites.cases import Case, make
from bitgate.parity.suites.composition import Block, Inputs, Workspace
from bitgate.parity.suites.results import CaseResult, Checked, agree
from bitgate.parity.suites.trace import MATMULS, Launch, Trace
from bitgate.parity.suites.vllm_engine import Engine

Compose = Callable[[Engine, Inputs, Workspace], Tensor]

CLAIM: Final = (
    "bitwise at the same kernels, buffers and tiles: the composition is that of fused_experts"
)
# What nobody writes for a pair of another rank, where the alignment leaves it out.
_LOCAL_ROWS: Final = ("gate_up", "activated", "activated_codes", "activated_scales")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side's call: what passed, what came out, or how it ended."""

    trace: Trace
    out: Tensor | None
    raised: str = ""


def judge(engine: Engine, case: Case, compose: Compose) -> CaseResult:
    """Run every call of a case on both sides; the first wrong boundary is the finding."""
    checked: list[Checked] = []
    tiles: tuple[Launch, ...] = ()
    workspace: Workspace | None = None
    for number, inputs in enumerate(make(case, engine.device), 1):
        if workspace is None:
            workspace = Workspace(inputs)
        plain = _fused(engine, inputs).clone()
        with engine.tracing() as trace:
            theirs = _Side(trace=trace, out=_fused(engine, inputs))
        ours = _ours(engine, inputs, workspace, compose)
        tiles = tuple(theirs.trace.launches)
        prefix = f"call {number}: " if case.calls > 1 else ""
        found = _checked(engine, case, inputs, (plain, theirs, ours))
        checked += [one.in_call(prefix) for one in found]
    return CaseResult(
        name=case.name,
        asks=case.asks,
        status="equal" if agree(checked) else "differs",
        claim=CLAIM,
        sides=sides(engine),
        shapes=shapes(case),
        tiles=tiles,
        checked=tuple(checked),
    )


def sides(engine: Engine) -> tuple[str, str]:
    """Who is compared with whom."""
    where = "interpreted" if engine.device == "cpu" else f"on {engine.device}"
    kernels = f"vLLM {engine.version}, {where}"
    return f"bitgate's staged experts, driven with {kernels}", f"fused_experts of {kernels}"


def shapes(case: Case) -> dict[str, int]:
    """The extents of a case."""
    names = ("tokens", "hidden", "intermediate", "experts", "top_k", "ranks", "calls")
    return {name: getattr(case, name) for name in names}


def _fused(engine: Engine, inputs: Inputs) -> Tensor:
    return engine.fused_experts(inputs.tensors, inputs.experts, inputs.expert_map, inputs.quantised)


def _ours(engine: Engine, inputs: Inputs, workspace: Workspace, compose: Compose) -> _Side:
    with engine.tracing() as trace:
        try:
            out = compose(engine, inputs, workspace)
        except Exception as error:  # noqa: BLE001 - how far it came is the finding
            return _Side(trace=trace, out=None, raised=f"{type(error).__name__}: {error}")
        return _Side(trace=trace, out=out.clone())


def _checked(
    engine: Engine, case: Case, inputs: Inputs, sides: tuple[Tensor, _Side, _Side]
) -> Iterator[Checked]:
    plain, theirs, ours = sides
    # The trace copies what passes; it must not change what comes out.
    yield _compare("fused_experts again, traced", plain, theirs.out)
    yield from _alignments(engine, inputs, theirs.trace, ours.trace)
    defined = _defined_rows(engine, inputs)
    for name in ("x", "x_codes", "x_scales", "gate_up", *_LOCAL_ROWS[1:], "weighted"):
        one, other = (side.trace.tensors.get(name) for side in (theirs, ours))
        if one is None and other is None:
            continue
        if name in MATMULS:
            yield _launches(case.block_shape, name, theirs.trace, ours.trace)
        if name in _LOCAL_ROWS and defined is not None:
            one, other = (None if t is None else _rows(t, defined) for t in (one, other))
        yield _compare(name, one, other)
    extra = len(ours.trace.launches) - len(theirs.trace.launches)
    if extra > 0:
        yield Checked(boundary="products", compared=1, difference=f"{extra} more than vLLM's")
    if ours.raised:
        yield Checked(boundary="composition", compared=1, difference=ours.raised)
    yield _compare("out", plain, ours.out)


def _alignments(engine: Engine, inputs: Inputs, theirs: Trace, ours: Trace) -> Iterator[Checked]:
    pairs, experts = inputs.topk_ids.numel(), inputs.experts
    if len(theirs.alignments) != 1 or len(ours.alignments) != 1:
        counts = f"expected one on either side, got {len(theirs.alignments)} of vLLM's"
        yield Checked(
            boundary="alignment",
            compared=1,
            difference=f"{counts} and {len(ours.alignments)} of ours",
        )
        return
    (engines,), (composed,) = theirs.alignments, ours.alignments
    block_m = int(theirs.launches[0]["BLOCK_SIZE_M"] or 0)
    expert_map = inputs.expert_map
    if expert_map is None:
        expert_map = torch.arange(experts, dtype=torch.int32)
    named = moe_align(
        topk_ids=inputs.topk_ids.cpu(),
        expert_map=expert_map.cpu(),
        block_m=block_m,
        layout=engine.rules.layout,
    )
    for boundary, expected, actual in (
        (f"alignment, vLLM's and moe_align under {engine.rules.layout}", named, engines),
        ("alignment", engines, composed),
    ):
        yield _same_alignment(boundary, expected, actual, pairs, block_m)


def _same_alignment(
    boundary: str, expected: Alignment, actual: Alignment, pairs: int, block_m: int
) -> Checked:
    if len(expected[1]) != len(actual[1]) or int(actual[2]) % block_m:
        return Checked(
            boundary=boundary,
            compared=pairs,
            difference=f"expected {len(expected[1])} blocks of {block_m}, got {len(actual[1])} "
            f"and {int(actual[2])} places covered",
        )
    result = same_alignment(expected, actual, pairs=pairs, block_m=block_m)
    difference = None if result.same else "; ".join(result.differences)
    return Checked(boundary=boundary, compared=result.pairs + result.blocks, difference=difference)


def _defined_rows(engine: Engine, inputs: Inputs) -> Tensor | None:
    """The pairs with a local expert, where others leave their rows unwritten; None: all rows."""
    if inputs.expert_map is None or not engine.rules.drops_nonlocal:
        return None
    return (inputs.expert_map[inputs.topk_ids.flatten()] >= 0).nonzero().flatten()


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Those rows, of a tensor that has a row for every pair."""
    return tensor.view(torch.uint8)[rows].view(tensor.dtype) if tensor.dim() == 2 else tensor


def _launches(block: Block | None, name: str, theirs: Trace, ours: Trace) -> Checked:
    """The constants with which one product was launched, and what the block shape asks of them."""
    number = MATMULS.index(name)
    both = [side.launches[number] if number < len(side.launches) else {} for side in (theirs, ours)]
    expected, actual = both
    found = [
        f"{key}: expected {expected.get(key)}, got {actual.get(key)}"
        for key in dict.fromkeys([*expected, *actual])
        if expected.get(key) != actual.get(key)
    ]
    if block is not None:
        found += [
            text
            for who, launch in zip(("vLLM's", "ours"), both, strict=True)
            for text in _block_shape(who, launch, block)
        ]
    difference = "; ".join(found) or None
    return Checked(boundary=f"{name}, launch", compared=len(expected), difference=difference)


def _block_shape(who: str, launch: Launch, block: Block) -> Iterator[str]:
    if launch.get("block_shape") != str(list(block)):
        yield f"{who}: expected block_shape {list(block)}, got {launch.get('block_shape')}"
    step = launch.get("BLOCK_SIZE_K")
    if not isinstance(step, int) or step > min(block):
        yield f"{who}: expected BLOCK_SIZE_K of at most {min(block)}, got {step}"


def _compare(boundary: str, expected: Tensor | None, actual: Tensor | None) -> Checked:
    if expected is None or actual is None:
        who = "vLLM's" if expected is None else "our"
        return Checked(boundary=boundary, compared=1, difference=f"{who} side never came here")
    return Checked.bits(boundary, expected, actual)
