"""Every noun of the project. Read this page first; each name's own docstring says the rest.

The values live in two files by what they speak of, and are imported from here. They are frozen,
use the standard library only, and a value that exists is valid: constructors refuse what the words
forbid (a pass without evidence, a time without a passed verdict). ``records.codec`` turns them into
canonical JSON and back. Numbers that are hashed are integers or decimal strings, never binary
floats. Units are part of the names: ``_ns``, ``_bytes``, ``_tokens``.

    model --capture--> Boundary, TensorMeta
    expected, actual --compare--> Comparison with Mismatches
    Comparisons --gate--> GateResult with Bounds and Evidence --> Verdict
    passed Verdict + Plan --> Measurement
    Candidate, Workload, Environment, Harness, Verdict, Measurement --> Record in a Lane
    Record --policy--> Decision (with Waivers)
    promoted Records --> Timing --simulator--> Simulation
"""

from bitgate.records.base import InvariantError, Value
from bitgate.records.proof import (
    PASSING_VERDICTS,
    Bound,
    Boundary,
    BoundaryClass,
    Comparison,
    Evidence,
    GateOutcome,
    GateResult,
    Mismatch,
    MismatchKind,
    Pairs,
    Phase,
    Role,
    TensorMeta,
    Tier,
    Verdict,
    VerdictKind,
    Workload,
)
from bitgate.records.rows import (
    PRICE_SOURCES,
    Candidate,
    Decision,
    DecisionKind,
    Discard,
    Effect,
    Environment,
    Harness,
    Lane,
    Measurement,
    Outcome,
    Plan,
    PriceSource,
    Record,
    Regime,
    Simulation,
    Timing,
    Waiver,
)

__all__ = [
    "Workload",
    "Boundary",
    "TensorMeta",
    "Mismatch",
    "Comparison",
    "Bound",
    "Evidence",
    "GateResult",
    "Verdict",
    "Environment",
    "Harness",
    "Candidate",
    "Plan",
    "Discard",
    "Measurement",
    "Lane",
    "Record",
    "Waiver",
    "Decision",
    "Timing",
    "Simulation",
    "Value",
    "InvariantError",
    "PASSING_VERDICTS",
    "PRICE_SOURCES",
    "PriceSource",
    "Pairs",
    "Role",
    "Tier",
    "Phase",
    "MismatchKind",
    "BoundaryClass",
    "GateOutcome",
    "VerdictKind",
    "Effect",
    "Regime",
    "Outcome",
    "DecisionKind",
]
