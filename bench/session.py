"""The parent of a timing session: plans rounds, knows the right answers, keeps raw samples.

Rounds go to several fresh processes in turn. In each, both sides run once, in the order that the
declared seed gives, on contents that nobody has seen before: on shared contents the second slot
would find its libraries prepared by the first. Every output that was timed comes back and is
compared bit for bit with the reference, which runs in a process of its own.

Both sides share their processes, so one could slow the other down. Before a candidate counts as
faster, the baseline must be as fast beside it as in a process that never saw it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, NoReturn

from bitgate.bench.effect import NULL_ROUNDS
from bitgate.bench.process import Child
from bitgate.bench.sides import Contest, Process, flattened, started
from bitgate.bench.signs import Claim, claim
from bitgate.bench.witness import (
    clock_quarrel,
    verify_conduct,
    verify_rival,
    verify_sample,
    verify_settings,
)
from bitgate.kernels.spec import Tensors
from bitgate.parity.gates.base import Budget, Progress, Subject
from bitgate.parity.gates.session import STANDARD, child_environment
from bitgate.parity.gates.session import Session as References
from bitgate.records.coin import flips
from bitgate.records.errors import Inconclusive
from bitgate.records.stats import median_ns
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

        def truth(of: Subject) -> References:
            return stack.enter_context(
                References(
                    subject=of,
                    workloads=tuple(workloads),
                    bundle=None,
                    budget=Budget(call_timeout_s=timeout_s),
                    put=_no_evidence,
                    progress=progress,
                )
            )

        mine = truth(subject)
        truths = {"C": mine, "B": mine if contest.rival is None else truth(contest.rival)}
        cold = plan.regime == "cold"
        shared = started(children, contest, "BC", cold=cold)

        @cache
        def alone() -> Process:
            child = stack.enter_context(Child(environment, timeout_s))
            return started([child], contest, "B", cold=cold)[0]

        for workload in workloads:
            yield workload, _Session(contest, workload, plan, shared, alone, truths).run()


def _no_evidence(data: bytes, media: str) -> NoReturn:
    raise AssertionError(f"timing keeps its evidence in the measurement, got {len(data)} {media}")


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
        processes: list[Process],
        alone: Callable[[], Process],
        truths: dict[str, References],
    ) -> None:
        self._subject = contest.subject
        self._workload = workload
        self._plan = plan
        self._processes = processes
        self._alone = alone
        self._truths = truths
        self._progress = truths["C"].progress
        self._used = 0

    def run(self) -> Timed:
        """Warm up, calibrate, time the baseline against itself, then against the candidate."""
        for _ in range(WARM_ROUNDS):
            self._ask(self._processes, "warm")
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
            timer=self._processes[0].facts["timer"],
            resolution_ns=max(one.facts["resolution_ns"] for one in self._processes),
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
        empty_ns = max(one.facts["empty_ns"] for one in self._processes)
        notes = [("bench:empty_call_ns", str(empty_ns))]
        if self._claim(rounds).effect == "FASTER":
            notes.append(("bench:baseline_alone_ns", str(self._baseline_alone())))
        return Timed(measurement=measurement, notes=tuple(notes))

    def _calls_per_sample(self) -> int:
        """How many calls make a sample that the clock resolves a hundredfold."""
        answer = self._ask([self._processes[0]], "calibrate")[0]
        fastest_ns = max(1, min(answer["fastest_ns"].values()))
        needed_ns = SAMPLE_RESOLUTIONS * self._processes[0].facts["resolution_ns"]
        calls = -(-needed_ns // fastest_ns)
        if calls > MAX_CALLS_PER_SAMPLE:
            raise Inconclusive(
                f"{self._workload.key}: a call takes {fastest_ns} ns; expected a sample of "
                f"{needed_ns} ns in at most {MAX_CALLS_PER_SAMPLE} calls. Time a larger workload"
            )
        return max(self._plan.calls_per_sample, int(calls))

    def _null(self) -> tuple[str, list[_Round]]:
        """The baseline against itself: the same way, with coin flips of its own."""
        count = len(self._processes)
        visit = -(-NULL_ROUNDS // count)
        order = flips(self._plan.order_seed, count * visit, "null")
        rounds: list[_Round] = []
        for process in range(count):
            self._ask([self._processes[process]], "warm")
            for first in order[process * visit : (process + 1) * visit]:
                rounds.append(self._round(process, first, ("B", "B")))
                label = f"{self._workload.key}, baseline against itself"
                self._progress(label, len(rounds), len(order))
        return order, rounds

    def _pairs(self) -> list[_Round]:
        """Visit the processes in turn; stop once a claim stands and all have had their say."""
        plan, count = self._plan, len(self._processes)
        order = flips(plan.order_seed, plan.rounds)
        visit = min(VISIT_ROUNDS, -(-plan.rounds // count))
        rounds: list[_Round] = []
        for number, start in enumerate(range(0, plan.rounds, visit)):
            process = number % count
            self._ask([self._processes[process]], "warm")
            for first in order[start : start + visit]:
                rounds.append(self._round(process, first, ("B", "C")))
                self._progress(self._workload.key, len(rounds), plan.rounds)
            if process == count - 1 and self._claimed(rounds):
                break
        return rounds

    def _claim(self, rounds: list[_Round]) -> Claim:
        kept = [entry for entry in rounds if entry.reason is None]
        return claim(
            [entry.baseline_ns for entry in kept],
            [entry.candidate_ns for entry in kept],
            margin=Fraction(self._plan.margin),
            alpha=Fraction(self._plan.alpha),
        )

    def _claimed(self, rounds: list[_Round]) -> bool:
        everyone = {entry.process for entry in rounds if entry.reason is None}
        complete = everyone == set(range(len(self._processes)))
        return complete and self._claim(rounds).effect != "INCONCLUSIVE"

    def _baseline_alone(self) -> int:
        """Time the baseline beside the candidate and without it; its median without, in ns.

        Raises:
            TimingRefused: it is clearly slower beside the candidate.
        """
        alone, count = self._alone(), len(self._processes)
        visit = -(-NULL_ROUNDS // count)
        order = flips(self._plan.order_seed, count * visit, "alone")
        for _ in range(WARM_ROUNDS):
            self._ask([alone], "warm")
        beside_ns: list[int] = []
        alone_ns: list[int] = []
        for number, first in enumerate(order):
            shared = self._processes[number // visit]
            if number % visit == 0:
                self._ask([shared, alone], "warm")
            takes = ((shared, beside_ns), (alone, alone_ns))
            for process, times in takes if first == "B" else takes[::-1]:
                [sample] = self._samples(process, ("B",))
                times.append(self._per_call(sample))
            label = f"{self._workload.key}, baseline without the candidate"
            self._progress(label, len(alone_ns), len(order))
        verify_rival(beside_ns, alone_ns)
        return median_ns(alone_ns)

    def _ask(self, processes: list[Process], kind: str) -> list[dict[str, Any]]:
        """Send the same fresh inputs to some processes; their answers, which hold no samples."""
        header = {"kind": kind, "constants": dict(self._subject.constants)}
        flat = flattened([self._inputs(1)])
        for process in processes:
            process.child.send(header, flat)
        return [process.child.receive()[0] for process in processes]

    def _round(self, number: int, first: str, sides: tuple[str, str]) -> _Round:
        """Time both sides once; `first` is 'B' where the baseline's slot comes first."""
        process = self._processes[number]
        slots = sides if first == "B" else sides[::-1]
        samples = self._samples(process, slots)
        quarrels = [
            clock_quarrel(side, sample, process.facts["gap_ns"])
            for side, sample in zip(slots, samples, strict=True)
        ]
        times = [self._per_call(sample) for sample in samples]
        baseline_ns, candidate_ns = times if first == "B" else times[::-1]
        return _Round(
            baseline_ns=baseline_ns,
            candidate_ns=candidate_ns,
            first=first,
            process=number,
            reason=next((quarrel for quarrel in quarrels if quarrel), None),
        )

    def _samples(self, process: Process, slots: tuple[str, ...]) -> list[dict[str, Any]]:
        """One verified sample per slot, on fresh contents.

        Raises:
            TimingRefused: an output was wrong, or a side did what it must not do.
        """
        kernel, calls, number = self._subject.kernel, self._plan.calls_per_sample, self._used
        inputs = [self._inputs(calls) for _ in slots]
        expected = [
            [
                self._expected(side, number + slot * calls + call, one)
                for call, one in enumerate(given)
            ]
            for slot, (side, given) in enumerate(zip(slots, inputs, strict=True))
        ]
        header = {
            "kind": "round",
            "constants": dict(self._subject.constants),
            "sides": slots,
        }
        started_ns = time.perf_counter_ns()
        process.child.send(header, flattened(inputs))
        answer, tensors = process.child.receive()
        elapsed_ns = time.perf_counter_ns() - started_ns
        samples: list[dict[str, Any]] = answer["samples"]
        for slot, (side, sample) in enumerate(zip(slots, samples, strict=True)):
            verify_conduct(kernel, side, sample, elapsed_ns, self._subject.threads)
            actual = _returned(tensors, slot, sample["outputs"])
            subject = f"{self._workload.key}#{number + slot * calls}"
            verify_sample(kernel, subject, side, expected[slot], actual)
        verify_settings(process.facts["after"], answer["settings"], "a timed call")
        return samples

    def _per_call(self, sample: dict[str, Any]) -> int:
        calls = self._plan.calls_per_sample
        return int(max(1, (sample["ns"] + calls // 2) // calls))

    def _expected(self, side: str, number: int, inputs: Tensors) -> Tensors:
        return self._truths[side].expected(f"{self._workload.key}#timed-{number}", inputs)

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


def _returned(tensors: Tensors, slot: int, counts: list[int]) -> list[list[Any]]:
    return [
        [tensors[f"{slot}/{call}/{place}"] for place in range(count)]
        for call, count in enumerate(counts)
    ]
