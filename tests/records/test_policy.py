"""Promotion: what opens a lane, what wins one, and each single thing that refuses."""

from dataclasses import replace

import pytest

from bitgate.records.base import InvariantError
from bitgate.records.errors import UsageError
from bitgate.records.lanes import latest_decisions
from bitgate.records.policy import (
    PromotionRefused,
    current_baseline,
    judge,
    load_policy,
    promote,
    reject,
    standing,
)
from bitgate.records.types import GateResult

LANE = "cpu/moe_experts/experts=8,hidden=128,intermediate=64,tokens=64,top_k=2/bfloat16"


def test_a_lane_opens_and_is_won(bench):
    assert current_baseline(bench.ledger, LANE) is None
    opened = bench.open()
    assert (opened.kind, opened.policy, opened.author) == ("opening-baseline", 1, "ann")
    assert "no claim of speed" in opened.reason
    assert current_baseline(bench.ledger, LANE).candidate == bench.loop
    won = bench.promote(bench.claim())
    assert won.kind == "promoted"
    assert "FASTER than loop: median ratio 1.990590" in won.reason
    assert standing(bench.ledger, LANE).id == won.record_id
    assert latest_decisions(bench.ledger)[won.record_id] == won
    assert [entry.kind for entry in bench.ledger.entries()] == [
        "record",
        "lane",
        "decision",
        "record",
        "decision",
    ]
    assert bench.ledger.verify(strict=True).ok


def test_the_beginning_of_an_id_is_enough(bench):
    bench.opening = bench.opening[:10]
    assert len(bench.open().record_id) == 64


def test_a_lane_opens_once(bench):
    bench.open()
    missing = bench.missing(bench.record(reason="another"), first=True)
    assert len(missing) == 1
    assert missing[0].startswith("first: the lane has the baseline loop")


def test_a_claim_needs_an_open_lane(bench):
    bench.writer.append(bench.make["lane"]())
    missing = bench.missing(bench.claim())
    assert missing == ("baseline: the lane has none yet; `records promote --first` opens it",)


def test_a_lane_must_be_declared_before_the_record(bench, agreeing):
    stored = bench.writer.append(bench.claim()).id
    bench.open()
    with pytest.raises(PromotionRefused) as caught:
        promote(bench.writer, stored, recheck=agreeing(), author="ann")
    assert [item.partition(":")[0] for item in caught.value.missing] == ["lane"]
    assert "after the record" in caught.value.missing[0]


def test_a_lane_declared_by_another_writer_counts_by_time(bench, agreeing):
    bench.open()
    other = bench.ledger.writer("b")
    for created_at, fits in (("2000-01-01T00:00:00Z", False), ("2999-01-01T00:00:00Z", True)):
        stored = other.append(bench.claim(created_at=created_at)).id
        if fits:
            assert promote(other, stored, recheck=agreeing(), author="bob").kind == "promoted"
        else:
            with pytest.raises(PromotionRefused, match="after the record"):
                promote(other, stored, recheck=agreeing(), author="bob")


def test_a_lane_without_a_declaration_is_refused(bench):
    bench.open()
    missing = bench.missing(bench.claim(lane="elsewhere"))
    assert "lane: elsewhere was never declared" in missing


def test_contradictory_declarations_are_refused(bench):
    bench.open()
    bench.writer.append(bench.make["lane"](target="5"))
    assert bench.missing(bench.claim()) == (f"lane: {LANE} is declared in 2 different ways",)


def test_a_given_lane_must_be_the_records(bench, make):
    with pytest.raises(UsageError, match="expected the record's lane"):
        bench.open(lane=make["lane"](id="mine"))
    bench.open(lane=make["lane"](kill_criterion="500"))
    assert next(bench.ledger.lanes()).body.kill_criterion == "500"


# --- each single fault ---------------------------------------------------------------------------


def worse(bench, gate, outcome):
    verdict = bench.make["verdict"](bench.evidence)
    results = tuple(
        replace(result, outcome=outcome, reason="planted") if result.gate == gate else result
        for result in verdict.results
    )
    required = tuple(name for name in verdict.required if name != gate)
    return replace(verdict, results=results, required=required)


@pytest.mark.parametrize("gate", ["G0", "G2", "G4", "G9", "G12"])
@pytest.mark.parametrize("outcome", ["not-run", "blocked", "inconclusive"])
def test_each_required_gate_must_have_passed(bench, gate, outcome):
    bench.open()
    missing = bench.missing(bench.claim(verdict=worse(bench, gate, outcome)))
    assert missing == (f"gate {gate}: required, and {outcome}: planted",)


def test_a_required_gate_that_is_absent_is_missing(bench):
    bench.open()
    verdict = bench.make["verdict"](bench.evidence)
    fewer = replace(verdict, results=verdict.results[:-1], required=verdict.required[:-1])
    missing = bench.missing(bench.claim(verdict=fewer))
    assert missing == ("gate G12: required, and absent from the verdict",)


@pytest.mark.parametrize(
    ("gate", "outcome", "fits"),
    [
        ("G5", "not-run", True),
        ("G5", "blocked", False),
        ("G5", "inconclusive", False),
        ("G77", "not-run", False),
    ],
)
def test_other_gates_may_only_be_tolerably_not_run(bench, gate, outcome, fits, agreeing):
    bench.open()
    verdict = bench.make["verdict"](bench.evidence)
    extra = GateResult(
        gate=gate, version=1, outcome=outcome, reason="no graphs here", compared=0, expected=0
    )

    class Lenient(agreeing):
        def evidence(self, record, ledger):
            return ()

    record = bench.claim(verdict=replace(verdict, results=(*verdict.results, extra)))
    if fits:
        assert bench.promote(record, Lenient()).kind == "promoted"
    else:
        assert bench.missing(record, Lenient()) == (f"gate {gate}: {outcome}: no graphs here",)


def bounded(bench, **changes):
    verdict = bench.make["verdict"](bench.evidence)
    bound = replace(verdict.bound, **changes)
    results = tuple(replace(result, bounds=(bound,)) for result in verdict.results)
    return replace(verdict, bound=bound, results=results)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"trials": 20, "upper": "0.1392"}, "bound: expected at most 0.10 at 0.95, got 0.1392"),
        ({"confidence": "0.90"}, "bound: expected at most 0.10 at 0.95, its confidence is 0.90"),
        ({"trials": 20}, "verdict: 20 trials with 0 failures do not prove 0.0722"),
        ({"failures": 1}, "verdict: 40 trials with 1 failures do not prove"),
    ],
)
def test_the_bound_must_be_strong_enough_and_proven(bench, changes, missing):
    bench.open()
    (item,) = bench.missing(bench.claim(verdict=bounded(bench, **changes)))
    assert item.startswith(missing)


def forged(candidate):
    return replace(candidate, config=(("fast", "yes"),))


@pytest.mark.parametrize(
    ("change", "item"),
    [
        (lambda b: {"candidate": forged(b.make["candidate"]())}, "identity: the digest of the can"),
        (lambda b: {"baseline": forged(b.loop)}, "identity: the digest of the baseline loop"),
        (
            lambda b: {"baseline": b.make["candidate"]("older")},
            "baseline: timed against",
        ),
        (lambda b: {"candidate": b.loop}, "candidate: it is the lane's baseline already"),
        (lambda b: {"measurement": None, "effect": None}, "measurement: the record was not timed"),
        (
            lambda b: {"environment": b.make["environment"](packages=(("torch", "2.12.0"),))},
            "comparability: the lane's baseline was recorded with other package:torch (2.13.0 -> ",
        ),
        (
            lambda b: {"environment": b.make["environment"](device="cuda")},
            "lane: it is for the dev",
        ),
        (lambda b: {"outcome": "inconclusive"}, "outcome: expected passed, the record says inc"),
        (lambda b: {"outcome": "reported"}, "outcome: expected passed, the record says reported"),
        (
            lambda b: {"measurement": planned(b, margin="0.001")},
            "margin: expected a declared margin of at least 0.01, got 0.001",
        ),
        (lambda b: {"measurement": planned(b, alpha="0.2")}, "alpha: expected at most 0.05"),
    ],
    ids=[
        "candidate digest",
        "baseline digest",
        "stale baseline",
        "itself",
        "untimed",
        "node",
        "device",
        "inconclusive",
        "reported",
        "margin",
        "alpha",
    ],
)
def test_each_single_fault_refuses(bench, change, item):
    bench.open()
    assert any(found.startswith(item) for found in bench.missing(bench.claim(**change(bench))))


def planned(bench, **changes):
    measurement = bench.make["measurement"]()
    return replace(measurement, plan=replace(measurement.plan, **changes))


@pytest.mark.parametrize("effect", ["SAME", "SLOWER", "INCONCLUSIVE", "INVALID"])
def test_only_faster_wins_and_it_is_computed_again(bench, effect, agreeing):
    bench.open()
    missing = bench.missing(bench.claim(effect=effect), agreeing(effect=effect))
    assert missing == (f"effect: expected FASTER, the record says {effect}",)
    missing = bench.missing(bench.claim(reason="again"), agreeing(effect=effect))
    assert missing == (
        f"effect: computed again from the raw samples it is {effect}, the record says FASTER",
    )


def test_complaints_about_the_evidence_refuse(bench, agreeing):
    complaints = ("G9: digests differ", "G4: no cases")
    missing = bench.missing(bench.record(reason="x"), agreeing(complaints), first=True)
    assert missing == ("evidence: G9: digests differ", "evidence: G4: no cases")


def test_the_kill_criterion_is_asked(bench, make):
    bench.open(lane=make["lane"](kill_criterion="1001"))
    (item,) = bench.missing(bench.claim())
    assert "the median saving is 1000.000000 ns per call" in item
    record = bench.claim(measurement=make["measurement"](baseline=2_001))
    assert bench.promote(record).kind == "promoted"


def test_a_broken_ledger_promotes_nothing(bench, agreeing):
    bench.open()
    stored = bench.writer.append(bench.claim()).id
    path = bench.ledger.root / "objects" / bench.evidence.sha256[:2] / bench.evidence.sha256
    path.write_bytes(b"changed")
    with pytest.raises(PromotionRefused, match="ledger: object: row 1 names evidence"):
        promote(bench.writer, stored, recheck=agreeing(), author="ann")


def test_a_record_of_another_ledger_is_refused(bench, agreeing):
    judgement = judge(bench.ledger, bench.claim(), load_policy(1), agreeing(), False)
    assert judgement.missing == ("record: it is not in this ledger",)
    with pytest.raises(UsageError, match="no record's id begins with"):
        promote(bench.writer, "0" * 64, recheck=agreeing(), author="ann")


def test_all_missing_items_are_listed_at_once(bench, make, agreeing):
    bench.open()
    record = bench.claim(
        verdict=bounded(bench, trials=20, upper="0.1392"),
        environment=make["environment"](threads=1),
        measurement=planned(bench, margin="0"),
    )
    names = [item.partition(":")[0] for item in bench.missing(record, agreeing(effect="SAME"))]
    assert names == ["bound", "comparability", "effect", "margin"]


def test_a_decided_record_is_not_promoted_again(bench, agreeing):
    bench.open()
    won = bench.promote(bench.claim())
    with pytest.raises(PromotionRefused, match="decision: the record was promoted on"):
        promote(bench.writer, won.record_id, recheck=agreeing(), author="ann")


# --- what a forged or careless claim tries -------------------------------------------------------


def test_the_verdicts_bound_must_be_one_that_a_passed_gate_proved(bench):
    bench.open()
    verdict = bench.make["verdict"](bench.evidence)
    forged = replace(verdict.bound, trials=100_000, upper="0.0001")
    missing = bench.missing(bench.claim(verdict=replace(verdict, bound=forged)))
    assert missing == ("verdict: no passed gate proved its bound of 0.0001 per call",)
    (first, *rest) = verdict.results
    proven = (replace(first, bounds=(*first.bounds, forged)), *rest)
    record = bench.claim(verdict=replace(verdict, bound=forged, results=proven))
    assert bench.promote(record).kind == "promoted"


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "throughput"},
        {"unit": "tok/s"},
        {"statistic": "p10"},
        {"higher_is_better": True},
    ],
    ids=["metric", "unit", "statistic", "direction"],
)
def test_a_lane_of_another_number_takes_no_latencies(bench, make, changes):
    bench.writer.append(make["lane"](**changes))
    (item,) = bench.missing(bench.record(reason="x"), first=True)
    assert item.startswith("lane: it counts ")


def test_a_run_before_its_lane_is_refused_even_if_it_is_stored_later(bench):
    bench.open()
    (item,) = bench.missing(bench.claim(created_at="2000-01-01T00:00:00Z"))
    assert item.startswith("lane: it was declared on ")
    assert item.endswith("after the record of 2000-01-01T00:00:00.000000Z")


def test_another_number_of_devices_is_not_comparable(bench, make):
    bench.open()
    (item,) = bench.missing(bench.claim(environment=make["environment"](device_count=8)))
    assert item.startswith("comparability: ")
    assert "device_count (1 -> 8)" in item


def test_a_rejected_record_stays_rejected_and_its_candidate_may_try_again(bench, agreeing):
    bench.open()
    stored = bench.writer.append(bench.claim()).id
    reject(bench.writer, stored, author="ann", reason="noise")
    with pytest.raises(PromotionRefused, match="decision: the record was rejected on"):
        promote(bench.writer, stored, recheck=agreeing(), author="ann")
    assert bench.promote(bench.claim(reason="a new run")).kind == "promoted"


def test_nobody_promotes_anonymously(bench, agreeing):
    bench.open()
    stored = bench.writer.append(bench.claim()).id
    with pytest.raises(InvariantError, match="author is empty"):
        promote(bench.writer, stored, recheck=agreeing(), author=" ")
    assert promote(bench.writer, stored, recheck=agreeing(), author="ann").kind == "promoted"
