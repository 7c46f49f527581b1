"""moe_align: the sort, the Triton kernels and a count by hand agree, whatever the ids are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.kernels.loading import load
from bitgate.kernels.moe.align import MOE_ALIGN
from bitgate.kernels.moe.align_data import aligned
from bitgate.kernels.moe.align_reference import moe_align as by_sort
from bitgate.kernels.moe.align_triton import moe_align as by_triton
from bitgate.kernels.moe.contract import block_capacity
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError

CONSTANTS = dict(MOE_ALIGN.constants)
RUNS = [load(one.target) for one in MOE_ALIGN.implementations]
NAMES = [one.name for one in MOE_ALIGN.implementations]


def named(returned: object) -> Tensors:
    return MOE_ALIGN.named_outputs(returned)


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("align", expected, actual)
    assert not result.mismatches, result.mismatches
    assert result.compared


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, 4))
    rows = draw(
        st.lists(
            st.lists(st.integers(-2, experts + 1), min_size=top_k, max_size=top_k), max_size=40
        )
    )
    ids = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), top_k)
    return ids, experts, draw(st.sampled_from([16, 32]))


@settings(max_examples=30)
@given(problems())
def test_the_sort_counts_as_a_hand_does(problem: tuple[torch.Tensor, int, int]) -> None:
    ids, experts, block_m = problem
    expected = aligned(ids.flatten().tolist(), experts, block_m)
    assert_same(expected, named(by_sort(topk_ids=ids, experts=experts, block_m=block_m)))


@settings(max_examples=10)
@given(problems())
def test_the_kernels_count_as_a_hand_does(problem: tuple[torch.Tensor, int, int]) -> None:
    ids, experts, block_m = problem
    expected = aligned(ids.flatten().tolist(), experts, block_m)
    assert_same(expected, named(by_triton(topk_ids=ids, experts=experts, block_m=block_m)))


@pytest.mark.parametrize("workload", MOE_ALIGN.suites["default"], ids=lambda one: one.key)
def test_the_kernels_equal_the_sort(workload: object) -> None:
    inputs = MOE_ALIGN.make_inputs(workload, 0)
    assert_same(named(by_sort(**inputs, **CONSTANTS)), named(by_triton(**inputs, **CONSTANTS)))


def test_more_pairs_than_a_chunk_and_more_experts_than_a_program() -> None:
    ids = torch.arange(4000).reshape(1000, 4) * 37 % 200
    arguments = {"topk_ids": ids, "experts": 190, "block_m": 16}
    assert_same(named(by_sort(**arguments)), named(by_triton(**arguments)))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_one_program_for_each_expert_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """As on a device, where no program sees all experts."""
    from bitgate.kernels.moe import align_triton

    launch, seen = align_triton.launch, []

    def narrow(kernel: object, grid: tuple[int, ...], *arguments: object, **sizes: int) -> None:
        grid = (-(-6 // rows),)
        seen.append(kernel)
        launch(kernel, grid, *arguments, **{**sizes, "ROWS": rows, "CHUNK": 16})

    monkeypatch.setattr(align_triton, "launch", narrow)
    ids = torch.arange(120).reshape(40, 3) * 11 % 7
    arguments = {"topk_ids": ids, "experts": 6, "block_m": 16}
    assert_same(named(by_sort(**arguments)), named(by_triton(**arguments)))
    assert len(seen) == 2


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_no_tokens_give_no_blocks(run: object) -> None:
    ids = torch.empty(0, 2, dtype=torch.int64)
    sorted_pairs, expert_ids, padded = run(topk_ids=ids, experts=4, block_m=16)
    assert (sorted_pairs.numel(), expert_ids.numel(), padded.tolist()) == (0, 0, [0])


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_a_pair_in_another_place_is_seen(run: object) -> None:
    """The control of every comparison above: one id changed, or two pairs of an expert swapped."""
    ids = torch.arange(24).reshape(12, 2) % 5
    expected = named(by_sort(topk_ids=ids, experts=5, block_m=16))
    changed = ids.clone()
    changed[3, 1] = (changed[3, 1] + 1) % 5
    wrong = named(run(topk_ids=changed, experts=5, block_m=16))
    assert compare_tensors("align", expected, wrong).mismatches
    swapped = {name: value.clone() for name, value in expected.items()}
    swapped["sorted_pairs"][:2] = swapped["sorted_pairs"][:2].flip(0)
    assert compare_tensors("align", expected, swapped).mismatches


def test_the_capacity_is_reached_and_never_exceeded() -> None:
    for pairs, experts, block_m in ((1, 1, 16), (7, 3, 16), (40, 64, 32), (200, 6, 16)):
        # One pair each, and the last expert has the rest: no other spread needs more blocks.
        spread = [min(pair, experts - 1) for pair in range(pairs)]
        needed = int(aligned(spread, experts, block_m)["padded"]) // block_m
        capacity = block_capacity(pairs, experts, block_m)
        assert needed <= capacity <= needed + experts
    assert (
        block_capacity(3 + 16, 3, 16) == 4 == int(aligned([0, 1, *[2] * 17], 3, 16)["padded"]) // 16
    )


def test_given_outputs_are_filled_whole() -> None:
    inputs = MOE_ALIGN.make_inputs(MOE_ALIGN.suites["default"][3], 0)
    expected = by_sort(**inputs, **CONSTANTS)
    given_outputs = {name: torch.full_like(value, 77) for name, value in named(expected).items()}
    returned = named(by_triton(**inputs, **CONSTANTS, **given_outputs))
    assert all(returned[name] is given_outputs[name] for name in given_outputs)
    assert_same(named(expected), returned)


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk_ids": torch.zeros(2, 2, dtype=torch.int32)}, "expected topk_ids in int64"),
        ({"topk_ids": torch.zeros(2, dtype=torch.int64)}, r"topk_ids as \[tokens, top_k\]"),
        ({"experts": 0}, "experts of at least 1, an int, got 0"),
        ({"block_m": 16.0}, r"block_m of at least 1, an int, got 16\.0"),
        ({"experts": 1 << 20, "block_m": 1 << 12}, r"fewer than 2\*\*31 places"),
    ],
)
def test_wrong_arguments_are_named(run: object, change: dict[str, object], message: str) -> None:
    arguments = {"topk_ids": torch.zeros(2, 2, dtype=torch.int64), "experts": 2, "block_m": 16}
    with pytest.raises(UsageError, match=message):
        run(**(arguments | change))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"padded": torch.zeros(2, dtype=torch.int32)}, "expected axis one of 1, got 2"),
        ({"expert_ids": torch.zeros(5, dtype=torch.int32)}, "expected axis blocks of 4, got 5"),
        ({"padded": torch.zeros(1, dtype=torch.int64)}, "expected padded in int32"),
        (
            {
                "expert_ids": (shared := torch.zeros(64, dtype=torch.int32))[:4],
                "sorted_pairs": shared,
            },
            "expected outputs apart from each other",
        ),
        ({"expert_ids": torch.zeros(8, dtype=torch.int32)[::2]}, "expert_ids to be contiguous"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Tensors, message: str) -> None:
    ids = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(UsageError, match=message):
        by_triton(topk_ids=ids, experts=4, block_m=16, **outputs)
