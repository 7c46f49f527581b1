"""How fast the simulator serves requests, with prices, coverage and metrics on.

Prints requests a second of the clock and of this process: requests of 512 and 128 tokens at 8 a
second, and, given an Azure trace, all of it; then the engine alone, audit and digest included,
whose steps cost 6 ms and 10 us a token. Run `python scripts/bench_sim.py [REQUESTS [TRACE]]`.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bitgate.sim.arch import load_model, terms
from bitgate.sim.cluster import Pace, simulate
from bitgate.sim.config import EngineConfig
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
# Arrivals a second, prefix caching, and whether every request is looked at in every step.
ALONE: tuple[tuple[int, bool, Pace], ...] = (
    (8, False, "touch"),
    (8, False, "jump"),
    (25, False, "jump"),
    (80, False, "jump"),
    (8, True, "jump"),
    (80, True, "jump"),
)


def main(requests: int = 10_000, trace: Path | None = None) -> None:
    """Serve the synthetic requests, then the trace."""
    rate("512/128 tokens, 8 a second", lambda: serve(synthetic(requests)))
    if trace is not None:
        rate(trace.name, lambda: serve(read_azure(trace)))
    for per_second, caching, pace in ALONE:
        name = f"engine alone, {per_second} a second, caching {caching}, pace {pace}"
        work = synthetic(requests, per_second)
        rate(name, lambda work=work, caching=caching, pace=pace: alone(work, caching, pace))


def synthetic(count: int, per_second: int = PER_SECOND) -> Iterable[Request]:
    """Requests of one size with exponential gaps."""
    generator = random.Random(20260131)
    arrival_ns = 0
    for number in range(count):
        yield Request(id=number, arrival_ns=arrival_ns, prompt_tokens=512, output_tokens=128)
        arrival_ns += round(generator.expovariate(per_second) * 10**9)


def serve(requests: Iterable[Request]) -> tuple[int, int]:
    """Simulate with everything on but files; returns requests and steps."""
    meter = Meter(terms(load_model(TINY_MODEL)), PriceBook([], device="none", peaks=PEAKS))
    engine, latencies = default_engine(num_gpu_blocks=65_536), Latencies()
    with watching(latencies, None) as watch:
        run = simulate(requests, engine, meter, watch=watch)
    meter.close(run.busy_ns, engine.step_overhead_ns)
    latencies.summary(run.end_ns)
    return run.audit.requests, run.steps


def alone(requests: Iterable[Request], caching: bool, pace: Pace) -> tuple[int, int]:  # noqa: FBT001 - a setting of the table above
    """Simulate with a cost that takes no time to find; returns requests and steps."""
    engine = EngineConfig(
        num_gpu_blocks=20_000,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=8192,
        step_overhead_ns=0,
        enable_prefix_caching=caching,
    )
    run = simulate(requests, engine, lambda shape: 6_000_000 + 10_000 * shape.tokens, pace=pace)
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
