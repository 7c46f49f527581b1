"""Does a stored record have all that the policy asks for? Every missing item is listed."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from bitgate.records.clock import utc_now
from bitgate.records.codec import content_id
from bitgate.records.identity import candidate_digest
from bitgate.records.lanes import declarations, saving_shortfall, standing
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.policy.load import Policy
from bitgate.records.proof import Bound, GateResult, Pairs
from bitgate.records.rows import Effect, Lane, Measurement, Record, Waiver


class Recheck(Protocol):
    """What judging needs and records cannot compute; parity and bench supply it."""

    def evidence(self, record: Record, ledger: Ledger) -> tuple[str, ...]:
        """Complaints about the stored evidence: digests compared again, bounds computed again."""

    def effect(self, record: Record) -> Effect:
        """The effect computed again from the raw samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The policy's answer. Each missing item begins with the requirement's name and a colon."""

    accepted: bool
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """All that one judgement looks at."""

    ledger: Ledger
    entry: Entry[Record]
    policy: Policy
    recheck: Recheck
    lane: Entry[Lane] | None
    baseline: Entry[Record] | None

    @property
    def record(self) -> Record:
        return self.entry.body


def judge(
    ledger: Ledger,
    record: Record,
    policy: Policy,
    recheck: Recheck,
    first: bool,  # noqa: FBT001 - opening a lane, or a claim in an open one
    waivers: tuple[Waiver, ...] = (),
) -> Judgement:
    """Judge a record that lies in the ledger.

    Args:
        ledger: where the record, its lane and its evidence lie.
        record: the record.
        policy: what to ask for.
        recheck: compares and computes the stored evidence again.
        first: the record shall open its lane, which makes no claim of speed.
        waivers: what somebody answers for.

    Raises:
        LedgerBroken: the ledger cannot even be read.
    """
    broken = [f"ledger: {found.kind}: {found.message}" for found in ledger.verify().breaks]
    if broken:
        return Judgement(accepted=False, missing=tuple(broken))
    identity = content_id(record)
    entry = next((entry for entry in ledger.records() if entry.id == identity), None)
    if entry is None:
        return Judgement(accepted=False, missing=("record: it is not in this ledger",))
    declared = declarations(ledger, record.lane)
    case = _Case(
        ledger=ledger,
        entry=entry,
        policy=policy,
        recheck=recheck,
        lane=declared[0] if declared else None,
        baseline=standing(ledger, record.lane),
    )
    missing = [*_record(case), *_lane(case, declared), *_gates(case), *_bound(case)]
    missing += [f"evidence: {complaint}" for complaint in recheck.evidence(record, ledger)]
    missing += _opening(case) if first else [*_declared_before(case), *_claim(case)]
    missing = _waive(missing, waivers, policy)
    return Judgement(accepted=not missing, missing=tuple(missing))


# --- what every promotion needs ------------------------------------------------------------------


def _record(case: _Case) -> Iterator[str]:
    record = case.record
    if record.outcome != "passed":
        yield f"outcome: expected passed, the record says {record.outcome}: {record.reason}"
    for what, candidate in (("candidate", record.candidate), ("baseline", record.baseline)):
        if candidate is not None and candidate_digest(candidate) != candidate.digest:
            yield f"identity: the digest of the {what} {candidate.name} is not that of its fields"
    for entry in case.ledger.decisions():
        if entry.body.record_id == case.entry.id:
            yield f"decision: the record was {entry.body.kind} on {entry.created_at} already"


def _lane(case: _Case, declared: list[Entry[Lane]]) -> Iterator[str]:
    if len({entry.body for entry in declared}) > 1:
        yield f"lane: {case.record.lane} is declared in {len(declared)} different ways"
    if case.lane is None:
        return
    lane, record = case.lane.body, case.record
    counted = (lane.metric, lane.unit, lane.statistic, lane.higher_is_better)
    if counted != ("latency", "ns", "median", False):
        yield (
            f"lane: it counts {lane.statistic} {lane.metric} in {lane.unit}; a record's samples "
            "are latencies in ns, where lower is better"
        )
    if lane.workload != record.workload:
        yield f"lane: it is for {lane.workload.key}, the record for {record.workload.key}"
    for what, device in (
        ("candidate", record.candidate.device),
        ("environment", record.environment.device),
    ):
        if device != lane.device:
            yield f"lane: it is for the device {lane.device}, the {what} is on {device}"


def _gates(case: _Case) -> Iterator[str]:
    record, policy = case.record, case.policy
    if not record.verdict.passed:
        yield f"verdict: expected a passing one, got {record.verdict.kind}"
    required = policy.required[record.candidate.tier]
    for gate in required:
        if not record.verdict.gate_passed(gate):
            yield f"gate {gate}: required, and {_outcome(record, gate)}"
    tolerated = policy.tolerated_not_run.get(record.candidate.device, ())
    for result in record.verdict.results:
        if result.gate not in required and not _tolerable(result, tolerated):
            yield f"gate {result.gate}: {result.outcome}: {result.reason}"


def _tolerable(result: GateResult, not_run: tuple[str, ...]) -> bool:
    return result.outcome == "pass" or (result.outcome == "not-run" and result.gate in not_run)


def _outcome(record: Record, gate: str) -> str:
    for result in record.verdict.results:
        if result.gate == gate:
            return f"{result.outcome}: {result.reason}"
    return "absent from the verdict"


def _bound(case: _Case) -> Iterator[str]:
    bound, rule = case.record.verdict.bound, case.policy.bound
    if bound is None:
        yield "bound: the verdict proves none"
        return
    wanted = f"at most {rule.max_upper} at {rule.confidence}"
    if Decimal(bound.confidence) < Decimal(rule.confidence):
        yield f"bound: expected {wanted}, its confidence is {bound.confidence}"
    elif Decimal(bound.upper) > Decimal(rule.max_upper):
        yield f"bound: expected {wanted}, got {bound.upper} after {bound.trials} trials"
    passed = (found for found in case.record.verdict.results if found.outcome == "pass")
    if not any(bound in result.bounds for result in passed):
        yield f"verdict: no passed gate proved its bound of {bound.upper} per {bound.unit}"
    if not _proven(bound):
        yield (
            f"verdict: {bound.trials} trials with {bound.failures} failures do not prove "
            f"{bound.upper} at {bound.confidence}"
        )


def _proven(bound: Bound) -> bool:
    """Whether n clean trials prove the bound: (1 - upper)^n <= 1 - confidence."""
    slip = (1 - Decimal(bound.upper)) ** bound.trials
    return bound.failures == 0 and slip <= 1 - Decimal(bound.confidence)


# --- opening a lane, or a claim in an open one ---------------------------------------------------


def _opening(case: _Case) -> list[str]:
    if case.baseline is None:
        return []
    name = case.baseline.body.candidate.name
    return [f"first: the lane has the baseline {name} ({case.baseline.id[:12]}) already"]


def _declared_before(case: _Case) -> Iterator[str]:
    """A lane that is declared after the run would be chosen by its result."""
    lane, entry = case.lane, case.entry
    if lane is None:
        yield f"lane: {case.record.lane} was never declared"
        return
    measured_at = _full(entry.body.created_at)
    if lane.writer == entry.writer:
        before = lane.seq < entry.seq and lane.created_at <= measured_at
    else:
        before = lane.created_at < min(entry.created_at, measured_at)
    if not before:
        yield f"lane: it was declared on {lane.created_at}, after the record of {measured_at}"


def _claim(case: _Case) -> Iterator[str]:
    record, standing_entry = case.record, case.baseline
    if standing_entry is None:
        yield "baseline: the lane has none yet; `records promote --first` opens it"
    elif record.baseline is None or record.measurement is None:
        yield "measurement: the record was not timed against a baseline"
    else:
        yield from _against(record, record.baseline.digest, standing_entry)
        yield from _effect(case, record.measurement)


def _against(record: Record, baseline_digest: str, held: Entry[Record]) -> Iterator[str]:
    """The claim is against what stands in the lane now, on a node that can be compared."""
    now = held.body.candidate
    if baseline_digest != now.digest:
        yield (
            f"baseline: timed against {baseline_digest[:12]}, the lane's baseline now is "
            f'{now.name} {now.digest[:12]}; run again with baseline = "promoted"'
        )
    if record.candidate.digest == now.digest:
        yield "candidate: it is the lane's baseline already"
    if record.candidate.contract != now.contract:
        yield f"contract: {record.candidate.contract} against {now.contract}; no claim spans two"
    differing = difference(held.body.environment.comparability, record.environment.comparability)
    if differing:
        yield f"comparability: the lane's baseline was recorded with other {'; '.join(differing)}"


def _effect(case: _Case, measurement: Measurement) -> Iterator[str]:
    stored, again = case.record.effect, case.recheck.effect(case.record)
    if stored != "FASTER":
        yield f"effect: expected FASTER, the record says {stored}"
    if again != stored:
        yield f"effect: computed again from the raw samples it is {again}, the record says {stored}"
    rule, plan = case.policy.effect, measurement.plan
    if Decimal(plan.margin) < Decimal(rule.margin):
        yield f"margin: expected a declared margin of at least {rule.margin}, got {plan.margin}"
    if Decimal(plan.alpha) > Decimal(rule.alpha):
        yield f"alpha: expected at most {rule.alpha}, the plan declared {plan.alpha}"
    shortfall = saving_shortfall(case.lane.body, measurement) if case.lane else None
    if shortfall:
        yield f"saving: {shortfall}"


def difference(old: Pairs, new: Pairs) -> list[str]:
    """The names whose values differ, with both values."""
    before, after = dict(old), dict(new)
    return [
        f"{name} ({before.get(name, 'absent')} -> {after.get(name, 'absent')})"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]


# --- waivers -------------------------------------------------------------------------------------


def _waive(missing: list[str], waivers: tuple[Waiver, ...], policy: Policy) -> list[str]:
    """The missing items that no valid waiver covers, and what is wrong with the waivers."""
    left, now = list(missing), utc_now()
    for waiver in waivers:
        name = waiver.requirement
        covered = [item for item in left if item.partition(":")[0] == name]
        if name not in policy.waivers.allowed:
            allowed = ", ".join(policy.waivers.allowed)
            left.append(f"waiver: {name!r} cannot be waived; only {allowed} can")
        elif _full(waiver.expires) <= now:
            left.append(f"waiver: the one for {name!r} by {waiver.author} expired {waiver.expires}")
        elif not covered:
            left.append(f"waiver: {name!r} is not missing; leave the waiver out")
        else:
            left = [item for item in left if item not in covered]
    return left


def _full(time: str) -> str:
    """A UTC time with microseconds, so that times compare as texts."""
    seconds, _, fraction = time.removesuffix("Z").partition(".")
    return f"{seconds}.{fraction:0<6}Z"
