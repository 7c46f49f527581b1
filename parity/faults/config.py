"""Faults of configuration: tiles looked up by another question than the launch answers.

Target `tile config`: the tiles that an engine launches with, as integers. `published` compares with
values that were read in the engines' sources, `legal` wants tiles that matrix instructions and
descriptors take, and `promotion` wants no step over K longer than a group of scales.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bitgate.kernels.moe.configs import FIELDS, Resolved, resolve, tile_config, without_dtype
from bitgate.kernels.moe.configs_vllm import Lookup
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run, Target
from bitgate.records.errors import UsageError

_TARGET = "tile config"


@dataclass(frozen=True, slots=True)
class _Published:
    """A question, and the blocks (M, N, K) that the engine's source answers without a file."""

    engine: str
    dtype: str
    block_shape: tuple[int, int] | None
    tokens: int
    blocks: tuple[int, int, int]


_PUBLISHED = (
    _Published("0.10.2", "bf16", None, 16, (16, 32, 64)),
    _Published("0.10.2", "bf16", None, 4096, (64, 64, 32)),
    _Published("0.10.2", "fp8_w8a8", (128, 64), 4096, (64, 128, 64)),
    _Published("0.10.2", "fp8_w8a8", (128, 128), 1, (64, 128, 128)),
    _Published("0.33", "bf16", None, 1, (16, 64, 128)),
    _Published("0.33", "bf16", None, 4096, (128, 128, 64)),
    _Published("0.33", "fp8_w8a8", (128, 128), 64, (16, 128, 128)),
    _Published("0.33", "fp8_w8a8", (128, 128), 4096, (64, 128, 128)),
)


def area() -> Area:
    """The resolver, and its faults."""
    target = Target(
        name=_TARGET,
        correct={"resolve": _resolved},
        hosts=("resolve",),
        checks=(
            Check(name="published", look=_published),
            Check(name="legal", look=_legal),
            Check(name="promotion", look=_promotion),
        ),
    )
    return Area(name="config", targets=(target,), faults=FAULTS)


def _lookup(constants: Constants) -> Lookup:
    block = (int(constants["group_n"]), int(constants["group_k"]))
    return Lookup(
        experts=128,
        intermediate=768,
        tokens=int(constants["tokens"]),
        device_name="NVIDIA_H800",
        dtype=str(constants["dtype"]),
        block_shape=block if block[0] else None,
        engine=str(constants["engine"]),
    )


def _asked(one: _Published) -> Constants:
    group_n, group_k = one.block_shape or (0, 0)
    names: Constants = {"engine": one.engine, "dtype": one.dtype, "tokens": one.tokens}
    return {**names, "group_n": group_n, "group_k": group_k}


def _tensors(found: Resolved) -> Tensors:
    numbers = {name: int(value) for name, value in found.tiles.items()}
    return {field: torch.tensor([numbers[key]]) for field, key in FIELDS.items() if key in numbers}


def _resolved(_: Tensors, constants: Constants, __: Memory) -> Tensors:
    return _tensors(resolve(_lookup(constants)))


def _blocks(run: Run, one: _Published) -> tuple[int, int, int]:
    made = run({}, _asked(one), Memory())
    return int(made["block_m"]), int(made["block_n"]), int(made["block_k"])


def _published(new: New) -> str | None:
    run = new()
    return checks.first(
        f"{one}: launched with {_blocks(run, one)}" if _blocks(run, one) != one.blocks else None
        for one in _PUBLISHED
    )


def _legal(new: New) -> str | None:
    run = new()

    def findings() -> Iterator[str | None]:
        for one in _PUBLISHED:
            made = run({}, _asked(one), Memory())
            tiles = {FIELDS[name]: int(value) for name, value in made.items()}
            try:
                tile_config(Resolved(tiles=dict(tiles), tokens=one.tokens, source=_TARGET))
            except UsageError as error:
                yield str(error)

    return checks.first(findings())


def _promotion(new: New) -> str | None:
    run = new()
    return checks.first(
        f"{one}: a step of {_blocks(run, one)[2]} spans more than a group of scales"
        if one.block_shape and _blocks(run, one)[2] > min(one.block_shape)
        else None
        for one in _PUBLISHED
    )


# --- the faults -----------------------------------------------------------------------------------


def _without_dtype(correct: Run, fired: Fired) -> Run:
    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        found = without_dtype(_lookup(constants))
        fired(found is not None)
        return correct(given, constants, memory) if found is None else _tensors(found)

    return run


def _as_many_rows_as_tokens(correct: Run, fired: Fired) -> Run:
    """BLOCK_M is the power of two that holds the tokens, however few."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made, tokens = correct(given, constants, memory), int(constants["tokens"])
        if fired(tokens < 16):
            made["block_m"] = torch.tensor([1 << (tokens - 1).bit_length()])
        return made

    return run


def _unclamped(correct: Run, fired: Fired) -> Run:
    """BLOCK_K of a tuned file is launched as it stands there."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        if fired(int(constants["group_k"]) in (64, 128)):
            made["block_k"] = torch.tensor([256])
        return made

    return run


def _all(run: Run) -> list[Tensors]:
    return [run({}, _asked(one), Memory()) for one in _PUBLISHED]


FAULTS = (
    Fault(
        id="S4",
        title="tiles are looked up without the dtype: FP8 in blocks is launched with those of bf16",
        trigger="FP8 with block shape [128, 64] and 4096 tokens: BLOCK_K 32 instead of 64",
        sources=("NetX-lab/Frontier at a4b22df", "it took the name from bf16 buffers"),
        target=_TARGET,
        plant=_without_dtype,
        witness=_all,
        caught_by=("published",),
    ),
    Fault(
        id="B23",
        title="a default gives blocks of fewer rows than a descriptor can gather",
        trigger="BLOCK_M of 2 or 4, from few tokens",
        sources=("vllm PR 52652",),
        target=_TARGET,
        plant=_as_many_rows_as_tokens,
        witness=_all,
        caught_by=("published", "legal"),
    ),
    Fault(
        id="B36a",
        title="BLOCK_K of a tuned file is not clamped to the group of scales",
        trigger="BLOCK_K 256 with groups of 128",
        sources=("vllm PR 43506, its review",),
        target=_TARGET,
        plant=_unclamped,
        witness=_all,
        caught_by=("published", "promotion"),
    ),
)
