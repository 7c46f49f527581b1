"""The constants of the routers: which there are, what they may be, and what they ask of a layer."""

from dataclasses import dataclass
from typing import Final

from bitgate.kernels.arguments import shown
from bitgate.records.errors import UsageError

SELECTED: Final = "softmax-selected"
SCORES: Final = ("softmax", "sigmoid", "sqrt-softplus", SELECTED)
GROUP_RANKS: Final = ("none", "max", "top2")

# The scale is rounded to float32, and multiplies weights in it.
_LOWEST_SCALE, _HIGHEST_SCALE = 2.0**-126, 2.0**128 - 2.0**104


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRules:
    """The constants of moe_route, and with the defaults those of moe_route_hash, checked.

    Attributes:
        op: the operator, for messages.
        top_k: how many experts a token gets.
        renormalize: 1 divides the weights by their sum, 0 does not.
        scale: what multiplies the weights at the end.
        score: one of SCORES.
        groups: how many groups of equal size the experts are parted into.
        keep_groups: how many of them may be chosen from.
        group_rank: by what groups are ranked, one of GROUP_RANKS; `none` for one group alone.

    Raises:
        UsageError: a constant is none of these, or they contradict each other.
    """

    op: str
    top_k: int
    renormalize: int
    scale: float
    score: str
    groups: int = 1
    keep_groups: int = 1
    group_rank: str = "none"

    def __post_init__(self) -> None:
        for name in ("top_k", "groups", "keep_groups"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                self._refuse(f"{name} of at least 1, an int", value)
        for name, known in (("score", SCORES), ("group_rank", GROUP_RANKS)):
            value = getattr(self, name)
            if type(value) is not str or value not in known:
                self._refuse(f"{name} of {', '.join(known)}", value)
        if type(self.renormalize) is not int or self.renormalize not in (0, 1):
            self._refuse("renormalize of 0 or 1", self.renormalize)
        if type(self.scale) not in (int, float) or not (
            _LOWEST_SCALE <= self.scale <= _HIGHEST_SCALE
        ):
            self._refuse("a scale that is a positive, finite number in float32", self.scale)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.score == SELECTED and not self.renormalize:
            raise UsageError(
                f"{self.op}: expected renormalize of 1 for {SELECTED}, got 0: a softmax divides by "
                "its sum"
            )
        if self.keep_groups > self.groups:
            self._refuse(f"keep_groups of at most the {self.groups} groups", self.keep_groups)
        if (self.groups == 1) != (self.group_rank == "none"):
            raise UsageError(
                f"{self.op}: expected group_rank none for one group, and max or top2 for more, got "
                f"{self.group_rank} for {self.groups}; models without a correction bias rank by "
                "max, those with one by top2"
            )

    def check_experts(self, experts: int) -> None:
        """Raise UsageError unless a layer of so many experts can be routed by these rules."""
        if experts % self.groups:
            raise UsageError(
                f"{self.op}: expected groups that divide the {experts} experts, got {self.groups}"
            )
        size = experts // self.groups
        if self.group_rank == "top2" and size < 2:
            raise UsageError(
                f"{self.op}: expected at least 2 experts in a group to rank by top2, got {experts} "
                f"experts in {self.groups} groups"
            )
        if self.top_k > size * self.keep_groups:
            kept = "" if self.groups == 1 else f" of the {self.keep_groups} groups that are kept"
            raise UsageError(
                f"{self.op}: expected top_k of at most the {size * self.keep_groups} experts{kept},"
                f" got {shown(self.top_k)}; a token cannot have more distinct experts than there "
                "are"
            )

    def _refuse(self, expected: str, value: object) -> None:
        raise UsageError(f"{self.op}: expected {expected}, got {shown(value)}")
