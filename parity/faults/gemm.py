"""Faults of the grouped matmul: ragged K, and orders of K.

Target `moe_gemm`, whose float32 accumulator is an output: bfloat16 hides most orders. Besides the
shared checks `tiles` runs the integer fixtures under other tiles.
"""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.moe.gemm import MOE_GEMM
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run
from bitgate.parity.faults.checks import Sample
from bitgate.records.types import Workload

_OP = "moe_gemm"
_TILES = ((32, 64), (128, 128))


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""
    target = checks.operator(
        MOE_GEMM,
        MOE_BF16_1.name,
        _some,
        _some,
        checks.strided(_some),
        checks.unread(_some, _spoil),
        Check(name="tiles", look=_tiles),
    )
    return Area(name="gemm", targets=(target,), faults=FAULTS)


def _sample(tokens: int, k: int, n: int, case: str = "random") -> Sample:
    axes = {"experts": 4, "k": k, "n": n, "tokens": tokens, "top_k": 2}
    workload = Workload(op=_OP, axes=tuple(sorted(axes.items())), dtype="bfloat16", case=case)
    return Sample(
        name=workload.key,
        given=MOE_GEMM.make_inputs(workload, 0),
        constants=dict(MOE_GEMM.constants),
    )


@cache
def _some() -> tuple[Sample, ...]:
    return (_sample(9, 256, 48), _sample(5, 200, 40, "padding"))


def _spoil(given: Tensors) -> Tensors:
    """NaN in the weights of experts that no block has, and in the weights of dropped pairs."""
    blocks = given["expert_ids"].tolist()
    w, weights = given["w"].clone(), given["weights"].clone()
    w[[expert not in blocks for expert in range(len(w))]] = float("nan")
    named = torch.zeros(len(weights) + 1, dtype=torch.bool)
    named[given["sorted_pairs"].long()] = True
    weights[~named[:-1]] = float("nan")
    return given | {"w": w, "weights": weights}


def _tiles(new: New) -> str | None:
    run = new()

    def findings() -> Iterator[str | None]:
        for case in MOE_GEMM.integer_cases():
            for block_n, block_k in _TILES:
                constants = {**case.constants, "block_n": block_n, "block_k": block_k}
                made = run(case.inputs, constants, Memory())
                where = f"{case.name} in tiles of {block_n} columns and {block_k} of K"
                yield checks.differing(where, case.expected, made)

    return checks.first(findings())


# --- the faults -----------------------------------------------------------------------------------


def _into_the_next_row(correct: Run, fired: Fired) -> Run:
    """The last step of K is not masked: it reads on, into the row behind."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        k, block_k = given["a"].shape[1], int(constants["block_k"])
        if fired(k % block_k != 0):
            whole = -(-k // block_k) * block_k
            given = given | {name: _read_on(given[name], whole) for name in ("a", "w")}
        return correct(given, constants, memory)

    return run


def _read_on(rows: Tensor, width: int) -> Tensor:
    """Rows [..., width] that run into the one behind, the last into zeros."""
    flat = torch.cat([rows.reshape(-1), torch.zeros(width, dtype=rows.dtype)])
    count, k = rows.numel() // rows.shape[-1], rows.shape[-1]
    return flat.as_strided((count, width), (k, 1)).reshape(*rows.shape[:-1], width).contiguous()


def _in_order(given: Tensors, block: int, order: list[int]) -> Tensors:
    """The inputs with the blocks of K in another order: the same sums, added otherwise."""
    k = given["a"].shape[1]
    at = torch.arange(k).view(-1, block)[order].reshape(-1)
    return given | {"a": given["a"][:, at], "w": given["w"][:, :, at]}


def _reversed_k(correct: Run, fired: Fired) -> Run:
    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        k, block = given["a"].shape[1], int(constants["block_k"])
        blocks = k // block
        if k % block == 0 and fired(blocks > 2):
            given = _in_order(given, block, list(range(blocks))[::-1])
        return correct(given, constants, memory)

    return run


def _split_k(correct: Run, fired: Fired) -> Run:
    """Parts of K are added by atomics: in another order in each call."""
    stream = IntegerStream(0x5B17)

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        k, block = given["a"].shape[1], int(constants["block_k"])
        blocks = k // block
        order = stream.words(max(1, blocks)).argsort().tolist()
        if k % block == 0 and fired(blocks > 2 and order != sorted(order)):
            given = _in_order(given, block, order)
        return correct(given, constants, memory)

    return run


def _calls(run: Run) -> list[Tensors]:
    return [checks.fresh(run, _sample(9, 256, 48)) for _ in range(4)]


FAULTS = (
    Fault(
        id="B21",
        title="the tail of a ragged K is wrong",
        trigger="K = 511: K is no multiple of the block",
        sources=("vllm PR 42436", "triton issue 10927"),
        target=_OP,
        plant=_into_the_next_row,
        witness=lambda run: checks.fresh(run, _sample(5, 200, 40)),
        caught_by=("fixtures", "bits", "unread", "tiles"),
        note="modelled as a tail that is not masked",
    ),
    Fault(
        id="B18",
        title="parts of K are added in the order of their arrival, even with one slot",
        trigger="the same call twice",
        sources=("flashinfer issue 5221",),
        target=_OP,
        plant=_split_k,
        witness=_calls,
        caught_by=("bits", "sentinel", "repeat", "strided", "unread"),
        note="the order of arrival is drawn from a seeded stream, anew for each call",
    ),
    Fault(
        id="C5",
        title="K is summed from its end: another order, the same in every call",
        trigger="three blocks of K",
        sources=("planted",),
        target=_OP,
        plant=_reversed_k,
        witness=_calls,
        caught_by=("bits",),
    ),
)
