"""Small valid values that the tests of records build upon."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitgate.records.identity import candidate_digest
from bitgate.records.ledger import Ledger
from bitgate.records.policy import PromotionRefused, promote
from bitgate.records.types import (
    Bound,
    Candidate,
    Environment,
    Evidence,
    GateResult,
    Harness,
    Lane,
    Measurement,
    Plan,
    Record,
    Simulation,
    Verdict,
    Workload,
)

GATES = ("G0", "G2", "G4", "G9", "G12")
LANE = "cpu/moe_experts/experts=8,hidden=128,intermediate=64,tokens=64,top_k=2/bfloat16"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def a_workload() -> Workload:
    axes = {"experts": 8, "hidden": 128, "intermediate": 64, "tokens": 64, "top_k": 2}
    return Workload(op="moe_experts", axes=tuple(axes.items()), dtype="bfloat16")


def a_candidate(name: str = "sorted-once", **changes: Any) -> Candidate:
    draft = Candidate(
        name=name,
        op="moe_experts",
        contract="moe-torch/1",
        tier="native",
        device="cpu",
        implementation="mine:experts",
        sources=(("mine.py", sha(name)),),
        config=(),
        switches=(),
        digest="0" * 64,
    )
    draft = replace(draft, **changes)
    return replace(draft, digest=candidate_digest(draft))


def an_environment(**changes: Any) -> Environment:
    plain = Environment(
        device="cpu",
        device_name="CPU",
        device_count=1,
        node="lab-1",
        os="Linux",
        python="3.11.0",
        threads=2,
        packages=(("torch", "2.13.0"),),
        libraries=(),
        switches=(),
        probes=(),
    )
    return replace(plain, **changes)


def a_verdict(evidence: Evidence, **changes: Any) -> Verdict:
    bound = Bound(unit="call", trials=40, failures=0, confidence="0.95", upper="0.0722")
    results = tuple(
        GateResult(
            gate=gate,
            version=1,
            outcome="pass",
            reason="all equal",
            compared=40,
            expected=40,
            bounds=(bound,),
            evidence=evidence,
        )
        for gate in GATES
    )
    plain = Verdict(
        kind="exact", required=GATES, results=results, bound=bound, coverage="40 of 40 cases"
    )
    return replace(plain, **changes)


def a_measurement(baseline: int = 2_000, candidate: int = 1_000, rounds: int = 20) -> Measurement:
    plan = Plan(
        regime="warm",
        rounds=rounds,
        processes=5,
        calls_per_sample=1,
        margin="0.01",
        alpha="0.05",
        order_seed=7,
    )
    return Measurement(
        plan=plan,
        timer="perf_counter_ns",
        resolution_ns=1,
        baseline_ns=tuple(baseline + step for step in range(rounds)),
        candidate_ns=tuple(candidate + step for step in range(rounds)),
        order="BC" * (rounds // 2),
        process=tuple(step % 5 for step in range(rounds)),
        verified_outputs=2 * rounds,
    )


def a_record(evidence: Evidence, **changes: Any) -> Record:
    plain = Record(
        created_at="2026-01-31T12:00:00Z",
        lane=LANE,
        candidate=a_candidate(),
        baseline=None,
        workload=a_workload(),
        bundle_sha256=None,
        environment=an_environment(),
        harness=Harness(version="0.1.0", commit=None, dirty=False, source_sha256="1" * 64),
        verdict=a_verdict(evidence),
        outcome="passed",
        reason="every gate passed",
    )
    return replace(plain, **changes)


def a_lane(**changes: Any) -> Lane:
    plain = Lane(
        id=LANE,
        op="moe_experts",
        workload=a_workload(),
        device="cpu",
        metric="latency",
        unit="ns",
        statistic="median",
        higher_is_better=False,
    )
    return replace(plain, **changes)


def a_simulation(summary: Evidence, records: tuple[str, ...], **changes: Any) -> Simulation:
    plain = Simulation(
        created_at="2026-01-31T14:00:00Z",
        name="demo with standing kernels",
        device="cpu",
        node="lab-1",
        model="tiny-moe",
        summary=summary,
        record_ids=records,
        coverage=(("exact", "0.25"), ("interpolated", "0.6"), ("assumed", "0.15")),
    )
    return replace(plain, **changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def evidence(ledger: Ledger) -> Evidence:
    return ledger.put(b'{"schema":1,"gate":"G9","cases":[]}', "application/json")


@pytest.fixture
def make() -> dict[str, Callable[..., Any]]:
    """The builders above, by the name of what they build."""
    return {
        "workload": a_workload,
        "candidate": a_candidate,
        "environment": an_environment,
        "verdict": a_verdict,
        "measurement": a_measurement,
        "record": a_record,
        "lane": a_lane,
        "simulation": a_simulation,
    }


class Agreeing:
    """A recheck that finds the evidence in order."""

    def __init__(self, complaints=(), effect="FASTER"):
        self.complaints = complaints
        self.again = effect

    def evidence(self, record, ledger):
        assert all(ledger.get(result.evidence.sha256) for result in record.verdict.results)
        return self.complaints

    def effect(self, record):
        return self.again


class Bench:
    """A ledger with one writer, and a lane that is open with the baseline `loop`."""

    def __init__(self, ledger, evidence, make):
        self.ledger, self.evidence, self.make = ledger, evidence, make
        self.writer = ledger.writer("a")
        self.loop = make["candidate"]("loop")
        self.opening = self.store(candidate=self.loop)

    def record(self, **changes):
        return self.make["record"](self.evidence, **changes)

    def store(self, **changes) -> str:
        return self.writer.append(self.record(**changes)).id

    def open(self, **changes):
        return promote(
            self.writer, self.opening, recheck=Agreeing(), author="ann", first=True, **changes
        )

    def claim(self, **changes):
        timed = {
            "baseline": self.loop,
            "measurement": self.make["measurement"](),
            "effect": "FASTER",
            "created_at": "2999-01-31T12:00:00Z",
        }
        return self.record(**(timed | changes))

    def promote(self, record, recheck=None, **changes):
        stored = self.writer.append(record).id
        return promote(self.writer, stored, recheck=recheck or Agreeing(), author="ann", **changes)

    def missing(self, record, recheck=None, **changes) -> tuple[str, ...]:
        before = len(list(self.ledger.decisions()))
        with pytest.raises(PromotionRefused) as caught:
            self.promote(record, recheck, **changes)
        assert len(list(self.ledger.decisions())) == before
        assert all(item in str(caught.value) for item in caught.value.missing)
        return caught.value.missing


@pytest.fixture
def bench(ledger, evidence, make) -> Bench:
    return Bench(ledger, evidence, make)


@pytest.fixture
def agreeing() -> type[Agreeing]:
    return Agreeing
