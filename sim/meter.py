"""The price of a step, and what the simulated time was spent on.

A step's price is the sum of its calls' prices. Calls depend on the tokens, the rows of the head,
each prefill chunk, or the decodes with the tokens that they attend to. Each of these is priced
once and remembered, so that a step costs a few look-ups however many layers it has.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bitgate.records.errors import BitgateError
from bitgate.records.types import PRICE_SOURCES
from bitgate.sim.arch import Per, Term
from bitgate.sim.prices import Price, PriceBook, Quote
from bitgate.sim.step import StepShape

OVERHEAD = "step_overhead"
# Remembered prices of one kind, above which they are written into the books and forgotten.
_REMEMBERED = 1 << 14


@dataclass(slots=True)
class Spent:
    """What one operator took: calls, nanoseconds by how they were priced, and the sources."""

    calls: int = 0
    ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRICE_SOURCES, 0))
    sources: set[str] = field(default_factory=set)

    @property
    def total_ns(self) -> int:
        """All of its nanoseconds."""
        return sum(self.ns.values())

    def add(self, calls: int, price: Price) -> None:
        """So many calls at one price."""
        self.calls += calls
        self.ns[price.how] += calls * price.ns
        self.sources.update(price.sources)


class Meter:
    """Prices the steps of one engine, each as it runs, and keeps the books."""

    def __init__(self, terms: Iterable[Term], book: PriceBook) -> None:
        found = tuple(terms)
        book.check(found)
        self._book = book
        self._spent: dict[str, Spent] = {term.op: Spent() for term in found}
        self._tokens, self._logits, self._chunks = (
            _Remembered([term for term in found if term.per == per], book, self._spent)
            for per in _SIMPLE
        )
        # One attention for all layers: its calls are alike, so they are one term.
        (self._attention,) = (term for term in found if term.per == "decodes")
        self._decoding: dict[int, _Decoding] = {}
        self._mixed_steps = 0

    def __call__(self, shape: StepShape) -> int:
        """Nanoseconds that a step of this shape takes, without the host's.

        Raises:
            MissingPrice: a call of the step has no price.
        """
        prefills, decodes, kv_tokens, logits = shape
        if not decodes:
            return self._rest(prefills, 0, logits)
        # Most steps only decode, and end here: written out, for calls would double the time.
        found = self._decoding.get(decodes) or self._start(decodes)
        low, high, rise, base, over, count = found.line
        if not low <= kv_tokens <= high:
            _, _, rise, base, over, count = found.move(kv_tokens)
        ns, rest = divmod(rise * kv_tokens + base, over)
        rest *= 2
        if rest > over or (rest == over and ns % 2):
            ns += 1
        ns *= count
        found.uses += 1
        found.ns += ns
        if prefills or logits != decodes:
            return ns + self._rest(prefills, decodes, logits)
        found.plain += 1
        return ns + found.rest_ns

    def _rest(self, prefills: tuple[tuple[int, int], ...], decodes: int, logits: int) -> int:
        """All but the decodes' attention."""
        self._mixed_steps += 1
        tokens = decodes + sum(new for new, _ in prefills)
        ns = self._tokens.use(tokens, 1) + self._logits.use(logits, 1)
        for chunk in prefills:
            ns += self._chunks.use(chunk, 1)
        return ns

    def _start(self, decodes: int) -> "_Decoding":
        rest_ns = self._tokens.use(decodes, 0) + self._logits.use(decodes, 0)
        term = self._attention
        made = _Decoding(term, decodes, rest_ns, self._book, self._spent[term.op])
        self._decoding[decodes] = made
        return made

    def close(self, busy_ns: int, overhead_ns: int) -> dict[str, Spent]:
        """What each operator took, the most expensive first; the host's time is one more.

        Args:
            busy_ns: what all steps took, by the engine's own account.
            overhead_ns: the host's time of each step; it is declared, so it counts as assumed.

        Raises:
            BitgateError: the prices do not add up to `busy_ns`.
        """
        steps = self._mixed_steps
        for decodes, found in self._decoding.items():
            steps += found.plain
            self._tokens.use(decodes, found.plain)
            self._logits.use(decodes, found.plain)
            found.write()
        for part in (self._tokens, self._logits, self._chunks):
            part.write()
        spent = {op: one for op, one in self._spent.items() if one.calls}
        if overhead_ns and steps:
            spent[OVERHEAD] = Spent()
            spent[OVERHEAD].add(steps, Price(overhead_ns, "assumed", ()))
        total_ns = sum(one.total_ns for one in spent.values())
        if total_ns != busy_ns:
            raise BitgateError(
                f"coverage: the prices of {steps} steps add up to {total_ns} ns, the engine "
                f"was busy for {busy_ns} ns; a step was priced twice, or without its meter"
            )
        return dict(sorted(spent.items(), key=lambda item: (-item[1].total_ns, item[0])))


_SIMPLE: tuple[Per, ...] = ("tokens", "logits", "prefill")


class _Remembered:
    """The calls that one kind of size decides: their price and uses by the size."""

    def __init__(self, terms: list[Term], book: PriceBook, spent: dict[str, Spent]) -> None:
        self._terms, self._book, self._spent = terms, book, spent
        self._known: dict[int | tuple[int, int], list[int]] = {}
        self._parts: dict[int | tuple[int, int], list[tuple[Term, Price]]] = {}

    def use(self, size: int | tuple[int, int], uses: int) -> int:
        """Count uses of a size; returns the price of one."""
        entry = self._known.get(size) or self._price(size)
        entry[1] += uses
        return entry[0]

    def _price(self, size: int | tuple[int, int]) -> list[int]:
        if len(self._known) == _REMEMBERED:
            self.write()
        sizes = (size,) if isinstance(size, int) else size
        terms = self._terms if sizes[0] else []  # nothing is called for no token
        parts = [(term, self._book.price(term.at(*sizes))) for term in terms]
        self._parts[size] = parts
        entry = self._known[size] = [sum(term.count * price.ns for term, price in parts), 0]
        return entry

    def write(self) -> None:
        """Enter the uses into the books, and forget the prices."""
        for size, (_, uses) in self._known.items():
            for term, price in self._parts[size]:
                self._spent[term.op].add(uses * term.count, price)
        self._known.clear()
        self._parts.clear()


class _Decoding:
    """The attention of one number of decodes, whatever they attend to, and its uses.

    The price is on the line of the last step as long as that holds, which is long: a step attends
    to as many tokens more as there are decodes. `line` is (low, high, rise, base, over, calls);
    `rest_ns` is what a step that only decodes takes besides, `plain` counts those.
    """

    __slots__ = (
        "_book",
        "_decodes",
        "_key",
        "_quote",
        "_spent",
        "line",
        "ns",
        "plain",
        "rest_ns",
        "uses",
    )

    def __init__(
        self, term: Term, decodes: int, rest_ns: int, book: PriceBook, spent: Spent
    ) -> None:
        self._key, self._decodes, self._book, self._spent = term.key, decodes, book, spent
        self._quote: Quote | None = None
        self.line = (0, -1, 0, 0, 1, term.count)
        self.rest_ns = rest_ns
        self.plain = self.uses = self.ns = 0

    def move(self, kv_tokens: int) -> tuple[int, int, int, int, int, int]:
        """Go to the line of another number of attended tokens."""
        self.write()
        quote = self._quote = self._book.quote(self._key, (self._decodes, kv_tokens))
        self.line = (quote.low, quote.high, quote.rise, quote.base, quote.over, self.line[-1])
        return self.line

    def write(self) -> None:
        """Enter the uses of this line into the books."""
        if self._quote is not None:
            self._spent.calls += self.uses * self.line[-1]
            self._spent.ns[self._quote.how] += self.ns
            self._spent.sources.update(self._quote.sources)
            self.uses = self.ns = 0
