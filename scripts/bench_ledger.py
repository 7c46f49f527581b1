"""How fast a ledger takes, verifies and lists records of the size that `bitgate run` writes.

Prints seconds of the clock and of this process. Run `python scripts/bench_ledger.py [RECORDS]`;
100,000 records take a gigabyte below the temporary directory, and some minutes.
"""

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bitgate.records.identity import harness
from bitgate.records.ledger import Ledger, Row
from bitgate.records.provenance import environment
from bitgate.records.types import (
    Bound,
    Candidate,
    Evidence,
    GateResult,
    Measurement,
    Plan,
    Record,
    Verdict,
    Workload,
)
from bitgate.records.views import record_views

BATCH = 100
DURABLE = 300
GATES = ("G0", "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G12")
REQUIRED = ("G0", "G2", "G4", "G9", "G12")
ROUNDS = 20
SOURCES = 14
WORKLOADS = 3


def main(records: int = 10_000) -> None:
    """Fill a ledger in batches, append some rows one by one, then verify and list everything."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder))
        evidence = ledger.put(b'{"cases":[]}', "application/json")
        writer = ledger.writer("bench")
        example = record(evidence)
        fill = partial(append, writer.append_many, example)
        rate("append, fsync once in 100", records, lambda: fill(records, batch=BATCH))
        size = sum(path.stat().st_size for path in (ledger.root / "bench").glob("*.jsonl"))
        print(f"a record has {size // records} bytes")
        rate("append, each durable", DURABLE, lambda: fill(DURABLE, batch=1))
        rate("verify", records + DURABLE, lambda: verified(ledger, strict=False))
        rate("verify --strict", records + DURABLE, lambda: verified(ledger, strict=True))
        rate("list", records + DURABLE, lambda: record_views(ledger))


def append(
    append_many: Callable[[list[Row]], object], example: Record, records: int, *, batch: int
) -> None:
    """Append so many records, each with its own measurement, three with one verdict as in a run."""
    for start in range(0, records, batch):
        numbers = range(start, start + batch)
        append_many([another(example, number) for number in numbers])


def verified(ledger: Ledger, *, strict: bool) -> None:
    """Verify the ledger, which must hold."""
    report = ledger.verify(strict=strict)
    if not report.ok:
        raise SystemExit(f"the ledger does not verify: {report.breaks}")


def rate(name: str, rows: int, work: Callable[[], object]) -> None:
    """Run the work once and print what it took."""
    wall, own = time.perf_counter(), time.process_time()
    work()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    print(f"{name}: {rows} rows in {wall:.1f} s, {own:.1f} s of its own; {rows / wall:.0f} rows/s")


def another(example: Record, number: int) -> Record:
    """A record that differs from the example where two records of real runs differ."""
    workload = number % WORKLOADS
    verdict = replace(example.verdict, coverage=f"200 of 200 cases in run {number // WORKLOADS}")
    times = tuple(time + 7 * number for time in range(1_000_000, 1_000_000 + ROUNDS))
    measured = example.measurement
    if measured is None:
        raise AssertionError("the example was timed")
    return replace(
        example,
        lane=f"cpu/moe_experts/{workload}",
        verdict=verdict,
        measurement=replace(measured, candidate_ns=times),
        reason=f"FASTER after {number} rounds",
    )


def record(evidence: Evidence) -> Record:
    """A record of the size that `bitgate run` writes."""
    workload = Workload(
        op="moe_experts",
        axes=(("experts", 8), ("hidden", 128), ("intermediate", 64), ("tokens", 64), ("top_k", 2)),
        dtype="bfloat16",
    )
    probes = tuple((f"probe:{place}", "contracts a*b+c into one rounding") for place in range(12))
    return Record(
        created_at="2026-01-31T12:00:00Z",
        lane="cpu/moe_experts/0",
        candidate=candidate("sorted-once"),
        baseline=candidate("loop"),
        workload=workload,
        bundle_sha256=sha256("bundle"),
        environment=environment(
            device="cpu", device_name="CPU", device_count=1, threads=2, probes=probes
        ),
        harness=harness(),
        verdict=verdict(evidence),
        outcome="passed",
        reason="FASTER: e-value 40 after 20 rounds, median ratio 1.98 of paired rounds",
        measurement=measurement(),
        effect="FASTER",
        notes=(("bench:baseline_alone_ns", "2000"), ("bench:empty_call_ns", "90")),
    )


def candidate(name: str) -> Candidate:
    """An implementation with as many sources as the shipped ones have."""
    sources = tuple((f"folder/file_{place}.py", sha256(f"{place}")) for place in range(SOURCES))
    return Candidate(
        name=name,
        op="moe_experts",
        contract="moe-torch/1",
        tier="native",
        device="cpu",
        implementation=f"{name}:experts",
        sources=sources,
        config=(),
        switches=(),
        digest=sha256(name),
    )


def verdict(evidence: Evidence) -> Verdict:
    """A passed verdict: each required gate with its bound, the others not run."""
    bound = Bound(unit="call", trials=40, failures=0, confidence="0.95", upper="0.0722")
    passed = dict.fromkeys(REQUIRED, (bound,))
    results = tuple(
        GateResult(
            gate=gate,
            version=1,
            outcome="pass" if gate in passed else "not-run",
            reason="all outputs equal, over every case, bit for bit, in fresh processes",
            compared=40 if gate in passed else 0,
            expected=40 if gate in passed else 0,
            bounds=passed.get(gate, ()),
            evidence=evidence if gate in passed else None,
        )
        for gate in GATES
    )
    return Verdict(
        kind="exact", required=REQUIRED, results=results, bound=bound, coverage="200 of 200 cases"
    )


def measurement() -> Measurement:
    """Twenty rounds in five processes."""
    plan = Plan(
        regime="warm",
        rounds=ROUNDS,
        processes=5,
        calls_per_sample=1,
        margin="0.01",
        alpha="0.05",
        order_seed=7,
    )
    times = range(1_000_000, 1_000_000 + ROUNDS)
    return Measurement(
        plan=plan,
        timer="perf_counter_ns",
        resolution_ns=1,
        baseline_ns=tuple(2 * time for time in times),
        candidate_ns=tuple(times),
        order="BC" * (ROUNDS // 2),
        process=tuple(place % 5 for place in range(ROUNDS)),
        verified_outputs=2 * ROUNDS,
    )


def sha256(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
