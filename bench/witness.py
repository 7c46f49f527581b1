"""Judging what a timing child sent back: were the outputs right, and is the time a time?"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from bitgate.bench.effect import NULL_ALPHA
from bitgate.bench.signs import claim
from bitgate.kernels.spec import Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import BitgateError
from bitgate.records.stats import median_ns
from bitgate.records.types import Comparison

# The host's clock is read just outside the device's timer; beyond this they contradict each other.
_GAP_NS = 20_000
_GAP_SHARE = 0.05
# What drivers and allocators do in threads of their own beside the granted ones.
_WORK_SHARE = 1.5
# Two processes with the same code differ by a few percent, by where their memory happens to lie.
_RIVAL_MARGIN = "0.25"


class TimingRefused(BitgateError):  # noqa: N818 - an outcome, not a defect
    """What a side did while it was timed rules out every time taken from it.

    `side` is 'B' or 'C'; `code` is output, input, threads, settings, clock or rival; `comparison`
    holds the first mismatch where an output differed.
    """

    def __init__(
        self, message: str, *, side: str, code: str, comparison: Comparison | None = None
    ) -> None:
        super().__init__(message)
        self.side = side
        self.code = code
        self.comparison = comparison


def verify_sample(
    kernel: Kernel, subject: str, side: str, expected: list[Tensors], actual: list[list[Any]]
) -> None:
    """Compare every output of a sample with the reference, bit for bit.

    Args:
        kernel: names the outputs.
        subject: what was timed, for messages.
        side: 'B' or 'C'.
        expected: the reference's outputs of each call.
        actual: the returned tensors of each call, in order.

    Raises:
        TimingRefused: an output is missing, superfluous or differs in a bit.
    """
    for call, (wanted, returned) in enumerate(zip(expected, actual, strict=True)):
        where = f"{subject}, call {call}"
        try:
            named = kernel.named_outputs(tuple(returned))
        except TypeError as error:
            raise TimingRefused(f"{name_of(side)}: {error}", side=side, code="output") from error
        comparison = compare_tensors(where, wanted, named)
        if not comparison.equal:
            raise TimingRefused(
                f"{name_of(side)}: a timed output differs from the reference "
                f"({first_difference(comparison)}) in {where}. Where the gates passed, look for "
                "results that are kept between calls",
                side=side,
                code="output",
                comparison=comparison,
            )


def verify_conduct(
    kernel: Kernel, side: str, sample: dict[str, Any], elapsed_ns: int, granted: int
) -> None:
    """Refuse what no honest sample leaves behind.

    Args:
        kernel: knows which inputs may change.
        side: 'B' or 'C'.
        sample: what the child reports.
        elapsed_ns: how long the whole request took by the parent's clock.
        granted: how many threads both sides are given.

    Raises:
        TimingRefused: inputs were written to, threads were left running, more threads worked than
            are granted, or the time is no time.
    """
    kept = {spec.name for spec in kernel.inputs if spec.role != "state"}
    written = sorted({name for _, name in sample["changed"]} & kept)
    if written:
        raise TimingRefused(
            f"{name_of(side)} wrote to its inputs {written}; only tensors of role state may change",
            side=side,
            code="input",
        )
    if sample["threads"] > 0:
        raise TimingRefused(
            f"{name_of(side)} left {sample['threads']} more threads than it found; "
            "work that is still going on is not in the time",
            side=side,
            code="threads",
        )
    # Threads that a side takes for the call and gives back show in the work alone.
    if sample["cpu_ns"] > _WORK_SHARE * granted * sample["host_ns"] + _GAP_NS:
        raise TimingRefused(
            f"{name_of(side)}: its process worked {sample['cpu_ns']} ns within {sample['host_ns']} "
            f"ns, more than {granted} threads can; both sides get {granted}. Set OMP_NUM_THREADS "
            "in env for both to give them more",
            side=side,
            code="threads",
        )
    if sample["ns"] <= 0 or not 0 < sample["host_ns"] <= elapsed_ns:
        raise TimingRefused(
            f"{name_of(side)}: the child reports {sample['ns']} ns ({sample['host_ns']} ns by its "
            f"other clock) within {elapsed_ns} ns of ours; that is no time",
            side=side,
            code="clock",
        )


def verify_settings(before: dict[str, str], after: dict[str, str], when: str) -> None:
    """Raise TimingRefused where settings of the whole process differ."""
    changed = [
        f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]
    ]
    if changed:
        raise TimingRefused(
            f"{when} changed settings of the whole process ({'; '.join(changed)}); both sides "
            "would be timed under them. Restore them before returning",
            side="C",
            code="settings",
        )


def verify_rival(beside_ns: Sequence[int], alone_ns: Sequence[int]) -> None:
    """Refuse a candidate whose presence slows the baseline down.

    Args:
        beside_ns: times of the baseline in processes that loaded the candidate, too.
        alone_ns: its times, taken in turn with those, in a process that never saw the candidate.

    Raises:
        TimingRefused: without the candidate it is faster by more than processes differ by chance.
    """
    found = claim(beside_ns, alone_ns, margin=Fraction(_RIVAL_MARGIN), alpha=Fraction(NULL_ALPHA))
    if found.effect == "FASTER":
        raise TimingRefused(
            f"the baseline takes {median_ns(beside_ns)} ns beside the candidate and "
            f"{median_ns(alone_ns)} ns without it: what the candidate does to their process slows "
            "the baseline down. Look for patched functions, traces and running threads",
            side="C",
            code="rival",
        )


def clock_quarrel(side: str, sample: dict[str, Any], gap_ns: int) -> str | None:
    """Why the two clocks of a sample cannot both be right; None where they agree.

    `gap_ns` is the widest gap between them that was seen around nothing.
    """
    ns, host_ns = sample["ns"], sample["host_ns"]
    allowed_ns = max(_GAP_NS, 2 * gap_ns) + int(_GAP_SHARE * host_ns)
    if 0 <= host_ns - ns <= allowed_ns:
        return None
    return f"clocks disagree on {name_of(side)}: {ns} ns inside {host_ns} ns"


def name_of(side: str) -> str:
    """The side in words."""
    return "the candidate" if side == "C" else "the baseline"


def first_difference(comparison: Comparison) -> str:
    """Where, with both bit patterns, and how much of the tensor."""
    if not comparison.mismatches:
        return f"{comparison.compared} of {comparison.expected} tensors compared"
    mismatch = comparison.mismatches[0]
    if mismatch.first_index is None:
        return f"{mismatch.tensor}: {mismatch.detail}"
    return (
        f"{mismatch.tensor}{list(mismatch.first_index)}: expected {mismatch.expected_bits}, "
        f"got {mismatch.actual_bits}, max {mismatch.max_ulp} ULP, "
        f"{mismatch.differing} of {mismatch.total} differ"
    )
