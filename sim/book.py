"""What a simulation writes down as it goes: a digest of everything, and results handed on."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from bitgate.sim.run import Refusal, RequestResult
from bitgate.sim.step import StepShape

_STEP, _RESULT, _REFUSAL = 1, 2, 3
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
    """Every integer of steps and results goes into one SHA-256, as 64-bit little-endian words."""

    def __init__(self, watch: Watch) -> None:
        self.results: list[RequestResult] = []
        self.refusals: list[Refusal] = []
        self._watch = watch
        self._hash = sha256()
        self._words: list[int] = []

    def step(self, start_ns: int, ns: int, shape: StepShape) -> None:
        """A step ran."""
        prefills, decodes, kv_tokens, logits = shape
        self._words += (_STEP, start_ns, ns, decodes, kv_tokens, logits, len(prefills))
        for chunk in prefills:
            self._words += chunk
        if len(self._words) > _BUFFERED:
            self._flush()
        if self._watch.step:
            self._watch.step(start_ns, ns, shape)

    def result(self, result: RequestResult) -> None:
        """A request completed."""
        self._words += (_RESULT, *result)
        if self._watch.result:
            self._watch.result(result)
        else:
            self.results.append(result)

    def refuse(self, refusal: Refusal) -> None:
        """A request was turned away."""
        self._words += (_REFUSAL, refusal.id, refusal.arrival_ns)
        self.refusals.append(refusal)

    def digest(self) -> str:
        """SHA-256 of all that was written, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(np.array(self._words, dtype="<i8").tobytes())
        self._words.clear()
