"""Small valid values that the tests of records build upon."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
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


def a_summary(
    records: tuple[str, ...], *, basis: str = "standing", scale: int = 1
) -> dict[str, Any]:
    """A simulator's answer about `a_simulation`; `scale` stretches every time."""

    def spread(*ns: int) -> dict[str, Any]:
        mean, p50, p90, p99 = (value * scale for value in ns)
        return {"count": 256, "mean": f"{mean}.500000", "p50": p50, "p90": p90, "p99": p99}

    how = {"exact": "0.250000", "interpolated": "0.600000", "extrapolated": "0.000000"}
    everything = {"busy_ns": 10**9 * scale, **how, "assumed": "0.150000"}
    experts = {"exact": "0.277778", "interpolated": "0.722222", "assumed": "0.000000"}
    return {
        "schema": "bitgate-sim/1",
        "name": f"slice-{basis}",
        "labels": ["CPU timings of node lab-1 (CPU): they say nothing about another device"],
        "model": {
            "name": "tiny-moe",
            "architecture": "Qwen3MoeForCausalLM",
            "dtype": "bfloat16",
            "layers": 2,
            "config_sha256": sha("config"),
        },
        "workload": {
            "trace": "slice.csv",
            "sha256": sha("trace"),
            "requests": 256,
            "prompt_tokens": 262_144,
            "output_tokens": 54_321,
        },
        "engine": {"block_size": 16, "max_num_seqs": 128, "max_num_active_seqs": None},
        "prices": {
            "basis": basis,
            "regime": "warm",
            "allow_extrapolation": False,
            "peaks": {"bytes_per_second": 10**10, "bytes_source": "declared"},
            "device": "cpu",
            "device_name": "CPU",
            "node": "lab-1",
            "ops": [
                {
                    "op": "moe_experts",
                    "calls": 2_000,
                    "ns": 9 * 10**8 * scale,
                    "share": "0.900000",
                    "how": experts,
                    "record_ids": list(records),
                },
                {
                    "op": "gemm",
                    "calls": 8_000,
                    "ns": 10**8 * scale,
                    "share": "0.100000",
                    "how": {"assumed": "1.000000"},
                    "record_ids": [],
                },
            ],
        },
        "coverage": everything,
        "metrics": {
            "ttft_ns": spread(120_000_000, 100_000_000, 200_000_000, 400_000_000),
            "tpot_ns": spread(20_000_000, 19_000_000, 30_000_000, 41_000_000),
            "e2e_ns": spread(4_000_000_000, 3_900_000_000, 6_000_000_000, 9_000_000_000),
            "makespan_ns": 132_000_000_000 * scale,
            "output_tokens_per_second": f"{1000 // scale}.250000",
        },
        "audit": {"passed": True, "findings": [], "requests": 256},
        "digest": sha(f"{basis} {scale}"),
    }


VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects what the tests ask for, and insists on balanced elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def parse() -> type[Page]:
    """Reads a page; what it insists on fails the test."""
    return Page


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
        "summary": a_summary,
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
