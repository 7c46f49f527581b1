"""Faults of FP8 in blocks: which scale belongs to what.

Target `moe_gemm_fp8`: the metadata of a correct matmul are changed as the defect changed them.
Target `fp8 shards`: the columns of one rank under tensor parallelism, whose cut need not be where a
block of scales ends; `shards` puts the ranks' columns side by side.
"""

from collections.abc import Iterator
from functools import cache
from math import gcd

import torch
from torch import Tensor

from bitgate.kernels.data import IntegerStream
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.contract import MOE_FP8_1
from bitgate.kernels.moe.gemm_fp8 import MOE_GEMM_FP8
from bitgate.kernels.moe.gemm_fp8_reference import moe_gemm_fp8
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run, Target
from bitgate.parity.faults.checks import Sample
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

_OP, _SHARDS = "moe_gemm_fp8", "fp8 shards"
# An intermediate size of 1536 over 8 ranks is one and a half blocks of 128.
_WIDTH = 192


def area() -> Area:
    """Both targets and their faults."""
    correct = checks.implementations(MOE_GEMM_FP8, MOE_FP8_1.name)
    host = next(iter(correct))
    matmul = Target(
        name=_OP,
        correct=correct,
        hosts=(host,),
        checks=(
            checks.fixtures(MOE_GEMM_FP8),
            checks.bits(correct[host], _some),
            checks.sentinel(_one),
            checks.repeat(_one),
            checks.unread(_one, _spoil),
            checks.refuses(_refused, UsageError),
        ),
    )
    shards = Target(
        name=_SHARDS,
        correct={"scales by their place": _shard},
        hosts=("scales by their place",),
        checks=(
            Check(name="shards", look=_side_by_side),
            Check(name="shapes", look=_shapes),
        ),
    )
    return Area(name="fp8", targets=(matmul, shards), faults=FAULTS)


@cache
def _sample(block_n: int = 64, block_k: int = 64) -> Sample:
    axes = {"experts": 3, "group_k": 128, "group_n": 128, "k": 320, "n": 144, "tokens": 3}
    workload = Workload(
        op=_OP, axes=tuple(sorted({**axes, "top_k": 2}.items())), dtype="float8_e4m3fn"
    )
    constants = {**dict(MOE_GEMM_FP8.constants), "block_n": block_n, "block_k": block_k}
    return Sample(
        name=f"{workload.key} in tiles of {block_n} columns and {block_k} of K",
        given=MOE_GEMM_FP8.make_inputs(workload, 0),
        constants=constants,
    )


def _some() -> tuple[Sample, ...]:
    """Tiles within the groups of scales, and tiles that span several."""
    return (_sample(), _sample(256, 256))


def _one() -> tuple[Sample, ...]:
    return (_sample(256, 256),)


def _spoil(given: Tensors) -> Tensors:
    """NaN in the scales of experts that no block has."""
    blocks = given["expert_ids"].tolist()
    scales = given["w_scales"].clone()
    scales[[expert not in blocks for expert in range(len(scales))]] = float("nan")
    return given | {"w_scales": scales}


def _refused() -> list[Sample]:
    sample = _sample()
    return [
        Sample(
            name=f"{name} in bfloat16",
            given=sample.given | {name: sample.given[name].bfloat16()},
            constants=sample.constants,
        )
        for name in ("a_scales", "w_scales")
    ]


# --- shards ---------------------------------------------------------------------------------------


@cache
def _exact() -> Tensors:
    """Small integers with scales that are powers of two: exact wherever a column stands."""
    stream = IntegerStream(0x5A)
    tokens, experts, n, k = 5, 2, 2 * _WIDTH, 128
    codes = {
        "a": torch.from_numpy(stream.integers((tokens, k), -2, 2)),
        "w": torch.from_numpy(stream.integers((experts, n, k), -2, 2)),
    }
    exponents = torch.from_numpy(stream.integers((experts, n // 128, 1), 0, 1))
    # Neighbours differ, so that the wrong block shows.
    exponents[:, 1] = 3 + exponents[:, 0]
    return {
        **{name: value.float().to(torch.float8_e4m3fn) for name, value in codes.items()},
        "a_scales": torch.ones(tokens, 1),
        "w_scales": torch.ldexp(torch.ones(experts, n // 128, 1), exponents),
        **aligned([token % experts for token in range(tokens)], range(experts), 16),
        "weights": torch.ones(tokens),
    }


_CALL: Constants = {"apply_weights": 0, "block_n": 64, "block_k": 64, "top_k": 1}


def _shard(given: Tensors, constants: Constants, _: Memory) -> Tensors:
    """Columns from `start` on: their scales are those of the blocks that they come from."""
    return _columns(given, int(constants["start"]), from_the_start=False)


def _columns(given: Tensors, start: int, *, from_the_start: bool) -> Tensors:
    """The product of a rank's columns; its first block starts at `start`, or at a block's own."""
    group = 128 if from_the_start else gcd(start, 128)
    scales = given["w_scales"].repeat_interleave(128 // group, dim=1)
    first, needed = start // group, -(-_WIDTH // group)
    mine = given | {
        "w": given["w"][:, start : start + _WIDTH].contiguous(),
        "w_scales": scales[:, first : first + needed].contiguous(),
    }
    out, acc = moe_gemm_fp8(**mine, **_CALL, group_n=group)  # type: ignore[arg-type]
    return {"out": out, "acc": acc}


def _both(run: Run) -> list[Tensors]:
    return [run(_exact(), {"start": start}, Memory()) for start in (0, _WIDTH)]


def _side_by_side(new: New) -> str | None:
    out, acc = moe_gemm_fp8(**_exact(), **_CALL)  # type: ignore[arg-type]
    parts = _both(new())
    made = {name: torch.cat([part[name] for part in parts], dim=1) for name in ("out", "acc")}
    return checks.differing("two ranks side by side", {"out": out, "acc": acc}, made)


def _shapes(new: New) -> str | None:
    """What a loader checks: every rank has its columns."""

    def findings() -> Iterator[str | None]:
        for part in _both(new()):
            if part["out"].shape[1] != _WIDTH:
                yield f"a rank has {part['out'].shape[1]} columns, not {_WIDTH}"

    return checks.first(findings())


def _blocks_from_the_cut(correct: Run, fired: Fired) -> Run:
    """The shard's scales are counted in whole blocks from where it was cut."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        start = int(constants["start"])
        if not fired(start % 128 != 0):
            return correct(given, constants, memory)
        return _columns(given, start, from_the_start=True)

    return run


# --- metadata of the matmul -----------------------------------------------------------------------


def _groups_shared(scales: Tensor, axis: int, together: int) -> Tensor:
    """Of every `together` neighbours along an axis, the first one's scale."""
    at = torch.arange(scales.shape[axis]) // together * together
    return scales.index_select(axis, at)


def _changed(given: Tensors, fired: Fired, **scales: Tensor) -> Tensors:
    fired(any(bool((value != given[name]).any()) for name, value in scales.items()))
    return given | scales


def _stride_zero(correct: Run, fired: Fired) -> Run:
    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        first = given["w_scales"][:1].expand_as(given["w_scales"]).contiguous()
        return correct(_changed(given, fired, w_scales=first), constants, memory)

    return run


def _bits_as_floats(correct: Run, fired: Fired) -> Run:
    """Scales in bfloat16 are taken, and two of them are read as one float."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        for name in ("a_scales", "w_scales"):
            if fired(given[name].dtype == torch.bfloat16):
                twice = torch.cat([given[name].reshape(-1)] * 2).contiguous()
                given = given | {name: twice.view(torch.float32).view(given[name].shape)}
        return correct(given, constants, memory)

    return run


def _one_scale_a_step(correct: Run, fired: Fired) -> Run:
    """A step over K that spans several groups takes the scales of the first."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        together = int(constants["block_k"]) // int(constants.get("group_k", 128))
        if constants.get("scheme", "block") == "block" and together > 1:
            a_scales = _groups_shared(given["a_scales"], 1, together)
            w_scales = _groups_shared(given["w_scales"], 2, together)
            given = _changed(given, fired, a_scales=a_scales, w_scales=w_scales)
        return correct(given, constants, memory)

    return run


def _one_scale_a_tile(correct: Run, fired: Fired) -> Run:
    """A tile of columns that spans several blocks takes the scales of the first."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        together = int(constants["block_n"]) // int(constants.get("group_n", 128))
        if constants.get("scheme", "block") == "block" and together > 1:
            w_scales = _groups_shared(given["w_scales"], 1, together)
            given = _changed(given, fired, w_scales=w_scales)
        return correct(given, constants, memory)

    return run


def _first_scale(correct: Run, fired: Fired) -> Run:
    """Without a block shape the kernel reads one scale of a row, and one of an expert."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        a_scales, w_scales = given["a_scales"], given["w_scales"]
        of_a = a_scales[:, :1].expand_as(a_scales).contiguous()
        of_w = w_scales[:, :1, :1].expand_as(w_scales).contiguous()
        return correct(_changed(given, fired, a_scales=of_a, w_scales=of_w), constants, memory)

    return run


def _half_a_tile(correct: Run, fired: Fired) -> Run:
    """In some tiles the second half of the columns is multiplied with the first half's weights."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        block_n, columns = int(constants["block_n"]), given["w"].shape[1]
        if fired(block_n >= 64 and int(constants["block_m"]) != 32 and columns > block_n // 2):
            at = torch.arange(columns)
            at = torch.where(at % block_n >= block_n // 2, at - block_n // 2, at)
            given = given | {"w": given["w"][:, at].contiguous()}
        return correct(given, constants, memory)

    return run


def _rule(correct: Run, fired: Fired, name: str, value: str | int) -> Run:
    """Another constant of the arithmetic than the contract's."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        fired(constants.get("scheme", "block") == "block" and constants.get(name) != value)
        return correct(given, {**constants, name: value}, memory)

    return run


def _all(run: Run) -> list[Tensors]:
    return [checks.fresh(run, sample) for sample in _some()]


def _answered(run: Run) -> list[str]:
    answers = []
    for sample in _refused():
        try:
            answers.append(str(checks.fresh(run, sample)["acc"].abs().sum()))
        except UsageError:
            answers.append("refused")
    return answers


FAULTS = (
    Fault(
        id="B14",
        title="the stride of the weight scales is 0: every expert has those of expert 0",
        trigger="scales of each expert and of each token",
        sources=("vllm PR 57092",),
        target=_OP,
        plant=_stride_zero,
        witness=_all,
        caught_by=("fixtures", "bits"),
    ),
    Fault(
        id="B22",
        title="a dot of a descriptor's bytes and scales is wrong in some tiles",
        trigger="BLOCK_N of 64 and more and a BLOCK_M that is not 32",
        sources=("intel-xpu-backend-for-triton issue 7510",),
        target=_OP,
        plant=_half_a_tile,
        witness=_all,
        caught_by=("fixtures", "bits"),
        note="a compiler's defect; modelled by its effect, in the tiles that it was reported for",
    ),
    Fault(
        id="B33",
        title="scales in bfloat16 are read through a pointer to float",
        trigger="bfloat16 scales",
        sources=("vllm PR 16801",),
        target=_OP,
        plant=_bits_as_floats,
        witness=_answered,
        caught_by=("refuses",),
    ),
    Fault(
        id="B35",
        title="a shard that is no whole number of blocks takes the scales of its neighbours",
        trigger="an intermediate size of 1536 over 8 ranks: 192, blocks of 128",
        sources=("vllm PR 48173", "ROCm/ATOM PR 1488"),
        target=_SHARDS,
        plant=_blocks_from_the_cut,
        witness=_both,
        caught_by=("shards",),
    ),
    Fault(
        id="B36b",
        title="a step over K spans two groups and takes one scale",
        trigger="BLOCK_K 256 with groups of 128 and no clamp",
        sources=("vllm PR 43506, its review",),
        target=_OP,
        plant=_one_scale_a_step,
        witness=_all,
        caught_by=("fixtures", "bits"),
    ),
    Fault(
        id="B37",
        title="a tile of columns that straddles blocks takes one scale",
        trigger="BLOCK_N 96 with groups of 128",
        sources=("rtp-llm PR 1364, its review",),
        target=_OP,
        plant=_one_scale_a_tile,
        witness=_all,
        caught_by=("fixtures", "bits"),
        note="in tiles of 256, which are powers of two here",
    ),
    Fault(
        id="S2",
        title="the block shape is not passed on: the first scale is read for all",
        trigger="activations quantised by groups, and a launch without a block shape",
        sources=("NetX-lab/Frontier, the FP8 branch of its profiling path",),
        target=_OP,
        plant=_first_scale,
        witness=_all,
        caught_by=("fixtures", "bits"),
    ),
    Fault(
        id="C8",
        title="scaled parts are added by fused multiply-adds",
        trigger="a compiler that contracts",
        sources=("vllm's Triton kernel, as compiled by default",),
        target=_OP,
        plant=lambda correct, fired: _rule(correct, fired, "accumulate", "mul-fma"),
        witness=_all,
        caught_by=("bits",),
    ),
    Fault(
        id="C9",
        title="promoted every 32 elements instead of every 64: the tiles of another dtype",
        trigger="BLOCK_K of 32",
        sources=("NetX-lab/Frontier at a4b22df, by its tile lookup",),
        target=_OP,
        plant=lambda correct, fired: _rule(correct, fired, "block_k", 32),
        witness=_all,
        caught_by=("bits",),
    ),
)
