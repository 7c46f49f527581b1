"""Promotion: a versioned policy judges stored evidence; there is no way around it.

A record becomes its lane's baseline only if all that the policy asks for is there. What needs
tensors or statistics is asked of a `Recheck`, which parity and bench supply.
"""

from bitgate.records.lanes import current_baseline, standing
from bitgate.records.policy.decide import PromotionRefused, promote, reject
from bitgate.records.policy.judge import Judgement, Recheck, judge
from bitgate.records.policy.load import CURRENT, Policy, load_policy

__all__ = [
    "CURRENT",
    "Policy",
    "load_policy",
    "Recheck",
    "Judgement",
    "judge",
    "PromotionRefused",
    "promote",
    "reject",
    "current_baseline",
    "standing",
]
