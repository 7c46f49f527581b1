"""G4: changed inputs, repeated out of order, at kept and moved addresses, over poisoned memory.

Each planned input is called at least twice with others in between (A B A C B ...). Beside the plain
samples there are some with one input changed (results cached by part of them), one row more and
one row fewer (shapes that nobody tuned for), and, where the contract claims it, the same rows at
other places and in other company. The reference runs the same plan in its own process, so it, too,
answers every input twice.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bitgate.kernels.spec import Tensors
from bitgate.parity.bounds import needed
from bitgate.parity.compare import compare_tensors
from bitgate.parity.gates.base import Gate
from bitgate.parity.gates.evidence import Control
from bitgate.parity.gates.result import conclude, document, without_answer
from bitgate.parity.gates.session import ReferenceUnfit, Session
from bitgate.parity.gates.sweep import Step, Sweep, sweep
from bitgate.parity.gates.variants import mutants, perturbed, resized, row_axis, take_rows, varied
from bitgate.records.types import GateResult, Workload

ID, VERSION = "G4", 1
UNIT = "boundary execution"

_POISONS = (0xFF, 0x7B, 0x00)
_PERTURBED = 4
_HELD_OUT = 2
_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One input of the plan. With `rows`, the candidate is given only these rows of it."""

    key: str
    workload: Workload
    whole: Callable[[], Tensors]
    axis: str | None = None
    rows: tuple[int, ...] | None = None


def _check(session: Session) -> GateResult:
    items, steps = _plan(session)
    budget = session.budget
    if budget.max_p is not None and needed(budget.max_p, budget.confidence) > len(steps):
        reason = (
            f"p <= {budget.max_p} at {budget.confidence} needs "
            f"{needed(budget.max_p, budget.confidence)} clean executions, the budget plans "
            f"{len(steps)}; raise the number of cases"
        )
        return without_answer(ID, VERSION, "inconclusive", reason)
    if not steps:
        return without_answer(ID, VERSION, "blocked", "no workload was given; name a suite")
    controls: list[Control] = []
    swept = sweep(session, ID, steps, _expect(session, items, controls), to_the_end=False)
    if swept.failure is not None:
        _require_invariant_reference(session, items[steps[swept.failure.index].subject])
    else:
        controls.extend(_perturbation_seen(session, swept))
    proof = document(
        session,
        (ID, VERSION),
        unit=UNIT,
        expected=len(steps),
        cases=swept.cases,
        controls=tuple(controls),
    )
    return conclude(session, proof, swept, steps)


# --- the plan ------------------------------------------------------------------------------------


def _plan(session: Session) -> tuple[dict[str, Item], list[Step]]:
    """The inputs by key, and the calls in order."""
    items: dict[str, Item] = {}
    order: list[str] = []
    for workload in session.workloads:
        mine = {item.key: item for item in _items(session, workload)}
        items |= mine
        order += _interleaved(list(mine), session.budget.repeats)
    # Back to the first input of every workload, after all other shapes.
    order += [f"{workload.key}#0" for workload in session.workloads]
    kept: OrderedDict[str, Tensors] = OrderedDict()
    given = {key: _recent(kept, key, _given(session, item)) for key, item in items.items()}
    calls: dict[str, int] = {}
    steps = []
    for position, key in enumerate(order):
        nth = calls[key] = calls.get(key, -1) + 1
        steps.append(
            Step(
                subject=key,
                inputs=given[key],
                constants=session.subject.constants,
                # New contents at known addresses, and known contents at new addresses.
                placement="moved" if nth % 2 else "same",
                poison=_POISONS[position % len(_POISONS)],
            )
        )
    return items, steps


def _recent(
    kept: OrderedDict[str, Tensors], key: str, build: Callable[[], Tensors]
) -> Callable[[], Tensors]:
    """`build`, except that the last few results are kept: the plan soon returns to an input."""

    def get() -> Tensors:
        inputs = kept.pop(key) if key in kept else build()
        kept[key] = inputs
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return inputs

    return get


def _interleaved(keys: Sequence[str], repeats: int) -> list[str]:
    """Every key `repeats` times, no two neighbours alike: A B A C B D C ... , then sweeps."""
    order = [keys[0]]
    for earlier, later in pairwise(keys):
        order += [later, earlier]
    if len(keys) > 1:
        order.append(keys[0])
    order.append(keys[-1])
    for _ in range(repeats - 2):
        order += keys
    return order


def _items(session: Session, workload: Workload) -> Iterator[Item]:
    kernel, make = session.subject.kernel, session.subject.kernel.make_inputs
    axis = row_axis(kernel, workload)
    names = _perturbed_inputs(session, workload)
    for index in range(session.budget.cases):
        yield Item(
            key=f"{workload.key}#{index}", workload=workload, whole=_sample(make, workload, index)
        )
        if index < len(names):
            yield Item(
                key=_perturbed_key(workload, index, names[index]),
                workload=workload,
                whole=_perturbed_sample(session, workload, index, names[index]),
            )
    if axis is None:
        return
    extent = workload.axis(axis)
    for other in (extent + 1, extent - 1):
        if other > 0:
            near = resized(workload, axis, other)
            for index in range(_HELD_OUT):
                yield Item(
                    key=f"{near.key}#{index}", workload=near, whole=_sample(make, near, index)
                )
    if session.subject.claims.batch_invariant:
        yield from _other_company(session, resized(workload, axis, extent + 1), axis)


def _other_company(session: Session, whole: Workload, axis: str) -> Iterator[Item]:
    """The same rows in another batch: without the last, without the first, alone, turned around."""
    count = whole.axis(axis)
    views = {
        "without-last": tuple(range(count - 1)),
        "without-first": tuple(range(1, count)),
        "last-alone": (count - 1,),
        "reversed": tuple(reversed(range(count))),
    }
    for name, rows in views.items():
        yield Item(
            key=f"{whole.key}#0~{name}",
            workload=whole,
            whole=_sample(session.subject.kernel.make_inputs, whole, 0),
            axis=axis,
            rows=rows,
        )


def _sample(
    make: Callable[[Workload, int], Tensors], workload: Workload, index: int
) -> Callable[[], Tensors]:
    return lambda: make(workload, index)


def _perturbed_inputs(session: Session, workload: Workload) -> list[str]:
    """Which input of the sample with each index is changed; the first one several times."""
    kernel = session.subject.kernel
    names = varied(kernel, kernel.make_inputs(workload, 0))
    return [*names[:1] * _PERTURBED, *names[1:]][: session.budget.cases]


def _perturbed_key(workload: Workload, index: int, name: str) -> str:
    return f"{workload.key}#{index}~perturbed-{name}"


def _perturbed_sample(
    session: Session, workload: Workload, index: int, name: str
) -> Callable[[], Tensors]:
    kernel = session.subject.kernel

    def build() -> Tensors:
        inputs = kernel.make_inputs(workload, index)
        return perturbed(kernel, inputs, workload.seed(index), name)

    return build


def _given(session: Session, item: Item) -> Callable[[], Tensors]:
    """What the candidate is given: the whole input, or rows of it."""
    axis, rows = item.axis, item.rows
    if axis is None or rows is None:
        return item.whole
    return lambda: take_rows(session.subject.kernel.inputs, item.whole(), axis, rows)


# --- what is expected ----------------------------------------------------------------------------


def _expect(
    session: Session, items: dict[str, Item], controls: list[Control]
) -> Callable[[Step, Tensors], Tensors]:
    """Asks the reference; shows the comparison wrong answers at the first sight of a workload."""
    shown = set[str]()

    def expect(step: Step, inputs: Tensors) -> Tensors:
        item = items[step.subject]
        if item.axis is None or item.rows is None:
            expected = session.expected(step.subject, inputs)
        else:
            whole = session.expected(f"{item.workload.key}#0", item.whole())
            expected = take_rows(session.subject.kernel.outputs, whole, item.axis, item.rows)
        if item.workload in session.workloads and item.workload.key not in shown:
            shown.add(item.workload.key)
            controls.extend(_mutants_seen(item.workload.key, expected))
        return expected

    return expect


def _mutants_seen(key: str, expected: Tensors) -> Iterator[Control]:
    for name, wrong in mutants(expected).items():
        yield Control(
            subject=key, mutant=name, seen=not compare_tensors(key, expected, wrong).equal
        )


def _perturbation_seen(session: Session, swept: Sweep) -> Iterator[Control]:
    """Whether a change of an input changed the answer at all, in one sample of a workload."""
    answers = {case.subject: case.tensors for case in swept.cases}
    for workload in session.workloads:
        seen: dict[str, bool] = {}
        for index, name in enumerate(_perturbed_inputs(session, workload)):
            plain = answers[f"{workload.key}#{index}"]
            changed = answers[_perturbed_key(workload, index, name)]
            seen[name] = seen.get(name, False) or plain != changed
        for name, differs in seen.items():
            yield Control(subject=workload.key, mutant=f"{name} changed", seen=differs)


def _require_invariant_reference(session: Session, item: Item) -> None:
    """Raise ReferenceUnfit if a difference between batches is the reference's own."""
    if item.axis is None or item.rows is None:
        return
    outputs = session.subject.kernel.outputs
    whole = session.expected(f"{item.workload.key}#0", item.whole())
    alone = session.expected(item.key, _given(session, item)())
    taken = take_rows(outputs, whole, item.axis, item.rows)
    if not compare_tensors(item.key, taken, alone).equal:
        raise ReferenceUnfit(
            f"{session.subject.claims.name} claims that a row's bits do not depend on its company, "
            f"but the reference {session.subject.reference.name} gives other bits for {item.key}"
        )


EAGER = Gate(id=ID, title="changed-input eager repeats", version=VERSION, check=_check)
