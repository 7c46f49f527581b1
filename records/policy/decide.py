"""Promoting and rejecting: the only functions that write decisions."""

from bitgate.records.clock import utc_now
from bitgate.records.durable import locked
from bitgate.records.errors import BitgateError, UsageError
from bitgate.records.lanes import declarations, make_lane
from bitgate.records.ledger import Row, Writer
from bitgate.records.policy.judge import Judgement, Recheck, judge
from bitgate.records.policy.load import CURRENT, load_policy
from bitgate.records.rows import Decision, Lane, Record, Waiver
from bitgate.records.stats import ratio_median


class PromotionRefused(BitgateError):  # noqa: N818 - an outcome with an exit code, not a defect
    """The policy did not accept the record; `missing` lists every item. Exit code 1."""

    def __init__(self, record_id: str, judgement: Judgement) -> None:
        self.missing = judgement.missing
        items = "\n".join(f"  - {item}" for item in judgement.missing)
        super().__init__(f"record {record_id[:12]} was not promoted; missing:\n{items}")


def promote(  # noqa: PLR0913 - each is something that somebody answers for
    writer: Writer,
    record_id: str,
    *,
    recheck: Recheck,
    author: str,
    first: bool = False,
    waivers: tuple[Waiver, ...] = (),
    lane: Lane | None = None,
) -> Decision:
    """Make a record's candidate the baseline of its lane, if the policy accepts it.

    Args:
        writer: who writes the decision; its ledger holds the record.
        record_id: the record's id, or the beginning of it.
        recheck: compares and computes the stored evidence again.
        author: who answers for the decision.
        first: open the lane, without a claim of speed.
        waivers: requirements that somebody answers for.
        lane: with `first`, the lane to declare where it is not declared yet; without one, the
            record's plain latency lane.

    Raises:
        PromotionRefused: something is missing; the message lists every item.
        UsageError: no such record, or a lane that is not the record's.
    """
    ledger = writer.ledger
    with locked(ledger.root):  # two decisions at once would both see the lane as it is now
        entry = ledger.find(record_id)
        record = entry.body
        new = _lane_to_declare(writer, record, lane) if first else None
        policy = load_policy(CURRENT)
        judgement = judge(ledger, record, policy, recheck, first, waivers)
        if not judgement.accepted:
            raise PromotionRefused(entry.id, judgement)
        decision = Decision(
            created_at=utc_now(),
            kind="opening-baseline" if first else "promoted",
            lane=record.lane,
            record_id=entry.id,
            policy=policy.version,
            author=author,
            reason=_reason(record, first=first),
            waivers=waivers,
        )
        rows: list[Row] = [decision] if new is None else [new, decision]
        writer.append_many(rows)
    return decision


def reject(writer: Writer, record_id: str, *, author: str, reason: str) -> Decision:
    """Reject a record with a reason; one that stands in its lane gives it back to the one before.

    Raises:
        UsageError: no such record, or it was rejected before.
    """
    ledger = writer.ledger
    with locked(ledger.root):
        entry = ledger.find(record_id)
        for made in ledger.decisions():
            if made.body.record_id == entry.id and made.body.kind == "rejected":
                raise UsageError(
                    f"record {entry.id[:12]} was rejected on {made.created_at} already"
                )
        decision = Decision(
            created_at=utc_now(),
            kind="rejected",
            lane=entry.body.lane,
            record_id=entry.id,
            policy=CURRENT,
            author=author,
            reason=reason,
        )
        writer.append(decision)
    return decision


def _lane_to_declare(writer: Writer, record: Record, lane: Lane | None) -> Lane | None:
    """The lane's row where it is missing; UsageError where it would not be the record's lane."""
    if declarations(writer.ledger, record.lane):
        return None
    chosen = make_lane(record.candidate.device, record.workload) if lane is None else lane
    fits = (record.lane, record.workload, record.candidate.device)
    if (chosen.id, chosen.workload, chosen.device) != fits:
        raise UsageError(
            f"lane {chosen.id!r}: expected the record's lane {record.lane!r}, with its workload "
            "and device"
        )
    return chosen


def _reason(record: Record, *, first: bool) -> str:
    if first or record.measurement is None or record.baseline is None:
        return "opens the lane; no claim of speed"
    ratio = ratio_median(record.measurement.baseline_ns, record.measurement.candidate_ns)
    return f"{record.effect} than {record.baseline.name}: median ratio {ratio} of paired rounds"
