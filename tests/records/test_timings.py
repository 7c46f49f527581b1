"""The ledger's timings: only what decisions made a price, each with its source."""

from dataclasses import replace

import pytest

from bitgate.records.errors import LedgerBroken, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.policy import reject
from bitgate.records.timings import lane_timings
from bitgate.records.types import Decision


@pytest.fixture
def opened(bench, make):
    """A lane whose opening record was timed against itself, at 3,000 ns and up."""
    bench.opening = bench.store(
        candidate=bench.loop,
        baseline=bench.loop,
        measurement=make["measurement"](3_000, 3_000),
        effect="SAME",
    )
    bench.open()
    return bench


def prices(ledger: Ledger, basis: str) -> list[tuple[int, tuple[str, ...]]]:
    return [(found.timing.ns, found.timing.record_ids) for found in lane_timings(ledger, basis)]


def test_an_opened_lane_has_its_baselines_time_on_either_basis(opened):
    # Samples 3,000 to 3,019: the mean of the middle two, half to even.
    expected = [(3_010, (opened.opening,))]
    assert prices(opened.ledger, "standing") == expected == prices(opened.ledger, "replaced")


def test_what_a_promotion_replaced_has_the_time_that_was_taken_beside_it(opened):
    """Not its time in an earlier session: the machine may have been slower or faster there."""
    promoted = opened.promote(opened.claim()).record_id
    assert prices(opened.ledger, "standing") == [(1_010, (promoted,))]
    assert prices(opened.ledger, "replaced") == [(2_010, (promoted,))]
    (before,) = lane_timings(opened.ledger, "replaced")
    assert before.candidate == opened.loop.name
    (found,) = lane_timings(opened.ledger, "standing")
    assert found.workload == opened.record().workload
    assert ("regime", "warm") in found.comparability
    assert ("node", "lab-1") in found.comparability


def test_a_rejected_record_is_no_price_however_fast(opened, make):
    fast = make["measurement"](3_000, 10)
    stored = opened.writer.append(opened.claim(measurement=fast)).id
    reject(opened.writer, stored, author="ann", reason="wrong bits in service")
    assert prices(opened.ledger, "standing") == [(3_010, (opened.opening,))]


def test_a_promotion_that_was_taken_back_gives_the_lane_back(opened):
    promoted = opened.promote(opened.claim()).record_id
    reject(opened.writer, promoted, author="ann", reason="wrong bits in service")
    assert prices(opened.ledger, "standing") == [(3_010, (opened.opening,))]


def test_an_opening_that_was_taken_back_is_no_price(opened):
    promoted = opened.promote(opened.claim()).record_id
    reject(opened.writer, opened.opening, author="ann", reason="measured under load")
    assert prices(opened.ledger, "standing") == [(1_010, (promoted,))]


def test_a_lane_without_a_measurement_has_no_price(bench):
    bench.open()
    assert prices(bench.ledger, "standing") == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outcome": "rejected", "reason": "too slow"}, "got rejected with the verdict exact"),
        ({"outcome": "reported", "reason": "from elsewhere"}, "got reported"),
        ({"lane": "cpu/other"}, "in cpu/other"),
    ],
)
def test_a_forged_decision_makes_no_price(opened, changes, why):
    forged = opened.writer.append(replace(opened.claim(), **changes)).id
    decision = Decision(
        created_at="2999-02-01T00:00:00Z",
        kind="promoted",
        lane=opened.record().lane,
        record_id=forged,
        policy=1,
        author="mallory",
        reason="because",
    )
    opened.writer.append(decision)
    with pytest.raises(LedgerBroken, match=why):
        lane_timings(opened.ledger, "standing")


def test_a_decision_on_a_missing_record_makes_no_price(opened):
    decision = Decision(
        created_at="2999-02-01T00:00:00Z",
        kind="promoted",
        lane=opened.record().lane,
        record_id="7" * 64,
        policy=1,
        author="mallory",
        reason="because",
    )
    opened.writer.append(decision)
    with pytest.raises(LedgerBroken, match="in no chain"):
        lane_timings(opened.ledger, "standing")


def test_a_missing_ledger_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="no ledger at"):
        lane_timings(Ledger(tmp_path / "nowhere"), "standing")
