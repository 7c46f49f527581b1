"""The cases of the suite vllm-moe: shapes, routing and weights, made from integers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.experts_data import route, routing_weights, spread
from bitgate.parity.suites.composition import Block, Inputs
from bitgate.parity.suites.vllm_engine import Quantised
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

NAME: Final = "vllm-moe"
_E4M3_LARGEST: Final = 448.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison with vLLM.

    Attributes:
        name: what it is called in results.
        asks: the question that it answers.
        tokens: rows of x.
        hidden: columns of x.
        intermediate: columns of the activation.
        experts: of the layer, on all ranks.
        top_k: slots of a token.
        rank: of the expert-parallel ranks the one that runs; None: all experts are local.
        ranks: how many there are.
        block_shape: of FP8 weights, rows and columns; None: bfloat16.
        calls: how many calls with other inputs use one workspace.
        idle: how many local experts must get no token.
    """

    name: str
    asks: str
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    rank: int | None = None
    ranks: int = 1
    block_shape: Block | None = None
    calls: int = 1
    idle: int = 0

    @property
    def workload(self) -> Workload:
        """The point of moe_experts, which seeds the data."""
        axes = {name: getattr(self, name) for name in _AXES}
        return Workload(
            op="moe_experts", axes=tuple(sorted(axes.items())), dtype="bfloat16", case=self.name
        )


_AXES: Final = ("tokens", "hidden", "intermediate", "experts", "top_k")


def cases(*, full: bool) -> tuple[Case, ...]:
    """The cases, at the sizes of the model or, where kernels are interpreted, at reduced ones."""
    return (*_expert_parallel(full=full), *_small(full=full), _fp8(full=full))


def _expert_parallel(*, full: bool) -> Iterator[Case]:
    sizes = (2048, 768, 128) if full else (128, 96, 32)
    for rank in (0, 1):
        for tokens in (4096, 4097) if full else (32, 33):
            yield Case(
                name=f"ep-rank{rank}-{tokens}-tokens",
                asks="Qwen3-30B-A3B on one of two expert-parallel ranks, with whole and with "
                "ragged blocks of tokens"
                + ("" if full else "; reduced to what the interpreter can run"),
                tokens=tokens,
                hidden=sizes[0],
                intermediate=sizes[1],
                experts=sizes[2],
                top_k=8,
                rank=rank,
                ranks=2,
            )


def _small(*, full: bool) -> Iterator[Case]:
    hidden, intermediate = (1024, 512) if full else (64, 48)
    for top_k in (2, 4):
        yield Case(
            name=f"uneven-top{top_k}",
            asks="257 tokens over 16 experts by popularity, two of which get no token",
            tokens=257,
            hidden=hidden,
            intermediate=intermediate,
            experts=16,
            top_k=top_k,
            idle=2,
        )
    yield Case(
        name="repeated",
        asks="calls with other inputs in one workspace leave nothing behind",
        tokens=33,
        hidden=hidden,
        intermediate=intermediate,
        experts=16,
        top_k=4,
        rank=1,
        ranks=2,
        calls=3,
    )


def _fp8(*, full: bool) -> Case:
    tokens, hidden, intermediate, experts = (4096, 2048, 768, 128) if full else (33, 192, 128, 16)
    return Case(
        name="fp8-block-128x64",
        asks="the block shape reaches both products, and no step of theirs spans two scales",
        tokens=tokens,
        hidden=hidden,
        intermediate=intermediate,
        experts=experts,
        top_k=8 if full else 4,
        rank=0,
        ranks=2,
        block_shape=(128, 64),
    )


def make(case: Case, device: str) -> Iterator[Inputs]:
    """The inputs of every call of a case, on `device`, with the same weights.

    Raises:
        UsageError: the routing leaves fewer experts idle than the case needs.
    """
    stream = IntegerStream(case.workload.seed(0))
    first, local = _local(case)
    expert_map = None
    if case.rank is not None:
        expert_map = torch.full((case.experts,), -1, dtype=torch.int32)
        expert_map[first : first + local] = torch.arange(local, dtype=torch.int32)
        expert_map = expert_map.to(device)
    w_gate_up, w_down, quantised = _weights(case, stream, local, device)
    for _ in range(case.calls):
        ids = torch.from_numpy(route(stream, case.tokens, case.experts, case.top_k))
        used = torch.bincount(ids.flatten(), minlength=case.experts)[first : first + local]
        idle = int((used == 0).sum())
        if idle < case.idle:
            raise UsageError(f"{case.name}: expected {case.idle} local experts idle, got {idle}")
        yield Inputs(
            x=spread(stream, (case.tokens, case.hidden), scale_log2=6).to(device),
            topk_ids=ids.to(device),
            topk_weights=routing_weights(stream, (case.tokens, case.top_k)).to(device),
            w_gate_up=w_gate_up,
            w_down=w_down,
            experts=case.experts,
            expert_map=expert_map,
            quantised=quantised,
        )


def _local(case: Case) -> tuple[int, int]:
    """The first local expert, and how many there are."""
    local = case.experts // case.ranks
    return (case.rank or 0) * local, local


def _weights(
    case: Case, stream: IntegerStream, local: int, device: str
) -> tuple[Tensor, Tensor, Quantised | None]:
    shapes = ((2 * case.intermediate, case.hidden), (case.hidden, case.intermediate))
    # As in experts_data: gate has a spread of about 3, outputs one of about 1.
    shifts = (4 + case.hidden.bit_length() // 2, 7 + case.intermediate.bit_length() // 2)
    block = case.block_shape
    made, scales = [], []
    for shape, shift in zip(shapes, shifts, strict=True):
        dtype = torch.bfloat16 if block is None else torch.float8_e4m3fn
        matrices = torch.empty((local, *shape), dtype=dtype, device=device)
        for expert in range(local):
            # One expert at a time: all of them as 64-bit integers would take gigabytes.
            values = spread(stream, shape, scale_log2=shift if block is None else 0)
            matrices[expert] = values.clamp(-_E4M3_LARGEST, _E4M3_LARGEST).to(dtype).to(device)
        made.append(matrices)
        if block is not None:
            grid = (local, -(-shape[0] // block[0]), -(-shape[1] // block[1]))
            scales.append((routing_weights(stream, grid) * 2.0**-shift).to(device))
    if block is None:
        return made[0], made[1], None
    quantised = Quantised(gate_up_scales=scales[0], down_scales=scales[1], block_shape=block)
    return made[0], made[1], quantised
