"""The judge itself: faults that are none, checks that see too much or nothing, and controls."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.faults import checks
from bitgate.parity.faults.__main__ import described
from bitgate.parity.faults.base import Area, Check, Fault, Fired, Memory, Open, Run, Target
from bitgate.parity.faults.checks import Sample
from bitgate.parity.faults.document import page
from bitgate.parity.faults.run import Matrix, run
from bitgate.records.base import InvariantError
from bitgate.records.errors import UsageError

SAMPLE = Sample(name="three", given={"x": torch.tensor([1.0, 2.0, 3.0])}, constants={})


def double(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
    out = memory.take("out", tuple(given["x"].shape), torch.float32)
    return {"out": out.copy_(given["x"] * 2)}


def off_by_one(correct: Run, fired: Fired) -> Run:
    def wrong(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        made = correct(given, constants, memory)
        if fired(len(given["x"]) == 3):
            made["out"] += 1
        return made

    return wrong


def samples() -> list[Sample]:
    return [SAMPLE]


FAULT = Fault(
    id="X1",
    title="one too many",
    trigger="three numbers",
    sources=("planted",),
    target="double",
    plant=off_by_one,
    witness=lambda run: checks.fresh(run, SAMPLE),
    caught_by=("bits",),
)
TARGET = Target(
    name="double",
    correct={"plain": double},
    hosts=("plain",),
    checks=(checks.bits(double, samples), checks.repeat(samples)),
)


def matrix(*faults: Fault, target: Target = TARGET, gaps: tuple[Open, ...] = ()) -> Matrix:
    return run((Area(name="arithmetic", targets=(target,), faults=faults, open=gaps),))


def planted(run_wrong: Callable[[Run], Run], *, acts: bool) -> Callable[[Run, Fired], Run]:
    def plant(correct: Run, fired: Fired) -> Run:
        fired(acts)
        return run_wrong(correct)

    return plant


def test_a_fault_that_is_as_its_entry_says() -> None:
    result = matrix(FAULT)
    assert result.passed
    assert result.rows[0].checks("caught") == ("bits",)
    assert result.rows[0].checks("missed") == ("repeat",)
    assert [(one.check, one.finding) for one in result.controls] == [("bits", ""), ("repeat", "")]
    assert "expected 0x40000000, got 0x40400000" in result.rows[0].cells[0].finding


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plant": lambda correct, _: correct}, "its trigger did not happen: three numbers"),
        (
            {"plant": planted(lambda correct: correct, acts=True)},
            "the mutant equals the original where it was to differ",
        ),
        ({"caught_by": ("repeat",)}, "bits catches it, and is not listed: three: out: 3 of 3"),
        ({"caught_by": ("bits", "repeat")}, "repeat is listed, and does not catch it (missed)"),
        (
            {"plant": lambda correct, _: off_by_one(correct, Fired())},
            "bits catches it though it never fired: without the trigger: three: out",
        ),
        (
            {"witness": lambda run: object()},
            "the original does not repeat what the witness observed",
        ),
    ],
)
def test_what_contradicts_an_entry_is_a_problem(change: dict[str, object], message: str) -> None:
    result = matrix(replace(FAULT, **change))
    assert not result.passed
    assert any(message in problem for problem in result.problems), result.problems
    assert all(problem.startswith("X1 in plain: ") for problem in result.problems)


def test_a_check_that_never_met_the_trigger_is_idle() -> None:
    other = Sample(name="two", given={"x": torch.zeros(3)}, constants={"asleep": 1})

    def asleep(correct: Run, fired: Fired) -> Run:
        def wrong(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
            made = correct(given, constants, memory)
            if fired("asleep" not in constants):
                made["out"] += 1
            return made

        return wrong

    target = replace(TARGET, checks=(TARGET.checks[0], checks.repeat(lambda: [other])))
    result = matrix(replace(FAULT, plant=asleep), target=target)
    assert result.rows[0].checks("idle") == ("repeat",)
    assert result.passed


def test_a_check_that_refuses_what_is_correct_is_a_problem() -> None:
    strict = Check(name="strict", look=lambda _: "never good enough")
    result = matrix(
        replace(FAULT, caught_by=("bits", "strict")),
        target=replace(TARGET, checks=(*TARGET.checks, strict)),
    )
    assert result.problems[-1] == (
        "control plain: strict refuses what is correct: never good enough"
    )


def test_nothing_at_all_does_not_pass() -> None:
    assert not matrix().passed
    assert not Matrix(rows=(), controls=(), open=()).passed


def test_open_faults_are_shown_and_not_counted_as_caught() -> None:
    gap = Open(
        id="X2",
        title="a race of two devices",
        trigger="two devices",
        sources=("planted",),
        reason="there is one processor",
        needs="the repeat check on two devices",
    )
    document = described(matrix(FAULT, gaps=(gap,)))
    assert document["passed"]
    assert [one["id"] for one in document["faults"]] == ["X1"]
    text = page(document)
    assert "1 open" in text
    assert "| X2 | a race of two devices | two devices | planted | there is one" in text
    assert "| X1 | one too many | three numbers | planted | `double` | bits | repeat |" in text


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ((FAULT, FAULT), r"expected every id once, got \['X1'\] again"),
        ((replace(FAULT, target="triple"),), r"expected a target of area arithmetic \(double\)"),
        ((replace(FAULT, caught_by=("luck",)),), r"unknown checks \['luck'\]; double has \['bits"),
    ],
)
def test_a_catalogue_that_contradicts_itself(faults: tuple[Fault, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        matrix(*faults)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(FAULT, caught_by=()), "expected checks that catch it"),
        (lambda: replace(FAULT, sources=()), "expected a source"),
        (lambda: replace(TARGET, checks=()), "without a check nothing would be found"),
        (lambda: replace(TARGET, checks=TARGET.checks * 2), "check names repeat"),
        (lambda: replace(TARGET, hosts=("other",)), "expected hosts among"),
    ],
)
def test_entries_that_say_too_little(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        make()


def test_a_check_without_samples_is_refused() -> None:
    with pytest.raises(UsageError, match="expected samples for a check, got none"):
        checks.repeat(list).look(lambda: double)


# --- the shared checks ---------------------------------------------------------------------------


def stale(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
    """Adds to what is in the memory."""
    out = memory.take("out", (3,), torch.float32)
    return {"out": out.add_(given["x"])}


def summed(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
    """Rows that depend on the others."""
    return {"out": given["x"] / given["x"].sum()}


def counting() -> Run:
    calls = []

    def counted(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        calls.append(1)
        return {"out": given["x"] * len(calls)}

    return counted


ROWS = checks.Rows(inputs=("x",), outputs=("out",))
GRID = Sample(name="rows", given={"x": torch.arange(1.0, 7.0).view(3, 2)}, constants={})


def first_column_nan(given: Tensors) -> Tensors:
    return given | {"x": torch.full_like(given["x"], float("nan"))}


def strided_rows(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
    x = given["x"]
    return {"out": x.as_strided(x.shape, (x.shape[1], 1)).clone()}


@pytest.mark.parametrize(
    ("check", "wrong", "finding"),
    [
        (checks.sentinel(samples), stale, "three in memory of 0xff: out: 3 of 3"),
        (checks.reuse(lambda: [SAMPLE, SAMPLE]), stale, "three after others: out: 3 of 3"),
        (checks.repeat(samples), counting(), "three again: out: 3 of 3"),
        (checks.alone(samples, ROWS), summed, "three, token 0 alone: out: 1 of 1"),
        (checks.unread(samples, first_column_nan), double, "with NaN in what does not count"),
        (checks.strided(lambda: [GRID]), strided_rows, "rows with padded strides: out: 4 of 6"),
        (checks.refuses(samples, UsageError), double, "three was answered, not refused"),
    ],
)
def test_a_check_finds_what_it_is_there_for(check: Check, wrong: Run, finding: str) -> None:
    assert finding in str(check.look(lambda: wrong))


def test_shared_checks_pass_what_is_correct() -> None:
    def refusing(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        raise UsageError("no")

    for check in (
        checks.sentinel(samples),
        checks.reuse(lambda: [SAMPLE, SAMPLE]),
        checks.repeat(samples),
        checks.alone(samples, ROWS),
        checks.strided(lambda: [GRID]),
        checks.unread(samples, lambda given: given),
    ):
        assert check.look(lambda: double) is None, check.name
    assert checks.refuses(samples, UsageError).look(lambda: refusing) is None


def test_memory_is_filled_and_kept() -> None:
    memory = Memory(0xFF)
    first = memory.take("a", (2, 3), torch.bfloat16)
    assert bool(first.isnan().all())
    first.zero_()
    assert memory.take("a", (3,), torch.bfloat16).tolist() == [0.0] * 3
    assert bool(memory.take("a", (5, 4), torch.bfloat16).isnan().all())
    assert memory.take("b", (1,), torch.int32).tolist() == [-1]
