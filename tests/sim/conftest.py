"""Small timings and ledgers that the tests of prices build upon."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitgate.records.identity import candidate_digest
from bitgate.records.lanes import lane_id, make_lane
from bitgate.records.ledger import Ledger
from bitgate.records.timings import LaneTiming
from bitgate.records.types import (
    Bound,
    Candidate,
    Decision,
    Environment,
    GateResult,
    Harness,
    Measurement,
    Plan,
    Record,
    Timing,
    Verdict,
    Workload,
)
from bitgate.sim.peaks import Peaks


def workload(op: str, dtype: str = "bfloat16", case: str = "random", **axes: int) -> Workload:
    return Workload(op=op, axes=tuple(sorted(axes.items())), dtype=dtype, case=case)


def environment(device: str = "cpu", **changes: Any) -> Environment:
    plain: dict[str, Any] = {
        "device": device,
        "device_name": "a CPU",
        "device_count": 1,
        "node": "lab-1",
        "os": "Linux",
        "python": "3.11.0",
        "threads": 2,
        "packages": (("torch", "2.13.0"),),
        "libraries": (),
        "switches": (),
        "probes": (),
    }
    return Environment(**(plain | changes))


def timing(of: Workload, ns: int, device: str = "cpu", **changes: Any) -> LaneTiming:
    """A lane's timing, with a record id of its own."""
    where = environment(device, **changes)
    lane = lane_id(device, of)
    return LaneTiming(
        lane=lane,
        workload=of,
        timing=Timing(ns=ns, basis="exact", record_ids=(record_id(lane),)),
        candidate="loop",
        environment=where,
        regime="warm",
        timer="perf_counter_ns",
    )


def record_id(lane: str) -> str:
    return hashlib.sha256(lane.encode()).hexdigest()


def peaks(device: str = "cpu", launch_ns: int = 100) -> Peaks:
    return Peaks(
        device=device,
        name="a declared device",
        bytes_per_second=10**9,
        bytes_source="declared by a test",
        flops_per_second=(("bfloat16", 2 * 10**9),),
        flops_source="declared by a test",
        launch_ns=launch_ns,
        launch_source="declared by a test",
    )


class Lanes:
    """A ledger whose lanes are opened and promoted without a run, by what was measured."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger(root)
        self._writer = self.ledger.writer("a")
        self._evidence = self.ledger.put(b"{}", "application/json")

    def append(self, of: Workload, ns: int, device: str = "cpu", name: str = "loop") -> str:
        """A passed record that took so long; returns its id."""
        candidate = self._candidate(of.op, device, name)
        baseline = self._candidate(of.op, device, "loop")
        bound = Bound(unit="call", trials=40, failures=0, confidence="0.95", upper="0.0722")
        result = GateResult(
            gate="G2",
            version=1,
            outcome="pass",
            reason="all equal",
            compared=40,
            expected=40,
            bounds=(bound,),
            evidence=self._evidence,
        )
        plan = Plan(
            regime="warm",
            rounds=2,
            processes=1,
            calls_per_sample=1,
            margin="0",
            alpha="0.05",
            order_seed=1,
        )
        record = Record(
            created_at="2026-01-31T12:00:00Z",
            lane=lane_id(device, of),
            candidate=candidate,
            baseline=baseline,
            workload=of,
            bundle_sha256=None,
            environment=environment(device),
            harness=Harness(version="0", commit=None, dirty=False, source_sha256="1" * 64),
            verdict=Verdict(
                kind="exact", required=("G2",), results=(result,), bound=bound, coverage="40 of 40"
            ),
            outcome="passed",
            reason="every gate passed",
            measurement=Measurement(
                plan=plan,
                timer="perf_counter_ns",
                resolution_ns=1,
                baseline_ns=(2 * ns, 2 * ns),
                candidate_ns=(ns, ns),
                order="BC",
                process=(0, 0),
                verified_outputs=4,
            ),
            effect="FASTER",
        )
        return self._writer.append(record).id

    def decide(self, of: Workload, record: str, kind: str, device: str = "cpu") -> None:
        self._writer.append_many(
            [
                make_lane(device, of),
                Decision(
                    created_at="2026-02-01T12:00:00Z",
                    kind=kind,
                    lane=lane_id(device, of),
                    record_id=record,
                    policy=1,
                    author="ann",
                    reason="a test",
                ),
            ]
        )

    def open(self, of: Workload, ns: int, device: str = "cpu") -> str:
        record = self.append(of, ns, device)
        self.decide(of, record, "opening-baseline", device)
        return record

    def _candidate(self, op: str, device: str, name: str) -> Candidate:
        fields: dict[str, Any] = {
            "name": name,
            "op": op,
            "contract": "c/1",
            "tier": "native",
            "device": device,
            "implementation": "mine:run",
            "sources": (("mine.py", hashlib.sha256(name.encode()).hexdigest()),),
            "config": (),
            "switches": (),
        }
        draft = Candidate(**fields, digest="0" * 64)
        return Candidate(**fields, digest=candidate_digest(draft))


@pytest.fixture
def lanes(tmp_path: Path) -> Lanes:
    return Lanes(tmp_path / "ledger")


@pytest.fixture(scope="session")
def make() -> dict[str, Callable[..., Any]]:
    """The builders above, by the name of what they build."""
    return {"workload": workload, "timing": timing, "peaks": peaks, "record_id": record_id}


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Write a small Llama's config.json with changes; ... takes a field out."""

    def write(**changes: Any) -> Path:
        values = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(values))
        return path

    return write
