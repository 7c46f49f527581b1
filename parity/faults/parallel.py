"""Faults of several ranks: sums in the order of arrival, and experts cut at the wrong place.

Target `rank sum`: the parts of ranks added in rank order, which is what a combine over ranks must
do to be repeatable. Target `shards`: the weights of one rank under tensor parallelism; the check
`shards` adds what the ranks compute on integer fixtures.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.staged_reference import TILE
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run, Target
from bitgate.parity.faults.checks import Rows, Sample
from bitgate.parity.faults.pipeline import Pipeline

_SUM, _SHARDS = "rank sum", "shards"
_RANKS = 2


def area() -> Area:
    """Both targets and their faults."""
    total = Target(
        name=_SUM,
        correct={"in rank order": _in_rank_order},
        hosts=("in rank order",),
        checks=(
            checks.bits(_in_rank_order, _parts),
            checks.repeat(_parts),
            checks.alone(_parts, _ROWS),
        ),
    )
    shards = Target(
        name=_SHARDS,
        correct={"halves apart": _halves_apart},
        hosts=("halves apart",),
        checks=(
            Check(name="shards", look=_shards),
            Check(name="shapes", look=_shapes),
        ),
    )
    return Area(name="parallel", targets=(total, shards), faults=FAULTS)


# --- the sum over ranks ---------------------------------------------------------------------------

_ROWS = Rows(inputs=("parts",), outputs=("out",))


def _parts() -> list[Sample]:
    """Parts [tokens, ranks, hidden] that cancel, so that the order of additions shows."""
    stream = IntegerStream(0xDA)
    parts = integer_tensor(stream, (7, 8, 16), high=255, dtype=torch.float32)
    parts = torch.ldexp(parts, torch.from_numpy(stream.integers((7, 8, 16), -30, 30)))
    parts[:, 1::2] = -parts[:, ::2]
    parts[:, 3] += 1
    return [Sample(name="eight ranks", given={"parts": parts}, constants={})]


def _added(parts: Tensor, order: list[int]) -> Tensor:
    total = torch.zeros_like(parts[:, 0])
    for rank in order:
        total = total + parts[:, rank]
    return total


def _in_rank_order(given: Tensors, _: Constants, __: Memory) -> Tensors:
    parts = given["parts"]
    return {"out": _added(parts, list(range(parts.shape[1])))}


def _as_they_arrive(_: Run, fired: Fired) -> Run:
    stream = IntegerStream(0xA441)

    def run(given: Tensors, _: Constants, __: Memory) -> Tensors:
        order = stream.words(given["parts"].shape[1]).argsort().tolist()
        fired(order != sorted(order))
        return {"out": _added(given["parts"], order)}

    return run


# --- shards ---------------------------------------------------------------------------------------


def _halves_apart(given: Tensors, constants: Constants, _: Memory) -> Tensors:
    """The channels of one rank: its rows of the gate half, its rows of the up half, its columns."""
    rank = int(constants["rank"])
    gate, up = given["w_gate_up"].chunk(2, dim=1)
    mine = slice(*_bounds(gate.shape[1], rank))
    return {
        "w_gate_up": torch.cat([gate[:, mine], up[:, mine]], dim=1),
        "w_down": given["w_down"][:, :, mine].contiguous(),
    }


def _bounds(channels: int, rank: int) -> tuple[int, int]:
    return channels * rank // _RANKS, channels * (rank + 1) // _RANKS


def _fused_cut(correct: Run, fired: Fired) -> Run:
    """The fused gate and up rows are cut as one: rank 0 gets gates, rank 1 ups."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made, rank = correct(given, constants, memory), int(constants["rank"])
        fused = given["w_gate_up"]
        low, high = _bounds(fused.shape[1], rank)
        fired(high - low < fused.shape[1])
        return made | {"w_gate_up": fused[:, low:high].contiguous()}

    return run


def _cases() -> Iterator[tuple[str, Tensors, Constants, Tensors]]:
    for case in MOE_EXPERTS.integer_cases():
        if case.name in ("small", "one-token"):
            yield case.name, case.inputs, case.constants, case.expected


def _shards(new: New) -> str | None:
    run, experts = new(), Pipeline(stages=TILE)

    def findings() -> Iterator[str | None]:
        for name, inputs, constants, expected in _cases():
            total = torch.zeros(expected["out"].shape)
            for rank in range(_RANKS):
                given = inputs | run(inputs, {"rank": rank}, Memory())
                total += experts(given, constants, Memory())["out"].float()
            yield checks.differing(f"{name} in shards", expected, {"out": total.bfloat16()})

    return checks.first(findings())


def _shapes(new: New) -> str | None:
    """What a loader checks: every rank has its share of the channels."""
    run = new()

    def findings() -> Iterator[str | None]:
        for name, inputs, _, _ in _cases():
            channels = inputs["w_down"].shape[2]
            for rank in range(_RANKS):
                made = run(inputs, {"rank": rank}, Memory())
                share = channels // _RANKS
                if (made["w_gate_up"].shape[1], made["w_down"].shape[2]) != (2 * share, share):
                    yield f"{name}: rank {rank} has {made['w_gate_up'].shape[1]} rows"

    return checks.first(findings())


FAULTS = (
    Fault(
        id="B20",
        title="the parts of ranks are added in the order in which they arrive",
        trigger="a batch invariant run on more than one rank",
        sources=("vllm PR 45683",),
        target=_SUM,
        plant=_as_they_arrive,
        witness=lambda run: [checks.fresh(run, sample) for _ in range(3) for sample in _parts()],
        caught_by=("bits", "repeat", "alone"),
        note="the order of arrival is drawn from a seeded stream, anew for each call",
    ),
    Fault(
        id="B24",
        title="experts in two shards give silent nonsense",
        trigger="an intermediate size of 704 or 768 in two shards",
        sources=("intel/llm-scaler issue 633",),
        target=_SHARDS,
        plant=_fused_cut,
        witness=lambda run: [
            run(inputs, {"rank": rank}, Memory())
            for _, inputs, _, _ in _cases()
            for rank in range(_RANKS)
        ],
        caught_by=("shards",),
        note="the cause was not published; modelled as the cut of gate and up rows that are fused",
    ),
)
