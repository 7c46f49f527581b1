"""Capturing the tensors at a model's boundaries, step by step, into a bundle.

    plan = Plan(boundaries=(Declared(name="mix", closed=True),), origin=...)
    with capture(plan, Path("out")) as session:
        with session.step(request=0, token=0, phase="prefill"):
            model(x)                        # which calls tap("mix", x, out=y)

What is expected is declared first. A declared boundary that does not fire in a step stops the
capture: a bundle is complete, or it does not exist.
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from bitgate.parity.bundle_format import (
    NO_LAYER,
    Expected,
    Manifest,
    Step,
    StepLine,
    TokensLine,
    constant_pairs,
)
from bitgate.parity.bundle_write import BundleWriter, Snapshot
from bitgate.parity.capture_plan import Declared, Origin, Plan
from bitgate.parity.capture_snapshot import Taken, snapshot, take, without_bytes
from bitgate.parity.digests import digest
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.types import Boundary, Phase

__all__ = [
    "CaptureIncomplete",
    "Declared",
    "Origin",
    "Plan",
    "Session",
    "capture",
    "tap",
]

Tensors = Mapping[str, torch.Tensor]
Tapped = torch.Tensor | Tensors | tuple[torch.Tensor, ...] | None


class CaptureIncomplete(Inconclusive):
    """A boundary did not appear as declared; names where it was expected."""


@dataclass(frozen=True, slots=True)
class _Frame:
    boundary: Boundary
    declared: Declared
    taken: list[Taken]
    mutated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Done:
    line: StepLine
    frames: list[tuple[Boundary, tuple[Snapshot, ...], tuple[str, ...]]]


class Session:
    """A running capture; made by `capture`."""

    def __init__(self, plan: Plan, writer: BundleWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._declared = {(item.name, item.layer): item for item in plan.boundaries}
        self._step: tuple[Step, Phase] | None = None
        self._frames: list[_Frame] = []
        self._calls: Counter[tuple[str, int]] = Counter()
        self._ring: deque[_Done] = deque()
        self._expected: dict[str, Expected] = {}
        self._weights: dict[int, tuple[Taken, Snapshot]] = {}
        self._steps: list[StepLine] = []
        self._last: dict[int, int] = {}
        self._requests = 0
        self.discarded = 0

    @contextmanager
    def step(self, *, request: int, token: int, phase: Phase) -> Iterator[None]:
        """One pass through the model; `token` is the position of the first token it consumes.

        Raises:
            CaptureIncomplete: a declared boundary did not fire as often as declared.
        """
        self.begin(request=request, token=token, phase=phase)
        try:
            yield
        except BaseException:
            self._step = None
            raise
        self.end()

    def begin(self, *, request: int, token: int, phase: Phase) -> None:
        """Start a step without a context manager; `end` closes it."""
        if self._step is not None:
            raise UsageError(f"step {self._step[0]} is still open; end it before the next one")
        if token <= self._last.get(request, token - 1):
            raise UsageError(
                f"request {request}: expected a token after {self._last[request]}, got {token}; "
                "the steps of a request follow its tokens"
            )
        self._last[request] = token
        self._step = (Step(request=request, token=token), phase)
        self._frames, self._calls = [], Counter()

    @property
    def recording(self) -> bool:
        """Whether a step is open; what fires outside of one is a warm-up, dropped and counted."""
        return self._step is not None

    def record(self, name: str, layer: int, taken: list[Taken], mutated: tuple[str, ...]) -> None:
        """Add a firing of a declared boundary, with copies already taken."""
        declared = self._declared.get((name, layer))
        if declared is None:
            known = sorted({item.name for item in self._plan.boundaries})
            raise UsageError(
                f"boundary {name!r} of layer {layer} is not declared; these are: {known}"
            )
        if self._step is None:
            self.discarded += 1
            return
        ordinal = self._calls[name, layer]
        self._calls[name, layer] += 1
        boundary = Boundary(
            name=name, layer=layer, ordinal=ordinal, phase=self._step[1], rank=self._plan.rank
        )
        self._frames.append(_Frame(boundary, declared, taken, mutated))

    def end(self) -> None:
        """Close the step: check that it is complete, digest the copies, keep or drop them."""
        if self._step is None:
            raise UsageError("no step is open; begin one first")
        (step, phase), self._step = self._step, None
        for item in self._plan.boundaries:
            fired = self._calls[item.name, item.layer]
            if fired != item.calls:
                raise CaptureIncomplete(
                    f"{item.source}: boundary {item.name!r} of layer {item.layer} fired {fired} "
                    f"times in {phase} at {step}, expected {item.calls}; a missing frame is an "
                    "error. Check that the module runs eagerly, and through its own forward"
                )
        frames = [(frame.boundary, self._finish(frame), frame.mutated) for frame in self._frames]
        self._frames = []
        self._check_order(step, [boundary for boundary, _, _ in frames])
        self._ring.append(_Done(StepLine(step=step, phase=phase, kept=True), frames))
        keep = self._plan.keep_steps
        while self._ring and (keep is None or len(self._ring) > keep):
            self._write(self._ring.popleft(), kept=keep is None)

    def _check_order(self, step: Step, fired: list[Boundary]) -> None:
        """The first of several differences is the culprit only where the order is always one."""
        places = {key: index for index, key in enumerate(self._expected)}
        for before, after in pairwise(fired):
            if places[after.key] < places[before.key]:
                raise CaptureIncomplete(
                    f"{after.key} fired after {before.key} at {step}, but before it in an earlier "
                    "step; boundaries fire in one order. Capture a model that runs in one stream"
                )

    def _finish(self, frame: _Frame) -> tuple[Snapshot, ...]:
        groups: dict[int, int] = {}
        found = tuple(
            self._snapshot(item, groups.setdefault(item.pointer, len(groups)))
            for item in frame.taken
        )
        expected = Expected(
            boundary=frame.boundary,
            op=frame.declared.op,
            contract=frame.declared.contract,
            constants=constant_pairs(frame.declared.constants),
            tensors=tuple((item.meta.name, item.meta.role) for item in found),
            closed=frame.declared.closed,
        )
        first = self._expected.setdefault(frame.boundary.key, expected)
        if first.tensors != expected.tensors:
            raise CaptureIncomplete(
                f"{frame.declared.source}: {frame.boundary.key} held {first.tensors} before and "
                f"{expected.tensors} now; a boundary has the same tensors in every step"
            )
        return found

    def _snapshot(self, item: Taken, group: int) -> Snapshot:
        """Weights are digested once, and looked up in later steps."""
        if item.role != "param":
            return snapshot(item, group)
        if id(item) not in self._weights:
            self._weights[id(item)] = (item, snapshot(item, group))
        return dataclasses.replace(self._weights[id(item)][1], alias_group=group)

    def _write(self, done: _Done, *, kept: bool) -> None:
        for boundary, tensors, mutated in done.frames:
            stored = tensors if kept else tuple(map(without_bytes, tensors))
            self._writer.add(done.line.step, boundary, stored, mutated)
        self._steps.append(dataclasses.replace(done.line, kept=kept))

    def tokens(self, line: TokensLine) -> None:
        """Store what a request was and what the model answered."""
        self._writer.add_tokens(line)
        self._requests += 1

    def finish(self) -> None:
        """Write the kept steps and the manifest.

        Raises:
            CaptureIncomplete: weights changed during the capture, or no step was captured.
        """
        if self._step is not None:
            raise UsageError(f"step {self._step[0]} is still open; end it first")
        for taken, first in self._weights.values():
            if digest(taken.live) != first.meta.digest:
                raise CaptureIncomplete(
                    f"the weight {taken.name!r} of shape {first.meta.shape} changed during the "
                    "capture; capture a model whose weights stay as they are"
                )
        while self._ring:
            self._write(self._ring.popleft(), kept=True)
        if not self._steps:
            raise CaptureIncomplete(
                f"no step was captured ({self.discarded} firings outside of a step were dropped); "
                "run the model inside session.step(...)"
            )
        keep = self._plan.keep_steps
        origin = self._plan.origin
        self._writer.manifest = Manifest(
            producer=origin.producer,
            model=origin.model,
            environment=origin.environment,
            implementation=origin.implementation,
            compile_cache=origin.compile_cache,
            tap_profile=origin.tap_profile,
            parallel=origin.parallel,
            selection=(("keep_steps", "all" if keep is None else str(keep)),),
            expected=tuple(self._expected.values()),
            steps=tuple(self._steps),
            requests=self._requests,
            discarded=self.discarded,
        )


# The capture that `tap` reports to is the one around it, as with a logging context.
_SESSION: ContextVar[Session | None] = ContextVar("bitgate_capture", default=None)


@contextmanager
def capture(plan: Plan, out: Path) -> Iterator[Session]:
    """Capture everything that fires inside the block into the bundle directory `out`.

    Raises:
        UsageError: `out` is in use, or a boundary fires that was not declared.
        CaptureIncomplete: a declared boundary is missing in a step; nothing is written.
        EnvironmentUnfit: no room on the disk; nothing is left behind.
    """
    with BundleWriter(out) as writer:
        session = Session(plan, writer)
        token = _SESSION.set(session)
        try:
            yield session
        finally:
            _SESSION.reset(token)
        session.finish()


def tap(
    name: str, *tensors: Tapped, layer: int = NO_LAYER, state: Tapped = None, out: Tapped = None
) -> None:
    """Report the tensors of a boundary to the capture around it; does nothing without one.

    Call it once the outputs exist. Tensors are copied at once, so later writes do not reach the
    bundle. A mapping gives its names; bare tensors are called in0, in1, ..., state0 and out0.
    """
    session = _SESSION.get()
    if session is None:
        return
    inputs: Tapped = (
        tensors[0]
        if len(tensors) == 1
        else tuple(t for t in tensors if isinstance(t, torch.Tensor))
    )
    taken = take("in", _named("in", inputs))
    taken += take("state", _named("state", state))
    taken += take("out", _named("out", out))
    session.record(name, layer, taken, ())


def _named(prefix: str, tensors: Tapped) -> Tensors:
    if tensors is None:
        return {}
    if isinstance(tensors, Mapping):
        return tensors
    several = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    return {f"{prefix}{index}": tensor for index, tensor in enumerate(several)}
