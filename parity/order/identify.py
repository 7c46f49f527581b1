"""Which order of the catalogue gives the observed bits: one, none, or several that look alike.

Where boundaries between the stages were observed, every stage is identified alone, from the values
that were observed before it; otherwise whole orders are. That an order reproduces an output shows
that this order can have made it. How much that says depends on the input: bfloat16 outputs hide
most orders, so `distinct` says how many different results the orders that were tried gave.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.bits import compare_tensor
from bitgate.parity.order.base import Choice, Dimension, Orders, State, Walk
from bitgate.records.errors import UsageError
from bitgate.records.types import Mismatch

Skip = frozenset[tuple[str, str]]
Verdict = Literal["one", "several", "none", "nothing"]
NEAREST = 3
# Multiplications of one walk: up to a minute on a small machine.
WORK = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an operator: what it was given, and what of its results was observed."""

    label: str
    inputs: Tensors
    constants: Constants
    observed: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A result without the bits: the first tensor that differs, and one of the orders that gave it.

    `orders` is how many gave it. `detail` says so where it is of another dtype or shape.
    """

    choice: Choice
    orders: int
    tensor: str
    differing: int
    total: int
    max_ulp: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found for one stage, or for a whole operator, over all calls.

    `compared` counts elements over the calls. `tried` are the orders that were replayed on the
    first call, and `distinct` their different results there.
    `reproducing` have the bits of every call; `nearest` are those next to the first call's, or to
    the first call's that none of the orders before it reproduces. `left_out` were not tried.
    """

    op: str
    stage: str
    calls: int
    compared: int
    tried: int
    distinct: int
    reproducing: tuple[Choice, ...]
    nearest: tuple[Near, ...]
    named: tuple[str, ...]
    label: str
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Without an element to compare there is no finding, whatever reproduces nothing."""
        if not self.compared:
            return "nothing"
        if not self.reproducing:
            return "none"
        return "one" if len(self.reproducing) == 1 else "several"

    @property
    def possible(self) -> dict[str, tuple[str, ...]]:
        """By dimension, the options that occur in a reproducing order."""
        found: dict[str, dict[str, None]] = {}
        for choice in self.reproducing:
            for dimension, option in choice:
                found.setdefault(dimension, {})[option] = None
        return {dimension: tuple(options) for dimension, options in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Dimensions between two observed boundaries, and what was observed before and at their end."""

    dimensions: tuple[Dimension, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.before[-1] if self.before else 'inputs'} -> {', '.join(self.after)}"


class _Trial:
    """One walk over one stage of one call."""

    def __init__(self, observed: Tensors, only: frozenset[Choice] | None, skip: Skip) -> None:
        self.observed = observed
        self._only = only
        self._skip = skip
        self._walk = Walk(self)
        self.misses: dict[str, Near] = {}
        self.counts: dict[str, int] = {}
        self.kept: tuple[Choice, ...] = ()

    def run(self, state: State, dimensions: tuple[Dimension, ...]) -> None:
        """Walk all of them; `kept` are then those that reproduce what was observed."""
        self.kept = tuple(after.choice for after in self._walk.over(state, dimensions))

    def wanted(self, choice: Choice) -> bool:
        """Whether to try it."""
        return choice[-1] not in self._skip and (self._only is None or choice in self._only)

    def keep(self, state: State, dimension: Dimension) -> bool:
        """Whether to go on from here: not where an observed tensor differs already."""
        for name in dimension.gives:
            if name in self.observed:
                expected, actual = self.observed[name], state[name]
                result = f"{name}/{self._walk.fingerprint(actual)}"
                if result not in self.misses:
                    mismatch = compare_tensor(name, expected, actual)
                    if mismatch is None:
                        continue
                    self.misses[result] = _near(state.choice, expected, mismatch)
                    self.counts[result] = 0
                self.counts[result] += 1
                return False
        return True

    def nearest(self) -> tuple[Near, ...]:
        """Of the results that differ, those that agree furthest and then in most elements."""
        places = list(self.observed)
        ranked = sorted(
            self.misses.items(),
            key=lambda item: (-places.index(item[1].tensor), item[1].differing),
        )
        return tuple(replace(near, orders=self.counts[key]) for key, near in ranked[:NEAREST])


def _near(choice: Choice, expected: torch.Tensor, mismatch: Mismatch) -> Near:
    bits = mismatch.kind == "bits"
    return Near(
        choice=choice,
        orders=0,
        tensor=mismatch.tensor,
        differing=mismatch.differing if bits else expected.numel(),
        total=expected.numel(),
        max_ulp=mismatch.max_ulp,
        detail="" if bits else mismatch.detail,
    )


def identify(
    orders: Orders, calls: Sequence[Call], work: int = WORK, tokens: int | None = None
) -> tuple[Finding, ...]:
    """Replay the catalogue's orders over calls of an operator, stage by stage.

    Args:
        orders: the operator's catalogue.
        calls: with the same tensors observed; at least one. All orders are replayed on the first,
            on the others those that are left: let the first be the one that tells most apart.
        work: calls with more multiplications than that are cut to their first tokens.
        tokens: cut them to so many.

    Returns:
        One finding for each stage that ends in an observed tensor.

    Raises:
        UsageError: no call, nothing observed that an order gives, calls that observe different
            tensors, or one that is too large and cannot be cut.
    """
    _check(orders, calls)
    cut = [_cut(orders, call, work, tokens) for call in calls]
    shortened = any(after is not before for after, before in zip(cut, calls, strict=True))
    skip = frozenset(
        (dimension.name, option.name)
        for dimension in orders.dimensions
        for option in dimension.options
        if shortened and option.needs_all_rows
    )
    left_out = tuple(
        f"{dimension} {option}: its bits depend on all rows of the call, and calls were cut"
        for dimension, option in sorted(skip)
    )
    return tuple(
        replace(_stage(orders, stage, cut, skip), left_out=left_out)
        for stage in _stages(orders, cut[0].observed)
    )


def _nothing(orders: Orders, stage: _Stage) -> Finding:
    return Finding(
        op=orders.op,
        stage=stage.name,
        calls=0,
        compared=0,
        tried=0,
        distinct=0,
        reproducing=(),
        nearest=(),
        named=(),
        label="none",
    )


def _check(orders: Orders, calls: Sequence[Call]) -> None:
    names = {tuple(sorted(call.observed)) for call in calls}
    if len(names) != 1:
        raise UsageError(
            f"{orders.op}: expected calls that observed the same tensors, got {sorted(names)}"
        )
    if not set(orders.gives) & set(next(iter(names))):
        raise UsageError(
            f"{orders.op}: expected at least one observed tensor of {', '.join(orders.gives)}, "
            f"got {', '.join(next(iter(names))) or 'none'}"
        )


def _cut(orders: Orders, call: Call, work: int, tokens: int | None) -> Call:
    """The call, or its first tokens."""
    needed = orders.work(call.inputs)
    if orders.shorten is None:
        if needed > work or tokens is not None:
            raise UsageError(
                f"{orders.op}: calls of this operator cannot be cut to fewer tokens, and this one "
                f"takes {needed} multiplications of at most {work}; give a smaller one"
            )
        return call
    has = orders.tokens(call.inputs)
    allowed = has if needed <= work else max(1, has * work // needed)
    wanted = min(has, allowed if tokens is None else tokens)
    if wanted == has:
        return call
    inputs, observed = orders.shorten(call.inputs, call.observed, wanted)
    return replace(
        call, inputs=inputs, observed=observed, label=f"{call.label}, {wanted} of {has} tokens"
    )


def _stages(orders: Orders, observed: Tensors) -> Iterator[_Stage]:
    """The dimensions up to the last observed tensor, cut at the observed boundaries."""
    told = [n for n, one in enumerate(orders.dimensions) if set(one.gives) & set(observed)]
    before: tuple[str, ...] = ()
    pending: list[Dimension] = []
    after: list[str] = []
    for number, dimension in enumerate(orders.dimensions[: told[-1] + 1]):
        pending.append(dimension)
        after += [name for name in dimension.gives if name in observed]
        boundary = tuple(name for name in after if name in orders.boundaries)
        if boundary or number == told[-1]:
            yield _Stage(dimensions=tuple(pending), before=before, after=tuple(after))
            before, pending, after = (*before, *boundary), [], []


def _stage(orders: Orders, stage: _Stage, calls: Sequence[Call], skip: Skip) -> Finding:
    """Every order on the first call; on the others those that are left."""
    trials: list[_Trial] = []
    found: tuple[Choice, ...] = ()
    # A call without a token has no order.
    calls = [call for call in calls if orders.tokens(call.inputs)]
    if not calls:
        return _nothing(orders, stage)
    for call in calls:
        left = {choice[: n + 1] for choice in found for n in range(len(choice))}
        only = frozenset(left) if trials else None
        trial = _Trial({name: call.observed[name] for name in stage.after}, only, skip)
        start = orders.prepare(call.inputs, call.constants)
        start |= {name: call.observed[name] for name in stage.before}
        trial.run(State(start, call.constants), stage.dimensions)
        trials.append(trial)
        found = trial.kept
        if not found:
            break
    first, last = trials[0], trials[-1]
    return Finding(
        op=orders.op,
        stage=stage.name,
        calls=len(trials),
        compared=sum(one.numel() for trial in trials for one in trial.observed.values()),
        tried=sum(first.counts.values()) + len(first.kept),
        distinct=len(first.misses) + bool(first.kept),
        reproducing=found,
        nearest=last.nearest(),
        named=tuple(
            name for name, whole in orders.named if any(set(one) <= set(whole) for one in found)
        ),
        label=calls[len(trials) - 1].label,
    )
