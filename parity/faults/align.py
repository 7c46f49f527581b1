"""Faults of alignment: what is left out, what lies behind the last block, and whose pairs they are.

Target `moe_align`. Besides the shared checks: `capacity` (the buffers fit the blocks that are read,
every pair that has a local expert stands in exactly one block of that expert, unused blocks are
marked) derives its answer from the ids alone and knows no implementation.
"""

from collections import Counter
from collections.abc import Iterator

import torch

from bitgate.kernels.moe.align import MOE_ALIGN
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, New, Run
from bitgate.parity.faults.checks import Sample

_OP = "moe_align"
_RULES: Constants = {"block_m": 16, "layout": "vllm-0.33"}


def area() -> Area:
    """The target with every implementation of the catalogue, and its faults."""

    def every() -> list[Sample]:
        return checks.suite(MOE_ALIGN)

    def some() -> list[Sample]:
        return [one for one in every() if one.given["topk_ids"].numel() < 256][:3]

    target = checks.operator(
        MOE_ALIGN,
        MOE_BF16_1.name,
        every,
        some,
        Check(name="capacity", look=_capacity),
    )
    return Area(name="align", targets=(target,), faults=FAULTS)


# --- the structure, from the ids alone ------------------------------------------------------------


def _points() -> Iterator[Sample]:
    """Few and many pairs, one expert and many, padding, and experts elsewhere."""
    for tokens, top_k, experts in ((1, 1, 1), (4, 1, 1), (17, 1, 9), (9, 1, 9), (33, 6, 12)):
        flat = torch.arange(tokens * top_k) * 7 % experts
        ids = flat.view(tokens, top_k)
        for name, chosen in (("all", ids), ("padded", torch.where(ids % 3 == 0, -1, ids))):
            for spread in ("everywhere", "half elsewhere"):
                local = torch.arange(experts, dtype=torch.int32)
                if spread != "everywhere":
                    local = torch.where(local % 2 == 1, local // 2, -1).to(torch.int32)
                given = {"topk_ids": chosen.long(), "expert_map": local}
                where = f"{tokens}x{top_k} of {experts}, {name}, {spread}"
                yield Sample(name=where, given=given, constants=_RULES)


def _capacity(new: New) -> str | None:
    run = new()
    return checks.first(
        _structure(sample, checks.fresh(run, sample, fill=0x7F)) for sample in _points()
    )


def _structure(sample: Sample, made: Tensors) -> str | None:
    block_m = int(sample.constants["block_m"])
    pairs, experts = made["sorted_pairs"], made["expert_ids"]
    padded = int(made["padded"])
    if len(pairs) % block_m or len(pairs) != len(experts) * block_m:
        return (
            f"{sample.name}: {len(experts)} blocks of {block_m} read {len(experts) * block_m} "
            f"entries of sorted_pairs, which has {len(pairs)}"
        )
    if padded % block_m or not 0 <= padded <= len(pairs):
        return f"{sample.name}: padded is {padded}, of {len(pairs)} entries in blocks of {block_m}"
    used = padded // block_m
    if any(expert != -1 for expert in experts[used:].tolist()):
        return f"{sample.name}: unused blocks name the experts {experts[used:].tolist()}"
    blocks = pairs.view(-1, block_m)[:used].tolist()
    named = Counter(
        (pair, owner)
        for block, owner in zip(blocks, experts[:used].tolist(), strict=True)
        for pair in block
        if pair != sample.given["topk_ids"].numel()
    )
    if named != _wanted(sample):
        return f"{sample.name}: the pairs of the blocks are not those of their experts"
    return None


def _wanted(sample: Sample) -> Counter[tuple[int, int]]:
    local = sample.given["expert_map"].tolist()
    ids = sample.given["topk_ids"].flatten().tolist()
    owned = [(pair, local[chosen]) for pair, chosen in enumerate(ids) if 0 <= chosen < len(local)]
    return Counter((pair, owner) for pair, owner in owned if owner >= 0)


# --- the faults -----------------------------------------------------------------------------------


def _unrounded(correct: Run, fired: Fired) -> Run:
    """The buffer is the capacity in entries, which is no whole number of blocks."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        pairs, experts = given["topk_ids"].numel(), len(given["expert_map"])
        block_m = int(constants["block_m"])
        entries = pairs + min(pairs, experts) * (block_m - 1)
        if fired(entries % block_m != 0):
            made["sorted_pairs"] = made["sorted_pairs"][:entries]
        return made

    return run


def _tail_of_zeros(correct: Run, fired: Fired) -> Run:
    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        unused = made["expert_ids"][int(made["padded"]) // int(constants["block_m"]) :]
        if fired(len(unused) > 0):
            unused.zero_()
        return made

    return run


def _first_token_alone(correct: Run, fired: Fired) -> Run:
    """The kernel for one expert and one slot counts a single token."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        ids = given["topk_ids"]
        small = ids.shape[1] == 1 and len(given["expert_map"]) == 1 and len(ids) > 1
        if fired(small):
            kept = torch.full_like(ids, -1)
            kept[0] = ids[0]
            given = given | {"topk_ids": kept}
        return correct(given, constants, memory)

    return run


def _negative_index(correct: Run, fired: Fired) -> Run:
    """-1 indexes the counts from behind: padding belongs to the last expert."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        ids, experts = given["topk_ids"], len(given["expert_map"])
        if fired(bool((ids == -1).any())):
            given = given | {"topk_ids": torch.where(ids == -1, experts - 1, ids)}
        return correct(given, constants, memory)

    return run


def _global_as_local(correct: Run, fired: Fired) -> Run:
    """The ids of experts elsewhere are taken as if they were local ones."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        local, ids = given["expert_map"], given["topk_ids"]
        inside = (ids >= 0) & (ids < len(local))
        elsewhere = inside & (local[ids.clamp(0, len(local) - 1)] < 0)
        here = int((local >= 0).sum())
        if here and fired(bool(elsewhere.any())):
            owners = torch.where(local >= 0)[0]
            given = given | {"topk_ids": torch.where(elsewhere, owners[ids % here], ids)}
        return correct(given, constants, memory)

    return run


def _ids(rows: list[list[int]], experts: int) -> Sample:
    given = {
        "topk_ids": torch.tensor(rows),
        "expert_map": torch.arange(experts, dtype=torch.int32),
    }
    return Sample(name="trigger", given=given, constants=_RULES)


FAULTS = (
    Fault(
        id="B5",
        title="the capacity is no whole number of blocks, and the last block reads past the buffer",
        trigger="a capacity that is not a multiple of the block: 17 pairs of 9 experts, block 16",
        sources=("vllm issue 27917",),
        target=_OP,
        plant=_unrounded,
        witness=lambda run: checks.fresh(run, _ids([[e % 9] for e in range(17)], 9)),
        caught_by=("fixtures", "bits", "capacity"),
    ),
    Fault(
        id="B6",
        title="unused blocks name expert 0 instead of -1, and are computed from stale memory",
        trigger="fewer blocks than the capacity",
        sources=("vllm PR 35161",),
        target=_OP,
        plant=_tail_of_zeros,
        witness=lambda run: checks.fresh(run, _ids([[0, 0], [0, 0]], 4)),
        caught_by=("fixtures", "bits", "capacity"),
    ),
    Fault(
        id="B7",
        title="only token 0 is kept where one expert takes everything",
        trigger="one expert, one slot, 4 tokens",
        sources=("vllm-xpu-kernels issue 453",),
        target=_OP,
        plant=_first_token_alone,
        witness=lambda run: checks.fresh(run, _ids([[0]] * 4, 1)),
        caught_by=("fixtures", "capacity"),
    ),
    Fault(
        id="B10",
        title="the id -1 of padding is used as an index",
        trigger="any row of -1",
        sources=(
            "vllm-xpu-kernels issue 571, PR 572",
            "vllm PRs 48979, 57036, 57946",
            "vllm-gguf-plugin PR 130",
        ),
        target=_OP,
        plant=_negative_index,
        witness=lambda run: checks.fresh(run, _ids([[-1, -1], [0, 1]], 4)),
        caught_by=("fixtures", "bits", "capacity"),
    ),
    Fault(
        id="B13a",
        title="pairs of experts on another rank are computed by local ones",
        trigger="expert parallelism: a map with -1",
        sources=("sglang PR 12701",),
        target=_OP,
        plant=_global_as_local,
        witness=lambda run: checks.fresh(
            run,
            Sample(
                name="trigger",
                given={
                    "topk_ids": torch.tensor([[0, 1], [2, 3]]),
                    "expert_map": torch.tensor([-1, -1, 0, 1], dtype=torch.int32),
                },
                constants=_RULES,
            ),
        ),
        caught_by=("fixtures", "bits", "capacity"),
    ),
)
