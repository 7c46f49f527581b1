"""What nobody states: the device's arithmetic, whether tiles change accumulators, graph replay."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from bitgate.kernels import probes
from bitgate.kernels.catalogue import KERNELS
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.device_check.context import FAILURES, Context, Difference, bitwise, difference
from bitgate.kernels.device_check.inputs import device_spread
from bitgate.kernels.device_check.rows import Answer, Row
from bitgate.kernels.loading import load
from bitgate.kernels.moe import align_triton, gemm_triton
from bitgate.kernels.moe.contract import TileConfig
from bitgate.kernels.moe.experts_data import route
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.spec import Implementation, Kernel

# Ten configurations: every instruction family (16 and 64 rows and more), three depths of K, both
# launch widths. If the accumulation is one chain of k = 16 steps, all of them give equal bits.
CONFIGS = tuple(
    TileConfig(block_m=m, block_n=n, block_k=k, group_m=g, num_warps=warps, num_stages=stages)
    for m, n, k, g, warps, stages in (
        (16, 64, 64, 1, 4, 3),
        (16, 128, 128, 8, 4, 3),
        (32, 64, 32, 8, 4, 4),
        (64, 64, 32, 8, 4, 3),
        (64, 128, 64, 8, 4, 3),
        (64, 128, 64, 8, 8, 2),
        (64, 256, 64, 8, 8, 3),
        (128, 64, 64, 8, 4, 3),
        (128, 128, 64, 8, 8, 3),
        (128, 256, 64, 8, 8, 3),
    )
)


def arithmetic(context: Context) -> Iterator[Row]:
    """Contraction, subnormals, ties, division, square root and exp, by torch and by Triton."""
    for question, answer in probes.run(context.name):
        yield Answer(section="arithmetic", question=question, answer=answer)


def graphs(context: Context) -> Iterator[Row]:
    """Captured once, replayed on other inputs: the bits of an eager call, for every implementation.

    Where the device has no graphs, the one answer says so.
    """
    support = context.device.graph_support()
    yield Answer(section="graphs", question="level", answer=f"{support.level}: {support.reason}")
    if support.level != "replay":
        return
    for definition in KERNELS:
        for found in definition.implementations:
            if context.late:
                return
            # What is compiled by torch or loops over values on the host has no graph.
            if context.name in found.devices and found.target.partition(":")[0].endswith("_triton"):
                yield _replayed(context, definition, found)


def _replayed(context: Context, kernel: Kernel, found: Implementation) -> Row:
    workload, constants = kernel.suites["default"][-1], dict(kernel.constants)
    outcome: Difference | Exception
    try:
        held, other = (context.to_device(kernel.make_inputs(workload, n)) for n in (0, 1))
        expected = context.call(kernel, found, other, constants)
        function, outputs = load(found.target), []
        replay = context.device.graph(lambda: outputs.append(function(**held, **constants)))
        for name, tensor in held.items():
            tensor.copy_(other[name])
        replay()
        context.device.synchronize()
        outcome = difference(expected, kernel.named_outputs(outputs[0]))
    except FAILURES as error:
        outcome = error
    return bitwise("graphs", context.side(found), "its eager call", workload, outcome)


def tiles(context: Context) -> Iterator[Row]:
    """Do accumulators of the bf16 matmul depend on the tile? Groups of tiles with equal bits."""
    hidden, columns, experts, top_k = (2048, 1536, 128, 8)
    counts: tuple[int, ...] = (1, 64, 257, 4096)
    if context.small:
        # The interpreter takes a millisecond for each step of each program.
        hidden, columns, experts, top_k, counts = 256, 128, 8, 2, (1, 33)
    w = device_spread(1, (experts, columns, hidden), scale_log2=9, device=context.name)
    for tokens in counts:
        a = device_spread(2, (tokens, hidden), scale_log2=6, device=context.name)
        ids = torch.from_numpy(route(IntegerStream(3), tokens, experts, top_k)).to(context.name)
        digests: dict[str, list[str]] = {}
        for config in CONFIGS:
            if context.late:
                return
            try:
                digest = _digest(_accumulator(a, w, ids, config))
            except FAILURES as error:
                digest = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            digests.setdefault(digest, []).append(_short(config))
        groups = [" ".join(members) for members in digests.values()]
        yield Answer(
            section="tiles",
            question=f"bf16 accumulators over {len(CONFIGS)} tiles, T={tokens}, K={hidden}",
            answer=f"{len(groups)} groups of equal bits: {' | '.join(groups)}",
        )


def _accumulator(a: Tensor, w: Tensor, ids: Tensor, config: TileConfig) -> Tensor:
    """Of every pair its row of the float32 accumulator."""
    experts = len(w)
    here = torch.arange(experts, dtype=torch.int32, device=a.device)
    aligned = align_triton.moe_align(topk_ids=ids, expert_map=here, block_m=config.block_m)
    call = GroupedMatmul(
        a=a,
        w=w,
        sorted_pairs=aligned[0],
        expert_ids=aligned[1],
        padded=aligned[2],
        weights=torch.ones(ids.numel(), device=a.device),
        top_k=ids.shape[1],
        apply_weights=0,
        config=config,
    )
    out, acc = call.new(torch.bfloat16), call.new(torch.float32)
    gemm_triton.grouped(call, out, acc)
    return acc


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _short(config: TileConfig) -> str:
    tile = f"{config.block_m}/{config.block_n}/{config.block_k}"
    return f"{tile}/g{config.group_m}/w{config.num_warps}/s{config.num_stages}"
