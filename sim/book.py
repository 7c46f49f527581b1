"""What a simulation writes down as it goes: a digest of everything, and results handed on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from bitgate.sim.run import Refusal, RequestResult
from bitgate.sim.step import StepShape

_BUFFERED = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who is told while a simulation runs.

    result: gets each request as it completes; the run then keeps none of them
    step: gets the start and the duration in ns, and the shape, of each step
    """

    result: Callable[[RequestResult], None] | None = None
    step: Callable[[int, int, StepShape], None] | None = None


class Book:
    """Keeps results and refusals, and digests every integer of them and of the steps.

    The digest is a SHA-256 over 64-bit little-endian words, for steps and requests apart: of a
    step (start ns, ns, decodes, decode KV tokens, prefills, then both numbers of each prefill), of
    a result its fields, of a refusal (id, arrival ns).
    """

    def __init__(self, watch: Watch) -> None:
        self.results: list[RequestResult] = []
        self.refusals: list[Refusal] = []
        self._watch = watch
        self._steps = _Digest()
        self._requests = _Digest()

    def step(self, start_ns: int, ns: int, shape: StepShape) -> None:
        """A step ran."""
        prefills, decodes, kv_tokens, _ = shape
        self._steps.add((start_ns, ns, decodes, kv_tokens, len(prefills)))
        for chunk in prefills:
            self._steps.add(chunk)
        if self._watch.step:
            self._watch.step(start_ns, ns, shape)

    def decodes(self, start_ns: int, spans_ns: list[int], shapes: list[StepShape]) -> None:
        """Steps without prefills ran, one after the other."""
        watch = self._watch.step
        words: list[int] = []
        for ns, shape in zip(spans_ns, shapes, strict=True):
            _, decodes, kv_tokens, _ = shape
            words += (start_ns, ns, decodes, kv_tokens, 0)
            if watch:
                watch(start_ns, ns, shape)
            start_ns += ns
        self._steps.add(words)

    def result(self, result: RequestResult) -> None:
        """A request completed."""
        self._requests.add(result)
        if self._watch.result:
            self._watch.result(result)
        else:
            self.results.append(result)

    def refuse(self, refusal: Refusal) -> None:
        """A request was turned away."""
        self._requests.add((refusal.id, refusal.arrival_ns))
        self.refusals.append(refusal)

    def digest(self) -> str:
        """SHA-256 of both, in hexadecimal."""
        return sha256(self._steps.value() + self._requests.value()).hexdigest()


class _Digest:
    """A SHA-256 that is fed in large pieces."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._words: list[int] = []

    def add(self, words: Iterable[int]) -> None:
        self._words += words
        if len(self._words) > _BUFFERED:
            self._flush()

    def value(self) -> bytes:
        self._flush()
        return self._hash.digest()

    def _flush(self) -> None:
        self._hash.update(np.array(self._words, dtype="<i8").tobytes())
        self._words.clear()
