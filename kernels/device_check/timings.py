"""How long the experts and the hyper-connections take, in coin-flipped pairs with checked outputs.

Shapes are those of published tables, whose figures stand beside ours. The experts' baseline is the
staged pipeline and their candidate the fused one; of the hyper-connections the baseline is the
staged composition where there is a fused operator, and otherwise the same implementation, which
says how far the machine itself can be trusted.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from bitgate.kernels.catalogue import implementation, kernel
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.device_check.context import FAILURES, Context
from bitgate.kernels.device_check.inputs import device_spread
from bitgate.kernels.device_check.rows import CheckOutcome, Row, Sampled, Side
from bitgate.kernels.loading import load
from bitgate.kernels.mhc import post_triton, pre_triton
from bitgate.kernels.moe.configs import resolve, tile_config
from bitgate.kernels.moe.configs_vllm import Lookup
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.moe.experts_data import routing_weights
from bitgate.kernels.spec import Tensors
from bitgate.records.coin import flips
from bitgate.records.types import Pairs, Regime, Workload

NULL_ROUNDS: Final = 20
ROUNDS: Final = 30
_ORDER_SEED: Final = 20_260_731
_WARM_CALLS: Final = 5
_NO_LIMIT: Final = float("inf")
# Odd, so that it deals distinct experts to a token and all of them equally often.
_STRIDE: Final = 37

# Milliseconds of vLLM 0.24's Triton experts on one H200, bf16, balanced routing: aiconfigurator's
# tables (ai-dynamo/aiconfigurator at 095f58a), Qwen3-30B-A3B on one GPU.
_EXPERTS_H200_MS: Final = {
    1: "0.040",
    8: "0.172",
    32: "0.305",
    64: "0.316",
    256: "0.339",
    1024: "0.406",
    4096: "0.691",
    16384: "2.463",
}
# Microseconds of vLLM 0.24's mhc_pre and mhc_post there, by hidden size and tokens; same tables.
_MHC_H200_US: Final = {
    (4096, 1): ("17.5", "6.2"),
    (4096, 128): ("19.6", "7.3"),
    (4096, 1024): ("47.1", "43.4"),
    (4096, 4096): ("170.2", "149.9"),
    (7168, 1): ("20.6", "8.1"),
    (7168, 128): ("24.7", "11.3"),
    (7168, 1024): ("81.1", "71.6"),
    (7168, 4096): ("276.6", "260.6"),
}
_SOURCE: Final = "vLLM 0.24 on H200, ai-dynamo/aiconfigurator at 095f58a"

Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two sides on one workload; both calls give the outputs that their contract promises equal."""

    section: str
    workload: Workload
    baseline: Side
    candidate: Side
    calls: dict[str, Call]
    published: Pairs = ()


def experts(context: Context) -> Iterator[Row]:
    """Staged and fused experts at Qwen3-30B-A3B's layer, or a small one where Triton interprets."""
    counts = tuple(_EXPERTS_H200_MS) if not context.quick else (1, 32, 4096)
    extents = {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8}
    if context.small:
        extents, counts = {"experts": 2, "hidden": 32, "intermediate": 32, "top_k": 1}, (1,)
    weights = _weights(extents, context.name)
    sides = [implementation(name) for name in ("experts_triton", "experts_fused")]
    for tokens in counts:
        axes = tuple(sorted((extents | {"tokens": tokens}).items()))
        workload = Workload(op="moe_experts", axes=axes, dtype="bfloat16")
        inputs = weights | _choices(extents, tokens, context.name)
        config = _engine_tiles(context, extents, tokens)
        published: Pairs = ()
        if not context.small:
            published = ((_SOURCE, f"{float(_EXPERTS_H200_MS[tokens]) * 1000:g} us"),)
        yield from contest(
            context,
            Contest(
                section="experts",
                workload=workload,
                baseline=context.side(sides[0], asdict(config)),
                candidate=context.side(sides[1], asdict(config)),
                calls={
                    side: partial(
                        load(found.target), **inputs, swiglu_limit=_NO_LIMIT, config=config
                    )
                    for side, found in zip("BC", sides, strict=True)
                },
                published=published,
            ),
        )


def _engine_tiles(context: Context, extents: dict[str, int], tokens: int) -> TileConfig:
    """What vLLM launches with on this device; it has no rules for a processor."""
    if context.small:
        return DEFAULT_CONFIG
    lookup = Lookup(
        experts=extents["experts"],
        intermediate=extents["intermediate"],
        tokens=tokens,
        device_name=context.device.probe().device_name,
    )
    return tile_config(resolve(lookup))


def hyper_connections(context: Context) -> Iterator[Row]:
    """mhc_pre, mhc_post and the fused mhc_post_pre at the shapes of DeepSeek-V4."""
    ops: tuple[str, ...] = ("mhc_pre", "mhc_post", "mhc_post_pre")
    shapes = tuple(_MHC_H200_US) if not context.quick else ((4096, 1), (4096, 1024))
    if context.small:
        # Interpreted, the twenty Sinkhorn steps of mhc_pre take half a second.
        shapes, ops = ((64, 1),), ("mhc_post",)
    for hidden, tokens in shapes:
        for op in ops:
            definition = kernel(op)
            extents = dict(definition.suites["default"][0].axes) | {"hidden": hidden}
            axes = tuple(sorted((extents | {"tokens": tokens}).items()))
            workload = Workload(op=op, axes=axes, dtype="bfloat16")
            inputs = context.to_device(definition.make_inputs(workload, 0))
            fast = implementation(f"{op}-triton")
            call = partial(load(fast.target), **inputs, **dict(definition.constants))
            side = context.side(fast)
            yield from contest(
                context,
                Contest(
                    section="hyper-connections",
                    workload=workload,
                    baseline=_composed(side) if op == "mhc_post_pre" else side,
                    candidate=side,
                    calls={
                        "B": partial(post_then_pre, **inputs, **dict(definition.constants))
                        if op == "mhc_post_pre"
                        else call,
                        "C": call,
                    },
                    published=() if context.small else _published_mhc(op, hidden, tokens),
                ),
            )


def post_then_pre(**arguments: Any) -> tuple[Tensor, ...]:
    """`mhc_post_pre` as two launched operators: what the fused one must equal and beat."""
    first = {name: arguments.pop(name) for name in ("x", "residual", "post", "comb")}
    residual = post_triton.mhc_post(**first)
    return (residual, *pre_triton.mhc_pre(residual=residual, **arguments))


def _composed(side: Side) -> Side:
    target = f"{__name__}:{post_then_pre.__name__}"
    return replace(side, name="mhc_post_pre-composed", target=target)


def _published_mhc(op: str, hidden: int, tokens: int) -> Pairs:
    place = ("mhc_pre", "mhc_post").index(op) if op != "mhc_post_pre" else None
    if place is None:
        return ()
    return ((_SOURCE, f"{_MHC_H200_US[hidden, tokens][place]} us"),)


def _weights(extents: dict[str, int], device: str) -> Tensors:
    experts, hidden, inner = (extents[name] for name in ("experts", "hidden", "intermediate"))
    return {
        "w_gate_up": device_spread(
            11, (experts, 2 * inner, hidden), scale_log2=4 + hidden.bit_length() // 2, device=device
        ),
        "w_down": device_spread(
            12, (experts, hidden, inner), scale_log2=7 + inner.bit_length() // 2, device=device
        ),
    }


def _choices(extents: dict[str, int], tokens: int, device: str) -> Tensors:
    """Rows and a routing as even as the published tables assume: tokens take experts in turn."""
    experts, top_k = extents["experts"], extents["top_k"]
    pairs = torch.arange(tokens * top_k, device=device).view(tokens, top_k)
    weights = routing_weights(IntegerStream(14), (tokens, top_k))
    return {
        "x": device_spread(13, (tokens, extents["hidden"]), scale_log2=6, device=device),
        "topk_ids": pairs * _STRIDE % experts,
        "topk_weights": weights.to(device),
    }


def contest(context: Context, rivals: Contest) -> Iterator[Row]:
    """Check both sides, then time them; nothing is timed that is late or wrong."""
    if context.late:
        return
    try:
        expected = {side: call() for side, call in rivals.calls.items()}
        context.device.synchronize()
        if not _same(expected["B"], expected["C"]):
            yield _row(context, rivals, "fail", "the sides' outputs differ; nothing was timed")
            return
        watch = _Watch(context, rivals.calls, expected["B"])
        null = watch.rounds(flips(_ORDER_SEED, NULL_ROUNDS, "null"), same=True)
        # A measurement counts the outputs of its pairs alone.
        before = watch.verified
        pairs = watch.rounds(flips(_ORDER_SEED, ROUNDS), same=False)
    except FAILURES as error:
        lines = str(error).splitlines() or [""]
        yield _row(context, rivals, "fail", f"{type(error).__name__}: {lines[0]}")
        return
    if watch.wrong:
        reason = f"{watch.wrong} timed outputs differ from the first; the times say nothing"
        yield _row(context, rivals, "fail", reason)
        return
    yield replace(
        _row(context, rivals, "not-run", "not timed yet"),
        outcome="pass",
        reason=f"{watch.verified} timed outputs equal the first",
        order=flips(_ORDER_SEED, ROUNDS),
        baseline_ns=pairs["B"],
        candidate_ns=pairs["C"],
        null_order=flips(_ORDER_SEED, NULL_ROUNDS, "null"),
        null_baseline_ns=null["B"],
        null_candidate_ns=null["C"],
        verified_outputs=watch.verified - before,
    )


class _Watch:
    """Times single calls by the device's clock, and checks what each gave."""

    def __init__(
        self, context: Context, calls: dict[str, Call], expected: tuple[Tensor, ...]
    ) -> None:
        self._context, self._calls, self._expected = context, calls, expected
        self._timer = context.device.timer()
        self._flush = context.device.flusher() if _regime(context) == "cold" else _nothing
        self.verified = self.wrong = 0
        for call in calls.values():
            for _ in range(_WARM_CALLS):
                call()
        context.device.synchronize()

    def rounds(self, order: str, *, same: bool) -> dict[str, tuple[int, ...]]:
        """Nanoseconds of both sides in each round; with `same`, the baseline is both."""
        taken: dict[str, list[int]] = {"B": [], "C": []}
        for first in order:
            for side in (first, "C" if first == "B" else "B"):
                taken[side].append(self._take(self._calls["B" if same else side]))
        return {side: tuple(times) for side, times in taken.items()}

    def _take(self, call: Call) -> int:
        outputs: list[tuple[Tensor, ...]] = []
        self._flush()
        elapsed_ns = self._timer.elapsed_ns(lambda: outputs.append(call()))
        if _same(self._expected, outputs[0]):
            self.verified += 1
        else:
            self.wrong += 1
        return max(1, elapsed_ns)


def _same(left: tuple[Tensor, ...] | Tensor, right: tuple[Tensor, ...] | Tensor) -> bool:
    pairs = zip(_tuple(left), _tuple(right), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def _tuple(value: tuple[Tensor, ...] | Tensor) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _regime(context: Context) -> Regime:
    """Interpreted, a call takes longer than the caches matter, and emptying them as long again."""
    return "warm" if context.small else "cold"


def _nothing() -> None:
    """Leave the caches as they are."""


def _row(context: Context, rivals: Contest, outcome: CheckOutcome, reason: str) -> Sampled:
    timer = context.device.timer()
    return Sampled(
        section=rivals.section,
        baseline=rivals.baseline,
        candidate=rivals.candidate,
        workload=rivals.workload,
        regime=_regime(context),
        timer=timer.name,
        resolution_ns=timer.resolution_ns,
        order_seed=_ORDER_SEED,
        order="",
        baseline_ns=(),
        candidate_ns=(),
        null_order="",
        null_baseline_ns=(),
        null_candidate_ns=(),
        verified_outputs=0,
        outcome=outcome,
        reason=reason,
        published=rivals.published,
    )
