"""Target `moe_experts`: the staged pipeline in tiles, and the faults planted in it.

Besides the shared checks: `buckets` sweeps the numbers of tokens at which engines change kernels,
and `ranks` splits integer fixtures over two ranks, whose sum is the whole, and asks a rank without
experts for +0.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import torch

from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.staged_reference import TILE
from bitgate.kernels.spec import IntegerCase, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults import experts_faults as faults
from bitgate.parity.faults.base import Area, Check, Fault, Memory, New, Run, Target
from bitgate.parity.faults.checks import Rows, Sample
from bitgate.parity.faults.pipeline import Pipeline
from bitgate.records.types import Workload

_OP = "moe_experts"
_ROWS = Rows(inputs=("x", "topk_ids", "topk_weights"), outputs=("out",))
_BUCKETS = (1, 2, 3, 4, 5, 8, 9, 17)
_PROFILER = ("NetX-lab/Frontier at a4b22df, its profiling path of fused MoE",)
_PLANTED = ("planted",)


def area() -> Area:
    """The pipeline by the references of its stages, and its faults."""
    truth = Pipeline(stages=TILE)
    target = Target(
        name=_OP,
        correct={"experts_tile": truth},
        hosts=("experts_tile",),
        checks=(
            checks.fixtures(MOE_EXPERTS),
            checks.bits(truth, _some),
            checks.sentinel(_some),
            checks.reuse(_some),
            checks.repeat(_some),
            checks.alone(_exact, _ROWS),
            checks.unread(_some, _spoil),
            checks.bits(truth, _buckets, name="buckets"),
            Check(name="ranks", look=_ranks),
        ),
    )
    return Area(name="experts", targets=(target,), faults=FAULTS)


# --- samples --------------------------------------------------------------------------------------


def _sample(case: str = "random", index: int = 0, **axes: int) -> Sample:
    shape = {"experts": 4, "hidden": 40, "intermediate": 24, "tokens": 6, "top_k": 2} | axes
    workload = Workload(op=_OP, axes=tuple(sorted(shape.items())), dtype="bfloat16", case=case)
    given = MOE_EXPERTS.make_inputs(workload, index)
    return Sample(name=workload.key, given=given, constants={"swiglu_limit": 10.0})


@cache
def _some() -> tuple[Sample, ...]:
    """Fewer rows after more, padding, and one slot with a weight that is not 1."""
    return (_sample("padding", top_k=3), _sample(tokens=2, top_k=1), _elsewhere())


def _elsewhere() -> Sample:
    """A rank that has every other expert."""
    sample = _sample("padding", experts=8, index=1)
    mine = torch.arange(8) % 2 == 1
    local = torch.where(mine, torch.arange(8) // 2, -1).to(torch.int32)
    weights = {name: sample.given[name][mine] for name in ("w_gate_up", "w_down")}
    given = sample.given | weights | {"expert_map": local}
    return Sample(name=f"{sample.name} of rank 1", given=given, constants=sample.constants)


@cache
def _buckets() -> tuple[Sample, ...]:
    return tuple(_sample(tokens=tokens, hidden=24, intermediate=16) for tokens in _BUCKETS)


@cache
def _exact() -> tuple[Sample, ...]:
    """Fixtures that are exact in any order, and sums whose order over blocks of K shows.

    A row's place in a tile must not count, and on some processors it does unless sums are exact.
    """
    return (*(_fixture(name) for name in ("small", "padding")), _steps())


def _steps() -> Sample:
    """Gates of 2^24 + 1 + 1 - 2^24, the ones in different blocks of 64: 0, and 2 in another order.

    Within any block of 64 or 128 the sum is exact, whatever order a matrix instruction takes.
    """
    x = torch.ones(3, 320)
    x[:, 0], x[:, 256] = 4096, 4096
    w_gate_up = torch.zeros(1, 2, 320)
    w_gate_up[0, 0, 0], w_gate_up[0, 0, 256] = 4096, -4096
    w_gate_up[0, 0, 128] = w_gate_up[0, 0, 192] = w_gate_up[0, 1, 5] = 1
    given = {
        "x": x.bfloat16(),
        "topk_ids": torch.zeros(3, 1, dtype=torch.int64),
        "topk_weights": torch.ones(3, 1),
        "w_gate_up": w_gate_up.bfloat16(),
        "w_down": torch.ones(1, 320, 1).bfloat16(),
    }
    return Sample(name="steps of K", given=given, constants={"swiglu_limit": float("inf")})


@cache
def _cases() -> Mapping[str, IntegerCase]:
    return {case.name: case for case in MOE_EXPERTS.integer_cases()}


def _fixture(name: str) -> Sample:
    case = _cases()[name]
    return Sample(name=name, given=case.inputs, constants=case.constants)


def _large() -> Sample:
    """One token whose first matmul gives 2^17, which float16 does not hold."""
    sample = _steps()
    w_gate_up = torch.zeros(1, 2, 320)
    w_gate_up[0, :, 0] = 32
    given = sample.given | {"w_gate_up": w_gate_up.bfloat16()}
    return Sample(name="large", given=given, constants=sample.constants)


def _spoil(given: Tensors) -> Tensors:
    """NaN in the weights of experts that no token chose, and in the weights of padding."""
    experts = len(given["w_gate_up"])
    local = given.get("expert_map", torch.arange(experts, dtype=torch.int32)).tolist()
    ids = given["topk_ids"]
    chosen = {local[one] for one in ids.flatten().tolist() if 0 <= one < len(local)}
    idle = torch.tensor([expert not in chosen for expert in range(experts)])
    spoiled = {name: given[name].clone() for name in ("w_gate_up", "w_down", "topk_weights")}
    for name in ("w_gate_up", "w_down"):
        spoiled[name][idle] = float("nan")
    spoiled["topk_weights"][(ids < 0) | (ids >= len(local))] = float("nan")
    return given | spoiled


# --- ranks ----------------------------------------------------------------------------------------


def _ranks(new: New) -> str | None:
    """Two ranks of integer fixtures add up to the whole, and a rank without experts to +0."""
    run = new()

    def findings() -> Iterator[str | None]:
        for case in (_cases()["small"], _cases()["padding"]):
            experts = len(case.inputs["w_down"])
            total = torch.zeros(case.expected["out"].shape)
            for rank in (0, 1):
                given = _of_rank(case.inputs, rank)
                # The poison of 0x7f is finite, so that it shows as a number, too.
                total += run(given, case.constants, Memory(0x7F))["out"].float()
            where = f"{case.name} over two ranks"
            yield checks.differing(where, case.expected, {"out": total.bfloat16()})
            nobody = torch.full((experts,), -1, dtype=torch.int32)
            given = _of_rank(case.inputs, 0) | {"expert_map": nobody}
            none = run(given, case.constants, Memory(0xFF))["out"]
            zero = {"out": torch.zeros_like(none)}
            yield checks.differing(f"{case.name} without experts", zero, {"out": none})

    return checks.first(findings())


def _of_rank(given: Tensors, rank: int) -> Tensors:
    experts = len(given["w_down"])
    mine = torch.arange(experts) // (experts // 2) == rank
    local = torch.where(mine, torch.arange(experts) % (experts // 2), -1).to(torch.int32)
    weights = {name: given[name][mine] for name in ("w_gate_up", "w_down")}
    return given | weights | {"expert_map": local}


# --- the faults -----------------------------------------------------------------------------------


def _out(run: Run, sample: Sample) -> Tensors:
    return {"out": checks.fresh(run, sample)["out"]}


def _stage(
    name: str,
    ident: str,
    sources: tuple[str, ...] = _PLANTED,
    *,
    trigger: str = "any tokens",
    caught_by: tuple[str, ...] = ("fixtures", "bits", "buckets", "ranks"),
) -> Fault:
    return Fault(
        id=ident,
        title=name,
        trigger=trigger,
        sources=sources,
        target=_OP,
        plant=faults.in_stages(faults.STAGES[name]),
        witness=lambda run: [_out(run, _sample(tokens=9)), _out(run, _fixture("clamped"))],
        caught_by=caught_by,
    )


FAULTS = (
    _stage(
        "gate half unactivated, no reduction",
        "B39",
        _PROFILER,
        trigger="any tokens, compared with gated experts",
    ),
    _stage("no activation", "M1"),
    _stage("no reduction, first slot", "M2"),
    _stage("no reduction, last slot", "M3"),
    _stage("no routing weight", "M4"),
    _stage("gate and up swapped", "M5"),
    _stage("wrong expert", "M6", caught_by=("fixtures", "bits", "unread", "buckets", "ranks")),
    _stage(
        "not clamped",
        "M7",
        trigger="a gate or an up beyond the limit",
        caught_by=("fixtures", "bits", "buckets"),
    ),
    Fault(
        id="S3",
        title="the compute type is float16 though all buffers are bfloat16",
        trigger="values that float16 rounds, or beyond 65504",
        sources=(*_PROFILER, "it passed float16 whenever FP8 was on"),
        target=_OP,
        plant=faults.rounded_by(faults.through_half),
        witness=lambda run: _out(run, _large()),
        caught_by=("bits", "buckets"),
    ),
    Fault(
        id="C2",
        title="the routing weight multiplies the rounded row (another engine's convention)",
        trigger="any weight that is not a power of two",
        sources=("vllm-xpu-kernels moe_gather",),
        target=_OP,
        plant=faults.rounded_by(faults.weighed_late),
        witness=lambda run: _out(run, _sample(tokens=9)),
        caught_by=("bits", "buckets"),
    ),
    Fault(
        id="C3",
        title="routing weights in bfloat16",
        trigger="any weight that bfloat16 does not hold",
        sources=("vllm's torch experts",),
        target=_OP,
        plant=faults.rounded_by(faults.weighed_in_bfloat16),
        witness=lambda run: _out(run, _sample(tokens=9)),
        caught_by=("bits", "buckets"),
    ),
    Fault(
        id="B12",
        title="top-1 with a routing scale reads a buffer that nobody wrote",
        trigger="one slot and a weight that is not 1",
        sources=("sglang PR 40187",),
        target=_OP,
        plant=faults.unwritten_top_one,
        witness=lambda run: _out(run, _sample(tokens=2, top_k=1)),
        caught_by=("bits", "sentinel"),
    ),
    Fault(
        id="B13c",
        title="rows of experts on other ranks, which this one never writes, are reduced",
        trigger="tensor and expert parallelism of 8, Qwen3-30B",
        sources=("sglang PR 12701",),
        target=_OP,
        plant=faults.unmapped_sum,
        witness=lambda run: checks.fresh(run, _elsewhere(), fill=0x7F),
        caught_by=("sentinel", "reuse", "ranks"),
    ),
    Fault(
        id="B16",
        title="one token alone is summed in another order than with others",
        trigger="the same prompt cold and fully cached",
        sources=("vllm issue 57016",),
        target=_OP,
        plant=faults.tiles_by_tokens,
        witness=lambda run: [
            _out(run, _ROWS.chosen(_steps(), torch.arange(rows)))["out"][0].tolist()
            for rows in (1, 3)
        ],
        caught_by=("alone",),
        note="the cause was not published; modelled as tiles that depend on the number of tokens",
    ),
    Fault(
        id="B25",
        title="a tuned kernel is wrong in one bucket of token counts",
        trigger="3 or 4 tokens",
        sources=("ROCm/aiter issue 3933",),
        target=_OP,
        plant=faults.wrong_bucket,
        witness=lambda run: _out(run, _sample(tokens=3)),
        caught_by=("buckets",),
    ),
    Fault(
        id="B34",
        title="the chunk loop keeps the first chunk's shape for the last",
        trigger="130 tokens in chunks of 128",
        sources=("vllm PR 20392",),
        target=_OP,
        plant=faults.first_chunk_shape,
        witness=lambda run: _out(run, _sample(tokens=9)),
        caught_by=("fixtures", "alone", "buckets", "ranks"),
        note="in chunks of 8",
    ),
    Fault(
        id="B38",
        title="weights of further slots are those of the first",
        trigger="two slots",
        sources=("vllm-xpu-kernels PR 66",),
        target=_OP,
        plant=faults.first_weights,
        witness=lambda run: _out(run, _sample()),
        caught_by=("fixtures", "bits", "unread", "buckets", "ranks"),
    ),
)
