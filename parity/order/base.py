"""What an order is made of, and how all of a catalogue's are walked.

An operator is a sequence of dimensions, such as the sum of the first matmul or the place of the
routing weight, and a dimension a list of named options. An order is one option for each dimension.
Orders that begin alike share that beginning, and what they compute alike later on.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.bits import raw_bytes
from bitgate.records.errors import UsageError

Choice = tuple[tuple[str, str], ...]
"""(dimension, option), in the order of the dimensions."""


@dataclass(frozen=True, slots=True)
class State:
    """What an option may look at: the tensors so far, the constants, what was chosen before."""

    tensors: Mapping[str, torch.Tensor]
    constants: Constants
    choice: Choice = ()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def constant(self, name: str, default: float | None = None) -> float:
        """A number among the constants. Raises KeyError where it is missing without a default."""
        return float(self.constants[name] if default is None else self.constants.get(name, default))

    def chosen(self, dimension: str) -> str | None:
        """The option that was chosen for a dimension, or None where it was not walked."""
        return dict(self.choice).get(dimension)


def always(_: State) -> bool:
    """An option for every state."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to go.

    `run` computes from tensors and constants alone, so that it is called once for equal tensors;
    whether the option makes sense after what was chosen is for `applies` to say.
    `needs_all_rows`: its bits depend on how many rows the call has.
    """

    name: str
    text: str
    run: Callable[[State], Tensors]
    applies: Callable[[State], bool] = always
    needs_all_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One decision of an order.

    `reads` names the tensors that its options look at, of those that others give; `gives` the
    tensors that are complete with it and comparable.
    """

    name: str
    asks: str
    options: tuple[Option, ...]
    reads: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All orders of one operator.

    `prepare` derives what the options need from the operator's inputs and constants. `boundaries`
    are tensors that separate what was computed before from what comes after: where one of them was
    observed, the dimensions after it start from there. `named` are orders that have a name
    elsewhere, such as a contract. `work` estimates the multiplications of one walk, `tokens` says
    how many there are, and `shorten` cuts inputs and observed tensors to the first of them; None: a
    call cannot be cut.
    """

    op: str
    dimensions: tuple[Dimension, ...]
    prepare: Callable[[Tensors, Constants], Tensors]
    named: tuple[tuple[str, Choice], ...] = ()
    boundaries: frozenset[str] = field(default_factory=frozenset)
    work: Callable[[Tensors], int]
    tokens: Callable[[Tensors], int]
    shorten: Callable[[Tensors, Tensors, int], tuple[Tensors, Tensors]] | None = None

    @property
    def gives(self) -> tuple[str, ...]:
        """Every tensor that can be compared, in the order of computation."""
        return tuple(name for one in self.dimensions for name in one.gives)


def replay(orders: Orders, choice: Choice, inputs: Tensors, constants: Constants) -> Tensors:
    """What one order computes: every tensor that it gives, by name.

    Raises:
        UsageError: a dimension lacks its option, or one does not apply to what was chosen before.
    """
    wanted = dict(choice)
    state = State(orders.prepare(inputs, constants), constants)
    for dimension in orders.dimensions:
        options = {option.name: option for option in dimension.options}
        option = options.get(wanted.get(dimension.name, ""))
        made = (*state.choice, (dimension.name, wanted.get(dimension.name, "")))
        before = State(state.tensors, constants, made)
        if option is None or not option.applies(before):
            raise UsageError(
                f"{orders.op}: expected an option of {dimension.name!r} that fits the others, got "
                f"{wanted.get(dimension.name)!r}; there are {', '.join(options)}"
            )
        state = State({**state.tensors, **option.run(before)}, constants, made)
    return {name: state[name] for name in orders.gives}


class Visitor(Protocol):
    """What a walk asks on its way."""

    def wanted(self, choice: Choice) -> bool:
        """Whether to compute the last option of a choice at all."""

    def keep(self, state: State, dimension: Dimension) -> bool:
        """Whether to go on from what the option of this dimension gave."""


class Walk:
    """A walk over the orders of one call, which computes nothing twice.

    Most orders agree in most of what they compute: bfloat16 forgets in which order it was summed.
    """

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._done: dict[tuple[str, ...], Tensors] = {}
        self._prints: dict[int, tuple[torch.Tensor, str]] = {}

    def over(self, state: State, dimensions: tuple[Dimension, ...]) -> Iterator[State]:
        """The state after every order over the dimensions that the visitor keeps, depth first."""
        if not dimensions:
            yield state
            return
        first, *rest = dimensions
        for option in first.options:
            choice = (*state.choice, (first.name, option.name))
            # An option sees itself as chosen, so that it can refuse for what others were.
            before = State(state.tensors, state.constants, choice)
            if not self._visitor.wanted(choice) or not option.applies(before):
                continue
            computed = self._compute(before, first, option)
            after = State({**state.tensors, **computed}, state.constants, choice)
            if self._visitor.keep(after, first):
                yield from self.over(after, tuple(rest))

    def _compute(self, state: State, dimension: Dimension, option: Option) -> Tensors:
        read = (self.fingerprint(state[name]) for name in dimension.reads if name in state.tensors)
        key = (dimension.name, option.name, *read)
        if key not in self._done:
            self._done[key] = option.run(state)
        return self._done[key]

    def fingerprint(self, tensor: torch.Tensor) -> str:
        """Equal for tensors of equal dtype, shape and bits."""
        # The tensor is kept, so that nobody else can have its number.
        if id(tensor) not in self._prints:
            content = hashlib.sha256(raw_bytes(tensor).tobytes()).hexdigest()
            self._prints[id(tensor)] = (tensor, f"{tensor.dtype}{list(tensor.shape)}{content}")
        return self._prints[id(tensor)][1]
