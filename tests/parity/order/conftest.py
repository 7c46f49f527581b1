"""Small catalogues, and calls whose results a known order made."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from bitgate.parity.order.base import Choice, Dimension, Orders, State, Walk
from bitgate.parity.order.base import replay as replay_order
from bitgate.parity.order.identify import Call
from bitgate.parity.order.probes import Probe, probes

# Decisions that fit together only: all their options are kept together.
TIED = (
    {"first matmul", "second matmul"},
    {"early weight", "weight", "combine"},
    {"norm", "projection"},
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Everything:
    """A visitor that keeps all."""

    def wanted(self, choice: Choice) -> bool:
        return True

    def keep(self, state: State, dimension: Dimension) -> bool:
        return True


class Tools:
    """What the tests of orders share; asked for as a fixture, since tests import no tests."""

    @staticmethod
    def seen(orders: Orders) -> list[str]:
        """The tensors that a caller sees, without the boundaries inside."""
        return sorted(set(orders.gives) - orders.boundaries)

    @classmethod
    def calls(cls, orders: Orders, choice: Choice, inputs: tuple[Probe, ...]) -> list[Call]:
        """Calls with the results that one order gives them."""
        found = []
        for probe in inputs:
            results = replay_order(orders, choice, probe.inputs, probe.constants)
            observed = {name: results[name] for name in cls.seen(orders)}
            found.append(
                Call(
                    label=probe.label,
                    inputs=probe.inputs,
                    constants=probe.constants,
                    observed=observed,
                )
            )
        return found

    @staticmethod
    def around(orders: Orders, dimension: str) -> Orders:
        """All options of one decision; of the others those that the first two named orders have."""
        kept = next((tied for tied in TIED if dimension in tied), {dimension})
        named = {pair for _, choice in orders.named[:2] for pair in choice}
        return replace(
            orders,
            dimensions=tuple(
                one
                if one.name in kept
                else replace(
                    one, options=tuple(o for o in one.options if (one.name, o.name) in named)
                )
                for one in orders.dimensions
            ),
        )

    @classmethod
    def groups(cls, orders: Orders, inputs: tuple[Probe, ...]) -> list[set[Choice]]:
        """Every order, with those that give the same on every probe."""
        results: dict[Choice, list[str]] = {}
        for probe in inputs:
            walk = Walk(Everything())
            start = State(orders.prepare(probe.inputs, probe.constants), probe.constants)
            for state in walk.over(start, orders.dimensions):
                prints = [walk.fingerprint(state[name]) for name in cls.seen(orders)]
                results.setdefault(state.choice, []).extend(prints)
        groups: dict[tuple[str, ...], set[Choice]] = {}
        for choice, prints in results.items():
            groups.setdefault(tuple(prints), set()).add(choice)
        return list(groups.values())


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


@pytest.fixture(scope="session")
def inputs() -> Callable[[str], tuple[Probe, ...]]:
    """The probes of an operator, made once; those of the experts without the large one."""
    known: dict[str, tuple[Probe, ...]] = {}

    def of(op: str) -> tuple[Probe, ...]:
        if op not in known:
            known[op] = tuple(
                one for one in probes(op) if (op, one.label) != ("moe_experts", "silu")
            )
        return known[op]

    return of
