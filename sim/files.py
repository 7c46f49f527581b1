"""The tables of a simulation, written as it runs: one line for each request, one for each step."""

import csv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bitgate.records.durable import make_directory
from bitgate.sim.book import Watch
from bitgate.sim.metrics import TIMES, Latencies, times_of
from bitgate.sim.run import RequestResult
from bitgate.sim.step import StepShape

REQUESTS, STEPS, SUMMARY = "requests.csv", "steps.csv", "summary.json"

# prefills: new+computed tokens of each chunk, with blanks between
STEP_COLUMNS = (
    "start_ns",
    "ns",
    "tokens",
    "prefills",
    "decodes",
    "decode_kv_tokens",
    "logits",
)


@contextmanager
def watching(latencies: Latencies, out: Path | None) -> Iterator[Watch]:
    """Who collects the latencies and, with a directory `out`, writes both tables there.

    The tables get their names when the simulation has ended; a broken one leaves `*.part` files.
    """
    if out is None:
        yield Watch(result=latencies.request, step=latencies.step)
        return
    make_directory(out)
    parts = [out / f"{name}.part" for name in (REQUESTS, STEPS)]
    with ExitStack() as stack:
        requests, steps = (
            csv.writer(
                stack.enter_context(part.open("w", encoding="utf-8", newline="")),
                lineterminator="\n",
            )
            for part in parts
        )
        requests.writerow((*RequestResult._fields, *TIMES))
        steps.writerow(STEP_COLUMNS)

        def on_result(result: RequestResult) -> None:
            latencies.request(result)
            requests.writerow((*result, *times_of(result)))

        def on_step(start_ns: int, ns: int, shape: StepShape) -> None:
            latencies.step(start_ns, ns, shape)
            chunks = " ".join(f"{new}+{computed}" for new, computed in shape.prefills)
            tail = (shape.decodes, shape.decode_kv_tokens, shape.logits)
            steps.writerow((start_ns, ns, shape.tokens, chunks, *tail))

        yield Watch(result=on_result, step=on_step)
    for part in parts:
        part.replace(part.with_suffix(""))
