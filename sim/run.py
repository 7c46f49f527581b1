"""What a simulation leaves: the times of each request, the totals, a digest and the audit."""

from dataclasses import dataclass
from typing import NamedTuple

from bitgate.sim.audit import Audit
from bitgate.sim.config import EngineConfig


class RequestResult(NamedTuple):
    """What became of one request; times are nanoseconds on the simulated clock.

    A token exists from the end of the step that computed it: `first_token_ns` and `finish_ns` are
    ends of steps, `first_scheduled_ns` is the start of the step that first worked on the request.

    cached_tokens: prompt tokens found in the prefix cache when it was first admitted
    preemptions: how often it lost its blocks
    lost_tokens: computed tokens that it lost with them
    restored_tokens: tokens found in the cache when it was admitted again; the engine computed
        prompt + output - 1 - cached + lost - restored tokens for it
    """

    id: int
    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    finish_ns: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    lost_tokens: int
    restored_tokens: int


class Refusal(NamedTuple):
    """A request that was turned away at the door, and why."""

    id: int
    arrival_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished simulation.

    requests: in order of completion; empty where they were handed on while it ran
    refusals: requests that the engine could never serve; empty unless they were to be kept
    steps: forward passes
    end_ns: when the last step ended; the clock starts at 0
    digest: SHA-256 over the integers of all results and all steps, the same on every machine
    """

    config: EngineConfig
    requests: tuple[RequestResult, ...]
    refusals: tuple[Refusal, ...]
    steps: int
    busy_ns: int
    idle_ns: int
    end_ns: int
    digest: str
    audit: Audit
