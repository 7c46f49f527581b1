"""What a simulation accepts as a request, and in which order requests come in."""

from collections.abc import Iterable, Iterator
from operator import attrgetter

from bitgate.records.errors import UsageError
from bitgate.sim.workload import Request

# Times are 64-bit words in the digest; half of the range is left to the simulation.
LATEST_NS = 2**62


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield valid requests by arrival, those of one nanosecond by id.

    Raises:
        UsageError: a request arrives before its predecessor, its fields are out of range, or
            there is none; names the request, the value and the rule.
    """
    together: list[Request] = []
    empty = True
    for request in requests:
        empty = False
        _check(request)
        if together and request.arrival_ns != together[0].arrival_ns:
            if request.arrival_ns < together[0].arrival_ns:
                raise UsageError(
                    f"request {request.id} arrives at {request.arrival_ns} ns, after one of "
                    f"{together[0].arrival_ns} ns; sort the requests by arrival"
                )
            yield from sorted(together, key=attrgetter("id"))
            together = []
        together.append(request)
    if empty:
        raise UsageError("the workload holds no request: nothing can be simulated")
    yield from sorted(together, key=attrgetter("id"))


def _check(request: Request) -> None:
    if not 0 <= request.arrival_ns < LATEST_NS:
        raise UsageError(
            f"request {request.id}: expected an arrival from 0 to below 2**62 ns, "
            f"got {request.arrival_ns}"
        )
    for name in ("prompt_tokens", "output_tokens"):
        value = getattr(request, name)
        if value < 1:
            raise UsageError(f"request {request.id}: expected {name} of at least 1, got {value}")
    if not request.segments:
        return
    if any(segment < 0 or tokens < 1 for segment, tokens in request.segments):
        raise UsageError(
            f"request {request.id}: expected segments from 0 with at least 1 token each, "
            f"got {request.segments}"
        )
    named = sum(tokens for _, tokens in request.segments)
    total = request.prompt_tokens + request.output_tokens
    if named > total:
        raise UsageError(
            f"request {request.id}: its segments name {named} tokens, it has {total} with outputs"
        )
