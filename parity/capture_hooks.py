"""Hooks that report a model's declared boundaries to a capture session.

A hook that returned something would replace the module's arguments or result: all return None.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bitgate.parity.capture import CaptureIncomplete, Session
from bitgate.parity.capture_snapshot import Taken, take
from bitgate.parity.taps.spec import Call, ModuleTap
from bitgate.records.types import Phase

T = TypeVar("T")

# What a tap raises when the module's arguments, results or weights are not as it declares.
_STRANGE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass
class Passes:
    """Which pass through the model is next: the request, and how many tokens it has consumed.

    While `request` is None the model runs without being captured: a warm-up.
    """

    request: int | None = None
    consumed: int = 0

    def start(self, request: int) -> None:
        """From now on passes belong to this request."""
        self.request, self.consumed = request, 0


@contextmanager
def hooked(
    model: torch.nn.Module, taps: tuple[ModuleTap, ...], session: Session, passes: Passes
) -> Iterator[None]:
    """Inside the block every pass through `model` is a step, and every tap reports its boundary.

    Raises:
        CaptureIncomplete: a declared module is not there; its path is named.
    """
    with ExitStack() as stack:
        for tap in taps:
            _hook_boundary(stack, _module(model, tap.path), tap, session)
        before, after = _pass_hooks(session, passes)
        handles = (
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after),
        )
        for handle in handles:
            stack.callback(handle.remove)
        yield


def _module(model: torch.nn.Module, path: str) -> torch.nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise CaptureIncomplete(
            f"{type(model).__name__} has no module {path}, which is a declared boundary ({error}); "
            "this version of transformers names it otherwise: adapt the file in parity/taps"
        ) from None


def _hook_boundary(
    stack: ExitStack, module: torch.nn.Module, tap: ModuleTap, session: Session
) -> None:
    declared = tap.declared
    weights = _taking(tap, lambda: take("param", tap.params(module), clone=False))
    pending: list[list[Taken]] = []

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = _taking(tap, lambda: tap.inputs(Call(args, kwargs)))
        pending.append(take("in", inputs) if session.recording else [])

    def after(_: Any, __: tuple[Any, ...], result: Any) -> None:
        taken = pending.pop()
        mutated: tuple[str, ...] = ()
        if session.recording:
            mutated = tuple(item.name for item in taken if item.changed)
            taken += weights + take("out", _taking(tap, lambda: tap.outputs(result)))
        session.record(declared.name, declared.layer, taken, mutated)

    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(after).remove)


def _taking(tap: ModuleTap, function: Callable[[], T]) -> T:
    try:
        return function()
    except _STRANGE as error:
        raise CaptureIncomplete(
            f"{tap.path}: its arguments, result or weights are not as declared: {error!r}; this "
            "version of transformers calls it otherwise: adapt the file in parity/taps"
        ) from error


def _pass_hooks(
    session: Session, passes: Passes
) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if passes.request is None:
            return
        ids = args[0] if args else kwargs["input_ids"]
        if ids.shape[0] != 1:
            raise CaptureIncomplete(
                f"expected one request per pass, got a batch of {ids.shape[0]}; run them one by one"
            )
        phase: Phase = "decode" if passes.consumed else "prefill"
        session.begin(request=passes.request, token=passes.consumed, phase=phase)
        passes.consumed += ids.shape[1]

    def after(_: Any, __: tuple[Any, ...], ___: Any) -> None:
        if passes.request is not None:
            session.end()

    return before, after
