"""How fast the simulator serves requests, with prices, coverage and metrics on.

Prints requests a second of the clock and of this process: requests of 512 and 128 tokens at 8 a
second, and, given an Azure trace, all of it. Run `python scripts/bench_sim.py [REQUESTS [TRACE]]`.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bitgate.sim.arch import load_model, terms
from bitgate.sim.cluster import simulate
from bitgate.sim.files import watching
from bitgate.sim.meter import Meter
from bitgate.sim.metrics import Latencies
from bitgate.sim.peaks import Peaks
from bitgate.sim.prices import PriceBook
from bitgate.sim.scenario import TINY_MODEL, default_engine
from bitgate.sim.workload import Request, read_azure

# Such that a step takes about the 6 ms of an 8B model on a large GPU; nothing is measured.
PEAKS = Peaks(
    device="none",
    name="round numbers",
    bytes_per_second=10**12,
    bytes_source="chosen for the benchmark",
    flops_per_second=(("bfloat16", 10**14),),
    flops_source="chosen for the benchmark",
    launch_ns=200_000,
    launch_source="chosen for the benchmark",
)
PER_SECOND = 8


def main(requests: int = 10_000, trace: Path | None = None) -> None:
    """Serve the synthetic requests, then the trace."""
    rate("512/128 tokens, 8 a second", lambda: serve(synthetic(requests)))
    if trace is not None:
        rate(trace.name, lambda: serve(read_azure(trace)))


def synthetic(count: int) -> Iterable[Request]:
    """Requests of one size with exponential gaps."""
    generator = random.Random(20260131)
    arrival_ns = 0
    for number in range(count):
        yield Request(id=number, arrival_ns=arrival_ns, prompt_tokens=512, output_tokens=128)
        arrival_ns += round(generator.expovariate(PER_SECOND) * 10**9)


def serve(requests: Iterable[Request]) -> tuple[int, int]:
    """Simulate with everything on but files; returns requests and steps."""
    meter = Meter(terms(load_model(TINY_MODEL)), PriceBook([], device="none", peaks=PEAKS))
    engine, latencies = default_engine(num_gpu_blocks=65_536), Latencies()
    with watching(latencies, None) as watch:
        run = simulate(requests, engine, meter, watch=watch)
    meter.close(run.busy_ns, engine.step_overhead_ns)
    latencies.summary(run.end_ns)
    return run.audit.requests, run.steps


def rate(name: str, work: Callable[[], tuple[int, int]]) -> None:
    """Run the work once and print what it took."""
    wall, own = time.perf_counter(), time.process_time()
    requests, steps = work()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    print(
        f"{name}: {requests} requests in {steps} steps, {wall:.2f} s, {own:.2f} s of its own; "
        f"{requests / wall:.0f} requests/s, {requests / own:.0f} of its own"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(Path, sys.argv[2:3]))
