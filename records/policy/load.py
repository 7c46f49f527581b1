"""The policy files that come with the package, as values."""

import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from bitgate.records.base import Value, require, require_decimal
from bitgate.records.codec import decode
from bitgate.records.errors import UsageError

CURRENT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRule(Value):
    """The weakest bound that a verdict may prove."""

    confidence: str
    max_upper: str

    def __post_init__(self) -> None:
        require_decimal(self.confidence, "policy: bound.confidence")
        require_decimal(self.max_upper, "policy: bound.max_upper")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRule(Value):
    """What a timing run must have declared."""

    margin: str
    alpha: str

    def __post_init__(self) -> None:
        require_decimal(self.margin, "policy: effect.margin")
        require_decimal(self.alpha, "policy: effect.alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiverRule(Value):
    """The requirements that a waiver may answer for."""

    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Value):
    """One version of the policy. `required` is by tier, `tolerated_not_run` by device."""

    version: int
    required: dict[str, tuple[str, ...]]
    tolerated_not_run: dict[str, tuple[str, ...]]
    bound: BoundRule
    effect: EffectRule
    waivers: WaiverRule

    def __post_init__(self) -> None:
        for tier in ("canonical", "native", "foreign"):
            require(bool(self.required.get(tier)), f"policy: no gate is required for tier {tier}")


def load_policy(version: int) -> Policy:
    """The policy of that version; UsageError lists the known ones."""
    folder = files("bitgate.records.policy")
    file = folder.joinpath(f"policy-{version}.toml")
    if not file.is_file():
        known = sorted(
            entry.name.removeprefix("policy-").removesuffix(".toml")
            for entry in folder.iterdir()
            if entry.name.endswith(".toml")
        )
        raise UsageError(f"no policy version {version}; known are {', '.join(known)}")
    return decode(Policy, json.dumps(tomllib.loads(file.read_text("utf-8"))).encode())
