"""Numbers and look-ups that explain a difference; they never decide one."""

import math
from collections import defaultdict
from collections.abc import Iterator

import torch

from bitgate.parity.bits import chunks
from bitgate.parity.bundle import Bundle, Frame
from bitgate.records.types import Boundary, Pairs, TensorMeta


def numbers(expected: torch.Tensor, actual: torch.Tensor) -> Pairs:
    """Largest absolute and relative difference and cosine of two float tensors of one shape."""
    if not (expected.is_floating_point() and expected.shape == actual.shape):
        return ()
    largest = relative = dot = left_square = right_square = 0.0
    for left, right in chunks(expected, actual):
        x, y = left.to(torch.float64), right.to(torch.float64)
        if not bool((x.isfinite() & y.isfinite()).all()):
            return (("finite", "no"),)
        gap = (x - y).abs()
        largest = max(largest, float(gap.max()))
        scaled = gap / x.abs().clamp(min=torch.finfo(torch.float64).tiny)
        relative = max(relative, float(scaled[gap > 0].max()) if bool(gap.any()) else 0.0)
        dot += float(x @ y)
        left_square += float(x @ x)
        right_square += float(y @ y)
    norm = math.sqrt(left_square) * math.sqrt(right_square)
    cosine = f"{dot / norm:.9g}" if norm else "undefined"
    return (("cosine", cosine), ("max_abs", f"{largest:.6g}"), ("max_rel", f"{relative:.6g}"))


class Origins:
    """Where a digest was seen before: finds stale and misrouted values without their bytes."""

    def __init__(self, *bundles: Bundle) -> None:
        self._seen: dict[str, list[tuple[Frame, TensorMeta]]] = defaultdict(list)
        for bundle in bundles:
            for frame in bundle.frames():
                for meta in frame.tensors:
                    # Tiny tensors repeat by chance; a match would say nothing.
                    if meta.role != "param" and math.prod(meta.shape) > 1:
                        self._seen[meta.digest].append((frame, meta))

    def hints(self, frame: Frame, meta: TensorMeta) -> tuple[str, ...]:
        """What an unexpected output of `frame` is equal to: an older step, another tensor."""
        return tuple(dict.fromkeys(self._hints(frame, meta)))[:3]

    def _hints(self, frame: Frame, meta: TensorMeta) -> Iterator[str]:
        for other, found in self._seen.get(meta.digest, []):
            same_place = _place(other.boundary) == _place(frame.boundary)
            step = f"request {other.step.request}, token {other.step.token}"
            if other.step == frame.step and same_place:
                if found.name != meta.name:
                    yield f"equals tensor {found.name} of the same frame: not computed?"
            elif other.step == frame.step:
                yield f"equals {found.name} of {other.boundary.key} in this step: misrouted?"
            elif other.step < frame.step and same_place and found.name == meta.name:
                yield f"equals its own value at {step}: stale?"
            elif other.step < frame.step:
                yield f"equals {found.name} of {other.boundary.key} at {step}: stale or misrouted?"


def _place(boundary: Boundary) -> tuple[str, int, int, int]:
    return boundary.name, boundary.layer, boundary.ordinal, boundary.rank
