"""What a simulation says of latency and throughput, each number by a written definition.

Times are whole nanoseconds, sums are exact, and a mean is a decimal string with six places, rounded
half to even. The percentile p of n values is the value at place ceil(p n / 100) of their order
(nearest rank): always one that occurred.
"""

from array import array
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from bitgate.records.stats import decimal_string
from bitgate.sim.prices import half_even
from bitgate.sim.run import RequestResult
from bitgate.sim.step import StepShape

DEFINITIONS: Final[Mapping[str, str]] = {
    "queue_ns": "start of the first step that works on the request, minus its arrival",
    "ttft_ns": "time to first token: end of the step that computes the first output token, minus "
    "the arrival, inside the engine: no network, no tokeniser",
    "tpot_ns": "time per output token of a request with at least two: (end of its last step - end "
    "of the step of its first token) / (output tokens - 1), to the whole ns, half to even",
    "itl_ns": "inter-token latency: time between the ends of the steps that computed two tokens of "
    "a request in turn. The mean is over all of them; percentiles take the end of the step just "
    "before, and leave out tokens that a preempted request computed again (left_out, left_out_ns: "
    "how many, and the time that the percentiles do not show; 0 and 0 where none was)",
    "e2e_ns": "end of the request's last step, minus its arrival",
    "makespan_ns": "end of the last step; the first arrival is at 0",
    "output_tokens_per_second": "output tokens of completed requests / makespan",
    "total_tokens_per_second": "prompt and output tokens of completed requests / makespan",
    "requests_per_second": "completed requests / makespan",
    "percentiles": "nearest rank: of n values in order the one at place ceil(p n / 100)",
}
# The times of one request, in the order of `times_of`.
TIMES: Final = ("queue_ns", "ttft_ns", "tpot_ns", "e2e_ns")
PERCENTILES: Final = (50, 90, 99)
_NS = 1_000_000_000


def times_of(result: RequestResult) -> tuple[int, int, int | None, int]:
    """The TIMES of a completed request; it has no tpot_ns with a single output token."""
    later = result.output_tokens - 1
    decoding_ns = result.finish_ns - result.first_token_ns
    return (
        result.first_scheduled_ns - result.arrival_ns,
        result.first_token_ns - result.arrival_ns,
        half_even(decoding_ns, later) if later else None,
        result.finish_ns - result.arrival_ns,
    )


class Latencies:
    """Collects the times of requests and steps as they end."""

    def __init__(self) -> None:
        self._times = {name: array("q") for name in TIMES}
        self._gaps, self._gap_counts = array("q"), array("q")
        self._gaps_ns = 0
        self._step_end_ns = 0
        self._decoding_ns = self._later_tokens = 0
        self._prompt_tokens = self._output_tokens = 0

    def request(self, result: RequestResult) -> None:
        """A request completed."""
        for times, value in zip(self._times.values(), times_of(result), strict=True):
            if value is not None:
                times.append(value)
        self._decoding_ns += result.finish_ns - result.first_token_ns
        self._later_tokens += result.output_tokens - 1
        self._prompt_tokens += result.prompt_tokens
        self._output_tokens += result.output_tokens

    def step(self, start_ns: int, ns: int, shape: StepShape) -> None:
        """A step ran."""
        end_ns = start_ns + ns
        if shape.decodes:
            self._gaps.append(end_ns - self._step_end_ns)
            self._gap_counts.append(shape.decodes)
            self._gaps_ns += shape.decodes * (end_ns - self._step_end_ns)
        self._step_end_ns = end_ns

    def summary(self, end_ns: int) -> dict[str, Any]:
        """All metrics; the keys are those of DEFINITIONS."""
        requests = len(self._times["e2e_ns"])
        found: dict[str, Any] = {
            name: _spread(times, _ones(times), sum(times), len(times))
            for name, times in self._times.items()
        }
        found["itl_ns"] = _spread(
            self._gaps, self._gap_counts, self._decoding_ns, self._later_tokens
        ) | {
            "left_out": self._later_tokens - sum(self._gap_counts),
            "left_out_ns": self._decoding_ns - self._gaps_ns,
        }
        found["makespan_ns"] = end_ns
        for name, count in (
            ("output_tokens_per_second", self._output_tokens),
            ("total_tokens_per_second", self._prompt_tokens + self._output_tokens),
            ("requests_per_second", requests),
        ):
            found[name] = decimal_string(Fraction(count * _NS, end_ns))
        return found


def _ones(times: Sequence[int]) -> Sequence[int]:
    return array("q", [1]) * len(times)


def _spread(
    values: Sequence[int], counts: Sequence[int], total_ns: int, number: int
) -> dict[str, Any]:
    """The mean of `number` times that sum to `total_ns`; percentiles of values with counts."""
    found: dict[str, Any] = {"count": number}
    found["mean"] = decimal_string(Fraction(total_ns, number)) if number else None
    order = np.argsort(np.asarray(values, dtype=np.int64), kind="stable")
    places = np.cumsum(np.asarray(counts, dtype=np.int64)[order])
    for percent in PERCENTILES:
        name = f"p{percent}"
        if not len(places):
            found[name] = None
            continue
        rank = -(-percent * int(places[-1]) // 100)
        found[name] = values[int(order[np.searchsorted(places, rank)])]
    return found
