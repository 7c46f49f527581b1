"""Tuned tiles reach an implementation by its tokens, and say in a record what they were."""

import inspect
import json
from typing import Any

import pytest
import torch

from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.loading import load
from bitgate.kernels.moe import MOE_EXPERTS, tiles
from bitgate.kernels.moe.configs import TunedFile, entry_of, parse
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, FP8_CONFIG, TileConfig
from bitgate.kernels.moe.gemm import MOE_GEMM
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.kernels.spec import Kernel
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

NAME = "E=12,N=40,device_name=TEST.json"
SMALL = TileConfig(block_m=16, block_n=32, block_k=32)
LARGE = TileConfig(block_m=32, block_n=64, block_k=32, num_warps=8)


def made(entries: dict[int, TileConfig], name: str = NAME, **more: Any) -> TunedFile:
    content = {str(tokens): entry_of(config) for tokens, config in entries.items()}
    return parse(name, json.dumps(content | more).encode())


FILE = made({8: SMALL, 64: LARGE}, triton_version="3.7.1")


def workload(kernel: Kernel = MOE_EXPERTS, **axes: int) -> Workload:
    known = {"experts": 12, "hidden": 96, "intermediate": 40, "tokens": 33, "top_k": 4}
    if kernel is MOE_GEMM:
        known = {"experts": 12, "k": 96, "n": 80, "tokens": 33, "top_k": 2}
    shape = tuple(sorted((known | axes).items()))
    return Workload(op=kernel.op, axes=shape, dtype="bfloat16")


def test_a_packed_file_is_the_file() -> None:
    assert tiles.unpacked(tiles.packed(FILE)) == FILE
    config = (("swiglu_limit", "10"), (tiles.TILES, tiles.packed(FILE)))
    assert tiles.of_config(config) == tiles.packed(FILE)
    assert tiles.without(config) == config[:1]
    assert tiles.of_config(config[:1]) == ""


@pytest.mark.parametrize(("tokens", "config"), [(1, SMALL), (36, SMALL), (37, LARGE), (999, LARGE)])
def test_each_call_gets_the_tiles_of_its_tokens(tokens: int, config: TileConfig) -> None:
    seen: list[TileConfig] = []

    def implementation(*, x: torch.Tensor, config: TileConfig) -> torch.Tensor:
        seen.append(config)
        return x

    run = tiles.bound(implementation, "moe_experts", tiles.packed(FILE))
    x = torch.zeros(tokens, 1)
    assert run(x=x) is x
    run(x=x)
    assert seen == [config, config]


def test_tiles_change_the_bits_of_the_experts_where_they_change_the_order() -> None:
    # Of an integer fixture no order changes a bit: the same inputs show that nothing else changed.
    (exact,) = [case for case in MOE_EXPERTS.integer_cases() if case.name == "small"]
    run = tiles.bound(experts_tile, "moe_experts", tiles.packed(FILE))
    assert torch.equal(run(**exact.inputs, **exact.constants), exact.expected["out"])
    inputs = MOE_EXPERTS.make_inputs(workload(hidden=512, tokens=64), 0)
    accumulators: list[torch.Tensor] = []

    def tap(name: str, tensor: torch.Tensor) -> None:
        if name == "gate_up_acc":
            accumulators.append(tensor)

    for call in (run, experts_tile):
        call(**inputs, **dict(MOE_EXPERTS.constants), tap=tap)
    assert not torch.equal(*accumulators)


@pytest.mark.parametrize("case", MOE_GEMM.integer_cases(), ids=lambda case: case.name)
def test_the_matmul_takes_tiles_but_for_its_alignment(case: Any) -> None:
    run = load("bitgate.kernels.moe.gemm_triton:moe_gemm")
    fitting = tiles.packed(made({1: TileConfig(block_m=16, block_n=32, block_k=32, group_m=1)}))
    out, acc = tiles.bound(run, "moe_gemm", fitting)(**case.inputs, **case.constants)
    assert torch.equal(out, case.expected["out"])
    assert torch.equal(acc, case.expected["acc"])


def test_a_record_says_which_tiles_and_from_where() -> None:
    said = dict(tiles.notes(tiles.resolved("moe_experts", tiles.packed(FILE), workload())))
    assert said["tiles:BLOCK_SIZE_N"] == "32"
    assert said["tiles:source"] == f"file {NAME}"
    assert said["tiles:sha256"] == FILE.sha256
    assert said["tiles:key"] == "8"
    assert said["tiles:notes"] == "tuned with Triton 3.7.1"
    default = dict(tiles.default_notes("moe_experts"))
    assert default["tiles:BLOCK_SIZE_K"] == str(DEFAULT_CONFIG.block_k)
    assert default["tiles:source"] == "DEFAULT_CONFIG, no file"
    deeper = dict(tiles.default_notes("moe_experts_fp8"))
    assert deeper["tiles:BLOCK_SIZE_K"] == str(FP8_CONFIG.block_k)
    assert deeper["tiles:source"] == "FP8_CONFIG, no file"


def test_every_tiled_operator_has_a_line() -> None:
    """And what its line says is what its implementations take without a file."""
    tiled = set(tiles.TILED)
    assert tiled <= {kernel.op for kernel in KERNELS}
    for kernel in KERNELS:
        for one in kernel.implementations:
            assert kernel.op in tiled or not one.tiled, one.name
            config = inspect.signature(load(one.target)).parameters.get("config")
            if config is not None and config.default is not None:
                assert config.default == tiles.TILED[kernel.op].default, one.name
        if "block_m" in dict(kernel.constants) and kernel.op in tiled:
            assert dict(kernel.constants)["block_k"] == tiles.TILED[kernel.op].default.block_k


@pytest.mark.parametrize(
    ("kernel", "axes"),
    [
        (MOE_EXPERTS, {}),
        # Both matmuls: 2 * 40 columns, and 40 summed elements.
        (MOE_GEMM, {}),
        (MOE_GEMM, {"n": 96, "k": 40}),
    ],
)
def test_a_file_of_the_shape_is_taken(kernel: Kernel, axes: dict[str, int]) -> None:
    assert tiles.resolved(kernel.op, tiles.packed(FILE), workload(kernel, **axes)).key == 8


@pytest.mark.parametrize(
    ("kernel", "axes", "file", "message"),
    [
        (MOE_EXPERTS, {"experts": 6}, FILE, "expected a file for 6 experts of 40"),
        (MOE_EXPERTS, {"intermediate": 80}, FILE, "expected a file for 12 experts of 80"),
        (MOE_GEMM, {"n": 40, "k": 96}, FILE, "expected a file for 12 experts of 96"),
        (MOE_GEMM, {}, made({1: LARGE}), "come aligned by 16, expected tiles of that"),
        (MOE_EXPERTS, {}, made({1: SMALL}, NAME.replace(".json", ",dtype=float8.json")), "dtype"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    kernel: Kernel, axes: dict[str, int], file: TunedFile, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tiles.resolved(kernel.op, tiles.packed(file), workload(kernel, **axes))


def test_an_operator_without_tiles_is_refused() -> None:
    with pytest.raises(UsageError, match="moe_act has none; operators with tiles: moe_experts"):
        tiles.bound(experts_tile, "moe_act", tiles.packed(FILE))
