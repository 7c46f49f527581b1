"""Which tiles are fast for how many tokens: each is judged first, then timed against the default.

A configuration that fails a check is rejected and never timed. The others are timed by the same
session as any candidate: coin-flipped pairs with the default tiles in fresh processes, every timed
output compared bit for bit with what the same tiles give elsewhere. One is chosen only where it is
FASTER with evidence; where nothing is, the default stays, for differences within noise are no
finding. Many are tried, so each is held to its share of the allowed false claims.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from bitgate.bench.effect import EffectReport, effect
from bitgate.bench.process import ChildFailed
from bitgate.bench.session import Timed, measure
from bitgate.bench.sides import Contest
from bitgate.bench.tune_judge import Answer, Judging, judge, oracle
from bitgate.bench.witness import TimingRefused
from bitgate.kernels import catalogue
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.configs import entry_of, parse
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.spec import Implementation
from bitgate.parity.gates.base import Progress, Subject
from bitgate.records import provenance
from bitgate.records.closure import PACKAGE_ROOT
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.types import Plan, Workload

Measure = Callable[..., Iterator[tuple[Workload, Timed]]]
Judge = Callable[..., list[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is tuned.

    Attributes:
        implementation: of the catalogue, one that is tiled.
        device: where it runs.
        workloads: the same extents at several numbers of tokens.
        grid: the tiles that are tried beside DEFAULT_CONFIG.
        plan: of each contest with the default; its alpha is shared out over all of them.
        samples: inputs on which each configuration is judged before it is timed.
        timeout_s: how long one request to a process may take.
    """

    implementation: Implementation
    device: str
    workloads: tuple[Workload, ...]
    grid: tuple[TileConfig, ...]
    plan: Plan
    samples: int = 3
    timeout_s: int = 300

    def __post_init__(self) -> None:
        if not self.implementation.tiled:
            raise UsageError(
                f"{self.implementation.name} takes no tiles, so there are none to tune"
            )
        oracle(self.implementation.op)
        if self.device not in self.implementation.devices:
            raise UsageError(
                f"{self.implementation.name}: expected a device of "
                f"{', '.join(self.implementation.devices)}, got {self.device}"
            )
        if not self.workloads or not self.grid or self.samples < 1:
            raise UsageError("expected workloads, tiles and samples to try, got none")

    @property
    def share(self) -> str:
        """The alpha of one contest: the plan's, divided by how many there are at all tokens."""
        contests = len(self.grid) * len(self.workloads)
        return f"{Decimal(self.plan.alpha) / contests:.3e}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One configuration at one number of tokens. `timed` is None where it was rejected."""

    tokens: int
    config: TileConfig
    bits: str
    rejected: str | None = None
    timed: Timed | None = None
    effect: EffectReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is written for one number of tokens, and why."""

    tokens: int
    config: TileConfig
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """All that was tried, and what came of it, one choice for each number of tokens."""

    tried: tuple[Tried, ...]
    chosen: tuple[Chosen, ...]


def tune(
    tuning: Tuning, progress: Progress, *, timing: Measure = measure, judging: Judge = judge
) -> Tuned:
    """Judge, time and choose.

    Args:
        tuning: what to do.
        progress: told (what, done, total) as the work goes on.
        timing: the session that times a contest.
        judging: the checks before it.

    Raises:
        EnvironmentUnfit: this node cannot run the implementation.
        Inconclusive: the default tiles themselves fail their check, so nothing can be compared.
    """
    answers = judging(
        Judging(
            kernel=catalogue.kernel(tuning.implementation.op),
            implementation=tuning.implementation,
            device=tuning.device,
            workloads=tuning.workloads,
            samples=tuning.samples,
            timeout_s=tuning.timeout_s,
        ),
        {config: packed(config) for config in tuning.grid},
        progress,
    )
    default, tried = _default(tuning), list[Tried]()
    for number, config in enumerate(tuning.grid):
        mine = [answer for answer in answers if answer.config == config]
        contest = _contest(default, config)
        tried += _timed(tuning, config, mine, partial(timing, contest, progress=progress))
        progress("configurations timed", number + 1, len(tuning.grid))
    chosen = tuple(_choice(one.axis("tokens"), tried) for one in tuning.workloads)
    return Tuned(tried=tuple(tried), chosen=chosen)


def packed(config: TileConfig) -> str:
    """A file with this one entry, as text; its name says nothing, because it is nowhere."""
    content = json.dumps({"1": entry_of(config)}).encode()
    return tiles.packed(parse("E=1,N=1,device_name=tuning.json", content))


def _timed(
    tuning: Tuning, config: TileConfig, answers: Sequence[Answer], timing: Measure
) -> list[Tried]:
    """One configuration on every workload. A session that ends early costs the one it was at."""
    found = [
        Tried(tokens=one.tokens, config=config, bits=one.bits, rejected=one.rejected)
        for one in answers
        if one.rejected is not None
    ]
    bits = {one.tokens: one.bits for one in answers if one.rejected is None}
    pending = [one for one in tuning.workloads if one.axis("tokens") in bits]
    plan = replace(tuning.plan, alpha=tuning.share)
    while pending:
        try:
            for workload, timed in timing(list(pending), plan, timeout_s=tuning.timeout_s):
                tokens = workload.axis("tokens")
                found.append(
                    Tried(
                        tokens=tokens,
                        config=config,
                        bits=bits[tokens],
                        timed=timed,
                        effect=effect(timed.measurement),
                    )
                )
                pending.remove(workload)
        except (TimingRefused, ChildFailed, Inconclusive) as error:
            tokens = pending.pop(0).axis("tokens")
            why = f"while it was timed: {str(error).splitlines()[0]}"
            found.append(Tried(tokens=tokens, config=config, bits=bits[tokens], rejected=why))
    return found


def _contest(default: Subject, config: TileConfig) -> Contest:
    """The configuration against the default, each with a truth of its own tiles."""
    text, draft = packed(config), default.candidate
    draft = replace(draft, name=f"{draft.name} with tiles", config=((tiles.TILES, text),))
    candidate = replace(draft, digest=provenance.candidate_digest(draft))
    return Contest(
        subject=replace(default, candidate=candidate, reference_tiles=text),
        baseline_target=draft.implementation,
        baseline_root=None,
        rival=default,
    )


def _default(tuning: Tuning) -> Subject:
    """The implementation with the tiles that it was written with."""
    implementation = tuning.implementation
    kernel = catalogue.kernel(implementation.op)
    truth = catalogue.implementation(kernel.references[implementation.contract])
    # The contract's reference has the bits of any tiles, if it takes them and runs here.
    independent = truth.tiled and tuning.device in truth.devices
    return Subject(
        kernel=kernel,
        candidate=provenance.candidate(
            name=implementation.name,
            op=implementation.op,
            contract=implementation.contract,
            tier=implementation.tier,
            device=tuning.device,
            implementation=implementation.target,
            root=PACKAGE_ROOT,
            switches=provenance.switches(),
        ),
        root=None,
        reference=truth if independent else implementation,
        constants=dict(kernel.constants),
    )


def _choice(tokens: int, tried: Sequence[Tried]) -> Chosen:
    """The fastest of those that are FASTER with evidence, else the default."""
    mine = [one for one in tried if one.tokens == tokens]
    faster = [
        (Decimal(one.effect.speedup), one.config, one.effect)
        for one in mine
        if one.effect is not None and one.effect.effect == "FASTER"
    ]
    if not faster:
        timed = sum(one.timed is not None for one in mine)
        return Chosen(
            tokens=tokens,
            config=DEFAULT_CONFIG,
            why=f"the default: of {timed} timed and {len(mine) - timed} rejected configurations "
            "none is faster with evidence",
        )
    _, config, report = max(faster, key=lambda one: one[0])
    rivals = sum(Decimal(other.ci_high) > Decimal(report.ci_low) for _, _, other in faster) - 1
    doubt = f"; {rivals} other configurations may be as fast" if rivals else ""
    return Chosen(tokens=tokens, config=config, why=f"{report.summary}{doubt}")


def facts_of(one: Tried) -> dict[str, Any]:
    """One configuration for a report: its tiles, what became of it, and its raw samples."""
    samples = None if one.timed is None else one.timed.measurement
    return {
        "tokens": one.tokens,
        "tiles": entry_of(one.config),
        "bits": one.bits,
        "rejected": one.rejected,
        "effect": None if one.effect is None else asdict(one.effect),
        "baseline_ns": None if samples is None else list(samples.baseline_ns),
        "candidate_ns": None if samples is None else list(samples.candidate_ns),
        "order": None if samples is None else samples.order,
    }
