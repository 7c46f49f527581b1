"""moe_align: the sort, the Triton kernels and a count by hand agree, whatever the ids are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.kernels.loading import load
from bitgate.kernels.moe import align_triton
from bitgate.kernels.moe.align import MOE_ALIGN
from bitgate.kernels.moe.align_data import CASES, aligned
from bitgate.kernels.moe.align_layouts import LAYOUTS, layout_of
from bitgate.kernels.moe.align_reference import moe_align as by_sort
from bitgate.kernels.moe.align_triton import moe_align as by_triton
from bitgate.kernels.spec import Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

CONSTANTS = dict(MOE_ALIGN.constants)
RUNS = [pytest.param(load(one.target), id=one.name) for one in MOE_ALIGN.implementations]
NAMES = [layout.name for layout in LAYOUTS]
Run = Callable[..., object]


def named(returned: object) -> Tensors:
    return MOE_ALIGN.named_outputs(returned)


def assert_same(expected: Tensors, actual: Tensors) -> None:
    result = compare_tensors("align", expected, actual)
    assert not result.mismatches, result.mismatches
    assert result.compared


def local(experts: int) -> torch.Tensor:
    """The map of a layer whose experts are all here."""
    return torch.arange(experts, dtype=torch.int32)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, 4))
    ids = st.lists(st.integers(-2, experts + 1), min_size=top_k, max_size=top_k)
    rows = draw(st.lists(ids, max_size=40))
    order = draw(st.permutations(range(experts)))
    here = draw(st.lists(st.booleans(), min_size=experts, max_size=experts))
    expert_map = [number if kept else -1 for number, kept in zip(order, here, strict=True)]
    return {
        "topk_ids": torch.tensor(rows, dtype=torch.int64).reshape(len(rows), top_k),
        "expert_map": ints(*expert_map),
        "block_m": draw(st.sampled_from([1, 16, 32])),
        "layout": draw(st.sampled_from(NAMES)),
    }


def by_hand(
    topk_ids: torch.Tensor, expert_map: torch.Tensor, block_m: int, layout: str = NAMES[0]
) -> Tensors:
    return aligned(topk_ids.flatten().tolist(), expert_map.tolist(), block_m, layout)


@settings(max_examples=40)
@given(problems())
def test_the_sort_counts_as_a_hand_does(problem: dict[str, Any]) -> None:
    assert_same(by_hand(**problem), named(by_sort(**problem)))


@settings(max_examples=12)
@given(problems())
def test_the_kernels_count_as_a_hand_does(problem: dict[str, Any]) -> None:
    assert_same(by_hand(**problem), named(by_triton(**problem)))


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("workload", MOE_ALIGN.suites["default"], ids=lambda one: one.key)
def test_the_kernels_equal_the_sort(workload: Workload, layout: str) -> None:
    inputs = MOE_ALIGN.make_inputs(workload, 0)
    constants = CONSTANTS | {"layout": layout}
    assert_same(named(by_sort(**inputs, **constants)), named(by_triton(**inputs, **constants)))


def test_more_pairs_than_a_chunk_and_more_experts_than_a_program() -> None:
    ids = torch.arange(4000).reshape(1000, 4) * 37 % 200
    arguments = {"topk_ids": ids, "expert_map": local(190), "block_m": 16}
    assert_same(named(by_sort(**arguments)), named(by_triton(**arguments)))


def test_the_layouts_differ_where_their_rules_say() -> None:
    """Two of four experts are here; a pair each, but for expert 1, which is elsewhere."""
    arguments = {
        "topk_ids": torch.tensor([[0, 1], [3, 1]]),
        "expert_map": ints(-1, -1, 0, 1),
        "block_m": 2,
    }
    new, old = (named(by_sort(**arguments, layout=name)) for name in ("vllm-0.33", "vllm-0.10.2"))
    assert new["sorted_pairs"].tolist() == [2, 4, 4, 4, 4, 4, 4, 4]
    assert new["expert_ids"].tolist() == [1, -1, -1, -1]
    assert new["padded"].tolist() == [2]
    assert old["sorted_pairs"].tolist() == [0, 4, 1, 3, 2, 4, 4, 4]
    # The tail is the expert 0 of the engine, which is not here; where it is, blocks without pairs
    # name a local expert.
    assert old["expert_ids"].tolist() == [-1, -1, 1, -1]
    assert old["padded"].tolist() == [6]
    moved = arguments | {"expert_map": ints(1, -1, -1, 0)}
    assert named(by_sort(**moved, layout="vllm-0.10.2"))["expert_ids"].tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("run", RUNS)
def test_no_local_expert_gives_no_block_to_compute(run: Run, layout: str) -> None:
    ids = torch.arange(24).reshape(8, 3) % 5
    found = named(run(topk_ids=ids, expert_map=ints(*[-1] * 5), block_m=16, layout=layout))
    rules = layout_of(layout)
    dropped = rules.drops_nonlocal
    # Where pairs are kept the tail is mapped, too; where they are not, no block has any.
    assert (found["expert_ids"] == (rules.tail if dropped else -1)).all()
    assert len(found["expert_ids"]) > 0
    assert found["padded"].tolist() == [0 if dropped else 5 * 16]
    assert (found["sorted_pairs"] == 24).all() == dropped


@pytest.mark.slow  # ROWS of 1 are programs one after another in the interpreter: seconds a case.
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("layout", NAMES)
def test_one_program_for_each_expert_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, rows: int, layout: str
) -> None:
    """As on a device, where no program sees all experts."""
    launch, seen = align_triton.launch, []

    def narrow(kernel: object, grid: tuple[int, ...], *arguments: object, **sizes: int) -> None:
        grid = (-(-6 // rows),)
        seen.append(kernel)
        launch(kernel, grid, *arguments, **{**sizes, "ROWS": rows, "CHUNK": 16})

    monkeypatch.setattr(align_triton, "launch", narrow)
    ids = torch.arange(120).reshape(40, 3) * 11 % 7
    expert_map = ints(2, -1, 0, -1, 1, 3)
    arguments = {"topk_ids": ids, "expert_map": expert_map, "block_m": 16, "layout": layout}
    assert_same(named(by_sort(**arguments)), named(by_triton(**arguments)))
    assert len(seen) == 2


# --- the matrix ----------------------------------------------------------------------------------

# Counts around powers of two and of blocks.
TOKENS = (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 257)
SLOTS = (1, 2, 3, 4, 6, 8, 9, 16)
EXPERTS = (1, 8, 60, 64, 65, 128, 256, 384, 512, 896)


def point(tokens: int, top_k: int, experts: int, case: str) -> Tensors:
    axes = (("experts", experts), ("tokens", tokens), ("top_k", top_k))
    workload = Workload(op="moe_align", axes=axes, dtype="bfloat16", case=case)
    return MOE_ALIGN.make_inputs(workload, 0)


def thin(count: int) -> list[tuple[int, int, int, str, str, int]]:
    """`count` points that step through every list at another pace, so that pairs of them meet."""
    found = []
    for step in range(count):
        experts = EXPERTS[step % len(EXPERTS)]
        slots = [k for k in SLOTS if k <= experts]
        layout = NAMES[(step // 3) % len(NAMES)]
        block_m = (16, 64, 1)[step % 3]
        tokens, case = TOKENS[step % len(TOKENS)], CASES[step % len(CASES)]
        found.append((tokens, slots[step % len(slots)], experts, case, layout, block_m))
    return found


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "case", "layout", "block_m"), thin(len(TOKENS) + 3)
)
def test_a_selection_of_the_matrix(
    tokens: int, top_k: int, experts: int, case: str, layout: str, block_m: int
) -> None:
    agree(point(tokens, top_k, experts, case) | {"block_m": block_m, "layout": layout})


def agree(arguments: dict[str, Any]) -> None:
    expected = named(by_sort(**arguments))
    assert_same(by_hand(**arguments), expected)
    assert_same(expected, named(by_triton(**arguments)))


@pytest.mark.parametrize(("tokens", "top_k"), [(1023, 1), (341, 3), (1024, 1), (128, 8)])
@pytest.mark.parametrize(("experts", "layout"), [(64, NAMES[0]), (65, NAMES[1])])
def test_pairs_and_experts_where_an_engine_changes_its_kernel(
    tokens: int, top_k: int, experts: int, layout: str
) -> None:
    agree(point(tokens, top_k, experts, "rank-1") | {"block_m": 64, "layout": layout})


@pytest.mark.slow  # five numbers of experts for each of tokens, in every case and layout
@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_the_whole_matrix(case: str, layout: str) -> None:
    for at, tokens in enumerate(TOKENS):
        for experts in (EXPERTS[(at + 3 * step) % len(EXPERTS)] for step in range(5)):
            slots = [k for k in SLOTS if k <= experts]
            top_k = slots[(tokens + experts) % len(slots)]
            agree(point(tokens, top_k, experts, case) | {"block_m": 16, "layout": layout})


@pytest.mark.parametrize("run", RUNS)
def test_no_tokens_give_no_blocks(run: Run) -> None:
    ids = torch.empty(0, 2, dtype=torch.int64)
    found = named(run(topk_ids=ids, expert_map=local(4), block_m=16))
    sizes = (found["sorted_pairs"].numel(), found["expert_ids"].numel())
    assert (*sizes, found["padded"].tolist()) == (0, 0, [0])


@pytest.mark.parametrize("run", RUNS)
def test_a_pair_in_another_place_is_seen(run: Run) -> None:
    """The control of every comparison above: one id changed, or two pairs of an expert swapped."""
    ids = torch.arange(24).reshape(12, 2) % 5
    expected = named(by_sort(topk_ids=ids, expert_map=local(5), block_m=16))
    changed = ids.clone()
    changed[3, 1] = (changed[3, 1] + 1) % 5
    wrong = named(run(topk_ids=changed, expert_map=local(5), block_m=16))
    assert compare_tensors("align", expected, wrong).mismatches
    wrong = named(run(topk_ids=ids, expert_map=ints(0, 1, 2, 4, 3), block_m=16))
    assert compare_tensors("align", expected, wrong).mismatches
    swapped = {name: value.clone() for name, value in expected.items()}
    swapped["sorted_pairs"][:2] = swapped["sorted_pairs"][:2].flip(0)
    assert compare_tensors("align", expected, swapped).mismatches


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_the_capacity_is_reached_and_never_exceeded(layout: Any) -> None:
    for pairs, experts, block_m in ((1, 1, 16), (7, 3, 16), (40, 64, 32), (200, 6, 16)):
        # One pair each, and the last expert has the rest: no other spread needs more blocks.
        spread = [min(pair, experts - 1) for pair in range(pairs)]
        needed = int(aligned(spread, range(experts), block_m, layout.name)["padded"]) // block_m
        capacity = layout.capacity(pairs, experts, block_m)
        assert needed <= capacity <= needed + experts
    assert layout.capacity(3 + 17, 4, 16) == -(-(20 + 4 * 15) // 16)


def test_few_pairs_get_a_block_each_in_one_layout() -> None:
    new, old = layout_of("vllm-0.33"), layout_of("vllm-0.10.2")
    assert (new.capacity(8, 128, 64), old.capacity(8, 128, 64)) == (8, -(-(8 + 128 * 63) // 64))
    assert (new.capacity(0, 128, 64), old.capacity(0, 128, 64)) == (0, 126)


def test_given_outputs_are_filled_whole() -> None:
    for workload in MOE_ALIGN.suites["default"][3:5]:
        inputs = MOE_ALIGN.make_inputs(workload, 0)
        expected = named(by_sort(**inputs, **CONSTANTS))
        outputs = {name: torch.full_like(value, 77) for name, value in expected.items()}
        returned = named(by_triton(**inputs, **CONSTANTS, **outputs))
        assert all(returned[name] is outputs[name] for name in outputs)
        assert_same(expected, returned)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk_ids": torch.zeros(2, 2, dtype=torch.int32)}, "expected topk_ids in int64"),
        ({"topk_ids": torch.zeros(2, dtype=torch.int64)}, r"topk_ids as \[tokens, top_k\]"),
        ({"topk_ids": None}, "topk_ids as a torch tensor, got NoneType"),
        ({"expert_map": local(2).long()}, "expected expert_map in int32, got int64"),
        ({"expert_map": local(0)}, "expert_map of at least 1 expert"),
        ({"expert_map": 2}, "expert_map as a torch tensor, got int"),
        ({"expert_map": ints(0, -2)}, r"-1 \(not here\) or 0 to 1, got -2 to 0"),
        ({"expert_map": ints(2, -1)}, r"-1 \(not here\) or 0 to 1, got -1 to 2"),
        ({"expert_map": ints(1, -1, 1, 0)}, r"got 1 for experts \[0, 2\]"),
        ({"block_m": 0}, "block_m of at least 1, an int, got 0"),
        ({"block_m": 16.0}, r"block_m of at least 1, an int, got 16\.0"),
        ({"block_m": True}, "block_m of at least 1, an int, got True"),
        ({"block_m": "16"}, "block_m of at least 1, an int, got '16'"),
        ({"block_m": None}, "block_m of at least 1, an int, got None"),
        ({"block_m": -(2**20000)}, "an int, got an integer of 20001 bits"),
        ({"block_m": 2**20000}, r"fewer than 2\*\*30 places.* of an integer of 20001 bits"),
        ({"block_m": 2**70}, r"fewer than 2\*\*30 places"),
        ({"expert_map": local(1 << 18), "block_m": 1 << 12}, r"fewer than 2\*\*30 places"),
        ({"layout": "vllm-0.9"}, r"layout of vllm-0\.33, vllm-0\.13, vllm-0\.10\.2, got"),
        ({"layout": None}, "got None"),
        ({"layout": ["vllm-0.33"]}, r"got \['vllm-0\.33'\]"),
    ],
)
def test_wrong_arguments_are_named(run: Run, change: dict[str, object], message: str) -> None:
    ids = torch.zeros(2, 2, dtype=torch.int64)
    arguments = {"topk_ids": ids, "expert_map": local(2), "block_m": 16}
    with pytest.raises(UsageError, match=message):
        run(**(arguments | change))


def test_a_map_whose_values_nobody_checked_writes_where_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device the values are not looked at; what they then mean is declared."""
    monkeypatch.setattr(align_triton, "check_map", lambda _: None)
    ids = torch.arange(40).reshape(20, 2) * 7 % 5
    for layout in NAMES:
        wild = by_triton(topk_ids=ids, expert_map=ints(5, 0, -7, 1, 9), block_m=16, layout=layout)
        clean = by_sort(topk_ids=ids, expert_map=ints(-1, 0, -1, 1, -1), block_m=16, layout=layout)
        assert_same(named(clean), named(wild))
    twice = named(by_triton(topk_ids=ids, expert_map=ints(0, 1, 0, 2, 3), block_m=16))
    together = torch.where(ids == 2, 0, ids)
    clean = by_sort(topk_ids=together, expert_map=ints(0, 1, -1, 2, 3), block_m=16)
    assert_same(named(clean), twice)


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
        ({"expert_map": (local4 := local(4)), "expert_ids": local4}, "expert_ids apart from"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Tensors, message: str) -> None:
    arguments = {"topk_ids": torch.zeros(2, 2, dtype=torch.int64), "expert_map": local(4)}
    with pytest.raises(UsageError, match=message):
        by_triton(**(arguments | outputs), block_m=16)
