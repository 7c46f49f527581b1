"""The checks that operators share, each made for its samples; an operator's own are in its area.

Every check is metamorphic (the implementation against itself under a change that must not matter)
or compares with an expected value that it did not compute by the implementation under test.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from bitgate.kernels.loading import load
from bitgate.kernels.spec import Constants, Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.parity.faults.base import FINITE_FILL, NAN_FILL, Check, Memory, New, Run, Target
from bitgate.records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Inputs and constants of one call."""

    name: str
    given: Tensors
    constants: Constants


Samples = Callable[[], Sequence[Sample]]


def present(samples: Samples) -> Sequence[Sample]:
    """The samples. Raises UsageError where there are none: a check of nothing would pass."""
    found = samples()
    if not found:
        raise UsageError("faults: expected samples for a check, got none; nothing would be checked")
    return found


def into(kernel: Kernel, function: Callable[..., object]) -> Run:
    """A correct implementation of an operator as a Run: its outputs are copied into the memory."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        results = kernel.named_outputs(function(**given, **constants))
        return {
            name: memory.take(name, tuple(value.shape), value.dtype).copy_(value)
            for name, value in results.items()
        }

    return run


def filling(
    kernel: Kernel, function: Callable[..., object], reference: Callable[..., object]
) -> Run:
    """An implementation that fills outputs of the caller; the reference tells their shapes."""

    def run(given: Tensors, constants: Constants, memory: Memory) -> Tensors:
        like = kernel.named_outputs(reference(**given, **constants))
        outputs = {
            name: memory.take(name, tuple(value.shape), value.dtype) for name, value in like.items()
        }
        function(**given, **constants, **outputs)
        return outputs

    return run


def differing(where: str, expected: Tensors, actual: Tensors) -> str | None:
    """The first difference in bits, or None; tensors without elements must agree in shape."""
    for mismatch in compare_tensors(where, expected, actual).mismatches:
        return f"{where}: {mismatch.tensor}: {mismatch.detail}"
    return None


def first(findings: Iterator[str | None]) -> str | None:
    """The first finding; later ones are not looked for."""
    return next((finding for finding in findings if finding is not None), None)


def fresh(run: Run, sample: Sample, fill: int = 0) -> Tensors:
    """One call in memory of its own."""
    return run(sample.given, sample.constants, Memory(fill))


def fixtures(kernel: Kernel) -> Check:
    """Integer-exact fixtures, whose expected values follow by counting alone."""
    cases = kernel.integer_cases()
    if not cases:
        raise UsageError(f"{kernel.op}: expected integer-exact fixtures, got none")

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for case in cases:
                made = run(case.inputs, case.constants, Memory())
                # A pipeline shows more boundaries than the operator has outputs.
                shown = {name: made[name] for name in case.expected if name in made}
                yield differing(f"{kernel.op}#integer/{case.name}", case.expected, shown)

        return first(findings())

    return Check(name="fixtures", look=look)


def bits(reference: Run, samples: Samples, name: str = "bits") -> Check:
    """All outputs, accumulators included, bit for bit those of the reference."""

    @cache
    def expected() -> list[tuple[Sample, Tensors]]:
        return [(sample, fresh(reference, sample)) for sample in present(samples)]

    def look(new: New) -> str | None:
        run = new()

        return first(
            differing(sample.name, value, fresh(run, sample)) for sample, value in expected()
        )

    return Check(name=name, look=look)


def sentinel(samples: Samples) -> Check:
    """Outputs and workspaces filled with NaN or with a finite number, before the call."""

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                expected = fresh(run, sample)
                for fill in (NAN_FILL, FINITE_FILL):
                    where = f"{sample.name} in memory of 0x{fill:02x}"
                    yield differing(where, expected, fresh(run, sample, fill))

        return first(findings())

    return Check(name="sentinel", look=look)


def reuse(samples: Samples) -> Check:
    """Different inputs one after another in one memory, against a new instance in new memory."""

    def look(new: New) -> str | None:
        run = new()

        shared = Memory()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                # Copied at once: the next call may write over it.
                within = run(sample.given, sample.constants, shared)
                actual = {name: value.clone() for name, value in within.items()}
                yield differing(f"{sample.name} after others", fresh(new(), sample), actual)

        return first(findings())

    return Check(name="reuse", look=look)


def repeat(samples: Samples) -> Check:
    """The same call again, in new memory."""

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                yield differing(f"{sample.name} again", fresh(run, sample), fresh(run, sample))

        return first(findings())

    return Check(name="repeat", look=look)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which tensors of an operator have a row for each token."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def chosen(self, sample: Sample, rows: torch.Tensor) -> Sample:
        """The sample with these tokens only, in this order."""
        given = sample.given | {name: sample.given[name][rows] for name in self.inputs}
        return Sample(name=sample.name, given=given, constants=sample.constants)


def alone(samples: Samples, rows: Rows) -> Check:
    """A token alone, and the tokens reversed, give the same rows: batch invariance."""

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                whole = fresh(run, sample)
                tokens = len(sample.given[rows.inputs[0]])
                some = {0, tokens // 2, tokens - 1}
                for token in sorted(some):
                    one = fresh(run, rows.chosen(sample, torch.tensor([token])))
                    yield _same_rows(rows, whole, one, torch.tensor([token]), sample.name)
                back = torch.arange(tokens - 1, -1, -1)
                yield _same_rows(
                    rows, whole, fresh(run, rows.chosen(sample, back)), back, sample.name
                )

        return first(findings())

    return Check(name="alone", look=look)


def _same_rows(
    rows: Rows, whole: Tensors, part: Tensors, tokens: torch.Tensor, name: str
) -> str | None:
    which = f"token {int(tokens[0])} alone" if len(tokens) == 1 else "tokens reversed"
    expected = {output: whole[output][tokens] for output in rows.outputs}
    actual = {output: part[output] for output in rows.outputs}
    return differing(f"{name}, {which}", expected, actual)


def unread(samples: Samples, spoil: Callable[[Tensors], Tensors]) -> Check:
    """NaN in whatever must not be read: rows of masked slots, experts that nobody chose."""

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                spoiled = Sample(
                    name=sample.name, given=spoil(sample.given), constants=sample.constants
                )
                yield differing(
                    f"{sample.name} with NaN in what does not count",
                    fresh(run, sample),
                    fresh(run, spoiled),
                )

        return first(findings())

    return Check(name="unread", look=look)


def strided(samples: Samples) -> Check:
    """Inputs with gaps between their rows, at an odd offset, against contiguous ones."""

    def look(new: New) -> str | None:
        run = new()

        def findings() -> Iterator[str | None]:
            for sample in present(samples):
                given = {name: _padded(value) for name, value in sample.given.items()}
                gaps = Sample(name=sample.name, given=given, constants=sample.constants)
                yield differing(
                    f"{sample.name} with padded strides", fresh(run, sample), fresh(run, gaps)
                )

        return first(findings())

    return Check(name="strided", look=look)


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, rows apart; what lies between them is NaN, or -1."""
    width = tensor.shape[-1] + 3
    rows = torch.empty((*tensor.shape[:-1], width), dtype=tensor.dtype)
    rows.view(torch.uint8).fill_(NAN_FILL)
    view = rows[..., 1 : 1 + tensor.shape[-1]]
    view.copy_(tensor)
    return view


def refuses(calls: Samples, error: type[Exception]) -> Check:
    """Calls that cannot mean anything are refused, instead of answered."""

    def look(new: New) -> str | None:
        run = new()

        for sample in present(calls):
            try:
                fresh(run, sample)
            except error:
                continue
            return f"{sample.name} was answered, not refused"
        return None

    return Check(name="refuses", look=look)


def suite(kernel: Kernel) -> list[Sample]:
    """The first sample of every workload of the default suite, with the kernel's constants."""
    return [
        Sample(
            name=workload.key,
            given=kernel.make_inputs(workload, 0),
            constants=dict(kernel.constants),
        )
        for workload in kernel.suites["default"]
    ]


def implementations(kernel: Kernel, contract: str) -> dict[str, Run]:
    """All implementations of one contract by name, its reference first."""
    reference = kernel.references[contract]
    targets = {one.name: one.target for one in kernel.implementations if one.contract == contract}
    truth = load(targets.pop(reference))
    others = {name: filling(kernel, load(target), truth) for name, target in targets.items()}
    return {reference: into(kernel, truth), **others}


def operator(kernel: Kernel, contract: str, every: Samples, some: Samples, *more: Check) -> Target:
    """An operator as a target: its implementations under one contract, faults in the reference.

    Args:
        kernel: the operator.
        contract: the name of the contract.
        every: samples whose bits are compared with the reference's.
        some: samples of the other checks that every operator has.
        more: checks of this operator.
    """
    correct = implementations(kernel, contract)
    host = next(iter(correct))
    return Target(
        name=kernel.op,
        correct=correct,
        hosts=(host,),
        checks=(
            fixtures(kernel),
            bits(correct[host], every),
            sentinel(some),
            reuse(some),
            repeat(some),
            *more,
        ),
    )
