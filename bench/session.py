"""The parent of a timing session: plans rounds, knows the right answers, keeps raw samples.

Rounds go to several fresh processes in turn. In each, both sides run once, in the order that the
declared seed gives, on contents that nobody has seen before: on shared contents the second slot
would find its libraries prepared by the first. Every output that was timed comes back and is
compared bit for bit with the reference, which runs in a process of its own.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from bitgate.bench.effect import NULL_ROUNDS
from bitgate.bench.process import Child
from bitgate.bench.signs import claim, flips
from bitgate.bench.witness import (
    clock_quarrel,
    verify_conduct,
    verify_sample,
    verify_settings,
)
from bitgate.kernels.spec import Tensors
from bitgate.parity.gates.base import Budget, Progress, Subject
from bitgate.parity.gates.session import STANDARD, child_environment
from bitgate.parity.gates.session import Session as References
from bitgate.records.errors import Inconclusive
from bitgate.records.types import Discard, Measurement, Pairs, Plan, Workload

SAMPLE_RESOLUTIONS = 100
MAX_CALLS_PER_SAMPLE = 64
VISIT_ROUNDS = 4
# Libraries keep what they prepare per shape, and shapes can depend on the contents: with routed
# experts the times of a fresh process were seen to fall over about a dozen changed inputs.
WARM_ROUNDS = 16

# Inputs of the gates are numbered from 0; timing never meets contents that a candidate has seen.
_FIRST_INDEX = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is timed against what.

    `subject` is the candidate with its reference, constants and conditions; the baseline is
    `baseline_target`, module:function below `baseline_root` (None: in this package).
    """

    subject: Subject
    baseline_target: str
    baseline_root: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measurement with what else the session saw; `notes` go into the record."""

    measurement: Measurement
    notes: Pairs


def measure(
    contest: Contest,
    workloads: Sequence[Workload],
    plan: Plan,
    *,
    timeout_s: int,
    progress: Progress,
) -> Iterator[tuple[Workload, Timed]]:
    """Time both sides on every workload, in the same processes.

    Args:
        contest: the two sides and the reference.
        workloads: points of the kernel, timed one after the other.
        plan: declared before; `calls_per_sample` is raised where a call is too short to read.
        timeout_s: how long a child may take for one request.
        progress: told the workload, the rounds done and the rounds planned.

    Yields:
        Each workload with its measurement, as soon as it is complete.

    Raises:
        TimingRefused: a timed output was wrong, or a side tampered with the process.
        ChildFailed: a child raised, died or was late.
        Inconclusive: no round could be kept, a call is too short to be timed, or the reference
            gives no truth.
    """
    subject = contest.subject
    environment = child_environment(
        subject.candidate.device, STANDARD, subject.candidate.switches, subject.threads
    )
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(environment, timeout_s)) for _ in range(plan.processes)
        ]
        references = stack.enter_context(
            References(
                subject=subject,
                workloads=tuple(workloads),
                bundle=None,
                budget=Budget(call_timeout_s=timeout_s),
                put=_no_evidence,
                progress=progress,
            )
        )
        facts = _start(children, contest, cold=plan.regime == "cold")
        for workload in workloads:
            yield workload, _Session(contest, workload, plan, children, facts, references).run()


def _no_evidence(data: bytes, media: str) -> NoReturn:
    raise AssertionError(f"timing keeps its evidence in the measurement, got {len(data)} {media}")


def _start(children: list[Child], contest: Contest, *, cold: bool) -> list[dict[str, Any]]:
    """Load both sides in every child, all at once; the facts that they report."""
    subject = contest.subject
    header = {
        "device": subject.candidate.device,
        "threads": subject.threads,
        "cold": cold,
        "sides": {
            "B": _target(contest.baseline_target, contest.baseline_root),
            "C": _target(subject.candidate.implementation, subject.root),
        },
    }
    for child in children:
        child.send(header, {})
    facts = [child.receive()[0]["facts"] for child in children]
    for fact in facts:
        verify_settings(fact["before"], fact["after"], "importing the two sides")
    return facts


def _target(target: str, root: Path | None) -> dict[str, str | None]:
    return {"target": target, "root": None if root is None else str(root)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """Times per call of one round; `reason` says why it is not counted."""

    baseline_ns: int
    candidate_ns: int
    first: str
    process: int
    reason: str | None


class _Session:
    """One workload's rounds in processes that are already loaded."""

    def __init__(
        self,
        contest: Contest,
        workload: Workload,
        plan: Plan,
        children: list[Child],
        facts: list[dict[str, Any]],
        references: References,
    ) -> None:
        self._subject = contest.subject
        self._workload = workload
        self._plan = plan
        self._children = children
        self._facts = facts
        self._references = references
        self._used = 0

    def run(self) -> Timed:
        """Warm up, calibrate, time the baseline against itself, then against the candidate."""
        for _ in range(WARM_ROUNDS):
            self._ask(self._children, "warm")
        self._plan = replace(self._plan, calls_per_sample=self._calls_per_sample())
        null_order, null = self._null()
        rounds = self._pairs()
        kept = [entry for entry in rounds if entry.reason is None]
        discards = _discards(rounds)
        if not kept:
            raise Inconclusive(
                f"{self._workload.key}: all {len(discards)} rounds were discarded; the first: "
                f"{discards[0].reason}. Two clocks that disagree are no clock: check the machine"
            )
        measurement = Measurement(
            plan=self._plan,
            timer=self._facts[0]["timer"],
            resolution_ns=max(fact["resolution_ns"] for fact in self._facts),
            baseline_ns=tuple(entry.baseline_ns for entry in kept),
            candidate_ns=tuple(entry.candidate_ns for entry in kept),
            order="".join(entry.first for entry in kept),
            process=tuple(entry.process for entry in kept),
            verified_outputs=2 * len(rounds) * self._plan.calls_per_sample,
            discards=discards,
            null_baseline_ns=tuple(entry.baseline_ns for entry in null),
            null_candidate_ns=tuple(entry.candidate_ns for entry in null),
            null_order=null_order,
        )
        empty_ns = max(fact["empty_ns"] for fact in self._facts)
        return Timed(measurement=measurement, notes=(("bench:empty_call_ns", str(empty_ns)),))

    def _calls_per_sample(self) -> int:
        """How many calls make a sample that the clock resolves a hundredfold."""
        answer = self._ask([self._children[0]], "calibrate")[0]
        fastest_ns = max(1, min(answer["fastest_ns"].values()))
        needed_ns = SAMPLE_RESOLUTIONS * self._facts[0]["resolution_ns"]
        calls = -(-needed_ns // fastest_ns)
        if calls > MAX_CALLS_PER_SAMPLE:
            raise Inconclusive(
                f"{self._workload.key}: a call takes {fastest_ns} ns; expected a sample of "
                f"{needed_ns} ns in at most {MAX_CALLS_PER_SAMPLE} calls. Time a larger workload"
            )
        return max(self._plan.calls_per_sample, int(calls))

    def _null(self) -> tuple[str, list[_Round]]:
        """The baseline against itself: the same way, with coin flips of its own."""
        count = len(self._children)
        visit = -(-NULL_ROUNDS // count)
        order = flips(self._plan.order_seed, count * visit, "null")
        rounds: list[_Round] = []
        for process in range(count):
            self._ask([self._children[process]], "warm")
            for first in order[process * visit : (process + 1) * visit]:
                rounds.append(self._round(process, first, ("B", "B")))
                label = f"{self._workload.key}, baseline against itself"
                self._references.progress(label, len(rounds), len(order))
        return order, rounds

    def _pairs(self) -> list[_Round]:
        """Visit the processes in turn; stop once a claim stands and all have had their say."""
        plan, count = self._plan, len(self._children)
        order = flips(plan.order_seed, plan.rounds)
        visit = min(VISIT_ROUNDS, -(-plan.rounds // count))
        rounds: list[_Round] = []
        for number, start in enumerate(range(0, plan.rounds, visit)):
            process = number % count
            self._ask([self._children[process]], "warm")
            for first in order[start : start + visit]:
                rounds.append(self._round(process, first, ("B", "C")))
                self._references.progress(self._workload.key, len(rounds), plan.rounds)
            if process == count - 1 and self._claimed(rounds):
                break
        return rounds

    def _claimed(self, rounds: list[_Round]) -> bool:
        kept = [entry for entry in rounds if entry.reason is None]
        found = claim(
            [entry.baseline_ns for entry in kept],
            [entry.candidate_ns for entry in kept],
            margin=Fraction(self._plan.margin),
            alpha=Fraction(self._plan.alpha),
        )
        everyone = {entry.process for entry in kept} == set(range(len(self._children)))
        return everyone and found.effect != "INCONCLUSIVE"

    def _ask(self, children: list[Child], kind: str) -> list[dict[str, Any]]:
        """Send the same fresh inputs to some children; their answers, which hold no samples."""
        header = {"kind": kind, "constants": dict(self._subject.constants)}
        flat = _flat([self._inputs(1)])
        for child in children:
            child.send(header, flat)
        return [child.receive()[0] for child in children]

    def _round(self, process: int, first: str, sides: tuple[str, str]) -> _Round:
        """Time both sides once; `first` is 'B' where the baseline's slot comes first."""
        child, calls = self._children[process], self._plan.calls_per_sample
        kernel, number = self._subject.kernel, self._used
        inputs = [self._inputs(calls) for _ in sides]
        expected = [
            [self._expected(number + slot * calls + call, one) for call, one in enumerate(given)]
            for slot, given in enumerate(inputs)
        ]
        slots = sides if first == "B" else sides[::-1]
        header = {
            "kind": "round",
            "constants": dict(self._subject.constants),
            "sides": slots,
        }
        started_ns = time.perf_counter_ns()
        child.send(header, _flat(inputs))
        answer, tensors = child.receive()
        elapsed_ns = time.perf_counter_ns() - started_ns
        samples = answer["samples"]
        for slot, (side, sample) in enumerate(zip(slots, samples, strict=True)):
            verify_conduct(kernel, side, sample, elapsed_ns)
            actual = _returned(tensors, slot, sample["outputs"])
            subject = f"{self._workload.key}#{number + slot * calls}"
            verify_sample(kernel, subject, side, expected[slot], actual)
        verify_settings(self._facts[process]["after"], answer["settings"], "a timed call")
        quarrels = [
            clock_quarrel(side, sample, self._facts[process]["gap_ns"])
            for side, sample in zip(slots, samples, strict=True)
        ]
        times = [max(1, (sample["ns"] + calls // 2) // calls) for sample in samples]
        baseline_ns, candidate_ns = times if first == "B" else times[::-1]
        return _Round(
            baseline_ns=baseline_ns,
            candidate_ns=candidate_ns,
            first=first,
            process=process,
            reason=next((quarrel for quarrel in quarrels if quarrel), None),
        )

    def _expected(self, number: int, inputs: Tensors) -> Tensors:
        return self._references.expected(f"{self._workload.key}#timed-{number}", inputs)

    def _inputs(self, calls: int) -> list[Tensors]:
        """Fresh contents for every call; no index is used twice in a session."""
        start = _FIRST_INDEX + self._plan.order_seed + self._used
        self._used += calls
        return [
            self._subject.kernel.make_inputs(self._workload, start + call) for call in range(calls)
        ]


def _discards(rounds: list[_Round]) -> tuple[Discard, ...]:
    return tuple(
        Discard(
            round=index,
            baseline_ns=entry.baseline_ns,
            candidate_ns=entry.candidate_ns,
            reason=entry.reason,
        )
        for index, entry in enumerate(rounds)
        if entry.reason is not None
    )


def _flat(inputs: list[list[Tensors]]) -> Tensors:
    """The slots' calls in one dictionary; its tensors are contiguous and share no memory."""
    flat: Tensors = {}
    used: set[int] = set()
    for slot, calls in enumerate(inputs):
        for call, given in enumerate(calls):
            for name, tensor in given.items():
                storage = tensor.untyped_storage().data_ptr()
                whole = tensor.is_contiguous() and storage not in used
                flat[f"{slot}/{call}/{name}"] = tensor if whole else tensor.contiguous().clone()
                used.add(storage)
    return flat


def _returned(tensors: Tensors, slot: int, counts: list[int]) -> list[list[Any]]:
    return [
        [tensors[f"{slot}/{call}/{place}"] for place in range(count)]
        for call, count in enumerate(counts)
    ]
