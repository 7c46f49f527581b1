"""Waivers, rejections, and the names and files that promotion goes by."""

import subprocess
import sys
from importlib.resources import files

import pytest

from bitgate.records.errors import UsageError
from bitgate.records.identity import candidate_digest
from bitgate.records.lanes import lane_id, make_lane
from bitgate.records.policy import (
    PromotionRefused,
    current_baseline,
    load_policy,
    promote,
    reject,
)
from bitgate.records.types import Bound, Waiver, Workload

LANE = "cpu/moe_experts/experts=8,hidden=128,intermediate=64,tokens=64,top_k=2/bfloat16"


# --- waivers -------------------------------------------------------------------------------------


def waiver(requirement, expires="2999-01-01T00:00:00Z"):
    return Waiver(requirement=requirement, author="ann", reason="agreed", expires=expires)


def test_a_waiver_covers_what_it_names_and_is_kept(bench, make):
    bench.open()
    record = bench.claim(environment=make["environment"](threads=1))
    given = waiver("comparability")
    assert bench.promote(record, waivers=(given,)).waivers == (given,)


@pytest.mark.parametrize(
    ("given", "item"),
    [
        (waiver("gate G9"), "waiver: 'gate G9' cannot be waived; only bound, margin"),
        (waiver("effect"), "waiver: 'effect' cannot be waived"),
        (waiver("evidence"), "waiver: 'evidence' cannot be waived"),
        (waiver("comparability", "2000-01-01T00:00:00Z"), "waiver: the one for 'comparability' by"),
        (waiver("bound"), "waiver: 'bound' is not missing"),
    ],
    ids=["gate", "effect", "evidence", "expired", "needless"],
)
def test_a_waiver_that_does_not_hold_refuses(bench, make, given, item):
    bench.open()
    record = bench.claim(environment=make["environment"](threads=1))
    missing = bench.missing(record, waivers=(given,))
    assert any(found.startswith(item) for found in missing)
    assert any(found.startswith("comparability") for found in missing)


# --- rejecting -----------------------------------------------------------------------------------


def test_a_rejection_keeps_its_reason_and_counts_once(bench, agreeing):
    stored = bench.store(reason="other")
    made = reject(bench.writer, stored[:9], author="bob", reason="unreadable")
    assert (made.kind, made.reason, made.author) == ("rejected", "unreadable", "bob")
    with pytest.raises(UsageError, match="rejected on"):
        reject(bench.writer, stored, author="bob", reason="again")
    with pytest.raises(PromotionRefused, match="decision: the record was rejected"):
        promote(bench.writer, stored, recheck=agreeing(), author="ann", first=True)


def test_rejecting_the_standing_record_gives_the_lane_back(bench):
    bench.open()
    won = bench.promote(bench.claim())
    reject(bench.writer, won.record_id, author="bob", reason="a race was found")
    assert current_baseline(bench.ledger, LANE).candidate == bench.loop
    reject(bench.writer, bench.opening, author="bob", reason="this too")
    assert current_baseline(bench.ledger, LANE) is None


# --- files and names -----------------------------------------------------------------------------


def test_policy_files_load_and_unknown_versions_list_the_known():
    policy = load_policy(1)
    assert policy.required["native"] == ("G0", "G2", "G4", "G9", "G12")
    with pytest.raises(UsageError, match="no policy version 99; known are 1"):
        load_policy(99)
    assert files("bitgate.records.policy").joinpath("policy-1.toml").is_file()


def test_lane_ids_are_readable(make):
    assert make_lane("cpu", make["workload"]()).id == LANE
    axes = (("hidden", 64), ("streams", 4), ("tokens", 1))
    edge = Workload(op="mhc_pre", axes=axes, dtype="float32", case="edge")
    assert lane_id("xpu", edge) == "xpu/mhc_pre/hidden=64,streams=4,tokens=1/float32/edge"


def test_the_bound_of_forty_clean_cases_is_accepted_as_proven(make, evidence):
    bound = Bound(unit="call", trials=40, failures=0, confidence="0.95", upper="0.07217")
    assert make["verdict"](evidence, bound=bound).passed
    assert candidate_digest(make["candidate"]()) == make["candidate"]().digest


def test_records_needs_no_torch():
    code = (
        "import sys, bitgate.records.policy, bitgate.records.cli, bitgate.records.ops;"
        "assert not {'torch', 'triton', 'numba', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
