"""Faults of the reduction over slots: its order, its precision, and rows that nobody wrote.

Target `moe_combine`. Races are expressed by their effect: terms arrive in an order that a seeded
stream draws anew for each call, or some rows still hold what the call before left there.
"""

import torch

from bitgate.kernels import arithmetic
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.combine import MOE_COMBINE
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Fault, Fired, Memory, Run
from bitgate.parity.faults.checks import Rows, Sample
from bitgate.records.types import Workload

_OP = "moe_combine"
_ROWS = Rows(inputs=("y", "topk_ids"), outputs=("out",))


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""

    def every() -> list[Sample]:
        return checks.suite(MOE_COMBINE)

    def some() -> list[Sample]:
        return [_sample(9, 8, "padding"), _sample(4, 3, "padding"), _sample(9, 8, "exponents")]

    target = checks.operator(
        MOE_COMBINE,
        MOE_BF16_1.name,
        every,
        some,
        checks.alone(some, _ROWS),
        checks.strided(some),
        checks.unread(some, _spoil),
    )
    return Area(name="combine", targets=(target,), faults=FAULTS)


def _sample(tokens: int, top_k: int, case: str = "random") -> Sample:
    axes = (("hidden", 40), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op=_OP, axes=axes, dtype="bfloat16", case=case)
    given = MOE_COMBINE.make_inputs(workload, 0)
    if case == "padding":
        # Finite, so that only the check that asks for it finds a leak by a NaN.
        given["y"] = torch.nan_to_num(given["y"], nan=1.0)
    return Sample(name=workload.key, given=given, constants=dict(MOE_COMBINE.constants))


def _kept(given: Tensors, constants: Constants) -> torch.Tensor:
    return (given["topk_ids"] >= 0) & (given["topk_ids"] < int(constants["experts"]))


def _spoil(given: Tensors) -> Tensors:
    masked = ~_kept(given, dict(MOE_COMBINE.constants))
    y = given["y"].clone()
    y[masked] = float("nan")
    return given | {"y": y}


def _summed(
    given: Tensors, constants: Constants, memory: Memory, order: list[int], *, steps: bool = False
) -> Tensors:
    """The sum over the slots in an order; with `steps` it is rounded after each of them."""
    y, kept = given["y"].float(), _kept(given, constants)
    acc = torch.zeros(y.shape[0], y.shape[2])
    for slot in order:
        added = acc + y[:, slot]
        added = arithmetic.round_bf16(added).float() if steps else added
        acc = torch.where(kept[:, slot, None], added, acc)
    value = arithmetic.round_bf16(acc)
    return {"out": memory.take("out", tuple(value.shape), value.dtype).copy_(value)}


def _rounded_steps(_correct: Run, fired: Fired) -> Run:
    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        top_k = given["topk_ids"].shape[1]
        fired(top_k > 2)
        return _summed(given, constants, memory, list(range(top_k)), steps=True)

    return run


def _arrival_order(_correct: Run, fired: Fired) -> Run:
    """Atomic adds: every call has an order of its own."""
    stream = IntegerStream(0xA701C)

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        slots = given["topk_ids"].shape[1]
        order = stream.words(slots).argsort().tolist()
        fired(order != sorted(order))
        return _summed(given, constants, memory, order)

    return run


def _early_read(correct: Run, fired: Fired) -> Run:
    """The reduction on another stream reads some rows before they are written for this call."""
    stream = IntegerStream(0x57AEA)

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        rows = memory.take("rows", tuple(given["y"].shape), given["y"].dtype)
        late = torch.from_numpy(stream.integers((len(rows),), 0, 3)) == 0
        fired(bool(late.any()))
        rows[~late] = given["y"][~late]
        result = correct(given | {"y": rows}, constants, memory)
        rows[late] = given["y"][late]
        return result

    return run


def _captured_mask(correct: Run, fired: Fired) -> Run:
    """A replayed graph keeps the mask of the call that was captured."""
    captured: dict[tuple[int, ...], torch.Tensor] = {}

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        ids = given["topk_ids"]
        first = captured.setdefault(tuple(given["y"].shape), ids.clone())
        fired(bool((first != ids).any()))
        return correct(given | {"topk_ids": first}, constants, memory)

    return run


def _unmasked(correct: Run, fired: Fired) -> Run:
    """Every slot is summed: the pairs of experts on other ranks, and of padding."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        fired(not bool(_kept(given, constants).all()))
        return correct(given | {"topk_ids": given["topk_ids"] * 0}, constants, memory)

    return run


def _twice(run: Run, first: Sample, second: Sample) -> Tensors:
    """Both in one memory: what the second gives."""
    memory = Memory()
    run(first.given, first.constants, memory)
    return run(second.given, second.constants, memory)


def _calls(run: Run) -> list[str]:
    sample = _sample(9, 8, "exponents")
    return [str(checks.fresh(run, sample)["out"].view(torch.int16).tolist()) for _ in range(4)]


FAULTS = (
    Fault(
        id="B32",
        title="the sum is rounded to bfloat16 after every addition",
        trigger="a top-k of 8",
        sources=("vllm issue 15045", "TensorRT-LLM PR 16778"),
        target=_OP,
        plant=_rounded_steps,
        witness=lambda run: checks.fresh(run, _sample(17, 8)),
        caught_by=("bits",),
    ),
    Fault(
        id="B17",
        title="terms are added by atomics, in the order of their arrival",
        trigger="the same call three times",
        sources=("vllm issue 54945, PR 54948", "flashinfer PR 3598"),
        target=_OP,
        plant=_arrival_order,
        witness=_calls,
        caught_by=("fixtures", "bits", "sentinel", "reuse", "repeat", "alone", "strided", "unread"),
        note="the order of arrival is drawn from a seeded stream, anew for each call",
    ),
    Fault(
        id="B19",
        title="the reduction on a second stream reads rows that are not written yet",
        trigger="20 repetitions of one request",
        sources=("sglang PR 26627",),
        target=_OP,
        plant=_early_read,
        witness=_calls,
        caught_by=("fixtures", "bits", "sentinel", "reuse", "repeat", "alone", "strided", "unread"),
        note="a seeded quarter of the rows holds, while it is read, what the call before left",
    ),
    Fault(
        id="B11",
        title="a replayed graph sums rows that were valid when it was captured, and are stale now",
        trigger="a replay with fewer valid rows than captured",
        sources=("vllm moe_fused_mul_sum.py", "vllm PR 52383"),
        target=_OP,
        plant=_captured_mask,
        witness=lambda run: _twice(run, _sample(9, 8), _sample(9, 8, "padding")),
        caught_by=("reuse", "alone"),
        note="the mask of the first call of a shape is kept",
    ),
    Fault(
        id="B13b",
        title="rows of experts on other ranks, which nobody writes, are summed",
        trigger="expert parallelism, or padding",
        sources=("sglang PR 12701",),
        target=_OP,
        plant=_unmasked,
        witness=lambda run: checks.fresh(run, _sample(9, 8, "padding")),
        caught_by=("fixtures", "bits", "unread"),
    ),
)
