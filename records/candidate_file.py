"""The candidate file: a TOML text in, a frozen `CandidateFile` out, or an error that says where.

The keys are declared once, in `records.candidate_keys`. Paths in the file are relative to the file.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from bitgate.records.candidate_keys import (
    BENCH,
    GATES,
    LATER_FORMS,
    SECTIONS,
    SIDE,
    SIDE_REQUIRED,
    WORKLOADS,
    Check,
    WrongValueError,
)
from bitgate.records.candidate_text import line_of, malformed
from bitgate.records.errors import UsageError
from bitgate.records.models import split_shape
from bitgate.records.types import Pairs, Regime, Tier

PROMOTED: Literal["promoted"] = "promoted"
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One implementation: the candidate or the baseline. `root` is an absolute directory.

    `tiles` is a file of tuned tiles.
    """

    name: str
    op: str
    contract: str
    tier: Tier
    device: str
    impl: str
    root: Path
    tiles: Path | None = None
    config: Pairs = ()
    env: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """What is timed and gated: a captured bundle, a named suite, and shapes of one's own."""

    bundle: Path | None = None
    suite: str | None = None
    shapes: tuple[tuple[tuple[str, int], ...], ...] = ()
    dtype: str | None = None
    cases: tuple[str, ...] = ("random",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """How much the gates have to prove. `max_p` is a bound that must be reached, if any.

    `cases` changed inputs per workload, `repeats` of each, fresh `processes`, `boundaries` per
    decode token, `timeout_s` per call.
    """

    cases: int = 40
    repeats: int = 2
    processes: int = 5
    boundaries: int = 87
    confidence: str = "0.95"
    max_p: str | None = None
    timeout_s: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How the timing runs; `order_seed` is drawn where it is None.

    A candidate that saves less than `kill_below_saving_ns` per call is rejected.
    """

    regime: Regime = "warm"
    margin: str = "0.01"
    rounds: int = 60
    processes: int = 5
    alpha: str = "0.05"
    kill_below_saving_ns: int | None = None
    order_seed: int | None = None
    timeout_s: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFile:
    """A whole candidate file. `baseline` is None where this run opens a lane."""

    path: Path
    candidate: Side
    baseline: Side | Literal["promoted"] | None
    workloads: Workloads
    gates: GateSettings
    bench: BenchSettings


def load_candidate_file(path: Path) -> CandidateFile:
    """Read and check a candidate file.

    Raises:
        UsageError: the file is missing, not TOML, or holds an unknown key, a wrong type or a form
            that this version does not run; the message starts with file and line.
    """
    try:
        data = path.read_bytes()
    except ValueError as error:
        raise UsageError(f"{str(path)!r}: not the name of a file: {error}") from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read the candidate file ({error.strerror}); "
            "`bitgate new candidate` writes one to start from"
        ) from error
    text = _text(path, data)
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(malformed(path, text, str(error))) from error
    except RecursionError:
        raise UsageError(f"{path}: tables or arrays are nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"{path}: a value cannot be read: {error}") from None
    return _Reader(path, text).file(document)


def _text(path: Path, data: bytes) -> str:
    """The text of a file; some editors put a byte order mark before it, which says nothing."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: a candidate file is UTF-8 text, byte {error.start} is not"
        ) from None
    return text.replace("\r\n", "\n")


class _Reader:
    """Turns one parsed document into values; knows the text, for the line numbers."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.folder = path.resolve().parent

    def file(self, document: dict[str, Any]) -> CandidateFile:
        for section in document:
            if section not in SECTIONS:
                raise self.unknown((), section, SECTIONS)
        if "serve" in document:
            raise self.error(
                ("serve",),
                "[serve]: the served stage is not available in this version; remove the section "
                "(the stage is then recorded as not-run: not configured)",
            )
        if "candidate" not in document:
            raise self.error((), "section [candidate] is missing; `bitgate new candidate` shows it")
        return CandidateFile(
            path=self.path,
            candidate=self.side(document, "candidate"),
            baseline=self.baseline(document),
            workloads=self.workloads(document),
            gates=GateSettings(**self.section(document, "gates", GATES)),
            bench=BenchSettings(**self.section(document, "bench", BENCH)),
        )

    def workloads(self, document: dict[str, Any]) -> Workloads:
        workloads = self.section(document, "workloads", WORKLOADS)
        if "bundle" in workloads:
            workloads["bundle"] = self.folder / workloads["bundle"]
        if "models" in workloads or "tokens" in workloads:
            shapes = (*workloads.get("shapes", ()), *self.ranks(workloads))
            workloads["shapes"] = tuple(dict.fromkeys(shapes))
        for key in ("dtype", "cases"):
            if key in workloads and "shapes" not in workloads:
                raise self.error(
                    ("workloads", key),
                    f"[workloads] {key}: it belongs to shapes, and there are none; a suite and a "
                    "bundle bring their own",
                )
        if "shapes" in workloads and "dtype" not in workloads:
            raise self.error(
                ("workloads", "shapes"), "[workloads]: shapes need a dtype beside them"
            )
        return Workloads(**workloads)

    def ranks(self, workloads: dict[str, Any]) -> list[tuple[tuple[str, int], ...]]:
        """The shapes of models' experts at some numbers of tokens; takes both keys away."""
        names, tokens = workloads.pop("models", ()), workloads.pop("tokens", ())
        if not names or not tokens:
            raise self.error(
                ("workloads", "models" if names else "tokens"),
                "[workloads]: models and tokens belong together: "
                'models = ["Qwen3-30B-A3B@ep2"], tokens = [1, 64]',
            )
        try:
            return [split_shape(name).experts_axes(count) for name in names for count in tokens]
        except UsageError as error:
            raise self.error(("workloads", "models"), f"[workloads] models: {error}") from None

    def baseline(self, document: dict[str, Any]) -> Side | Literal["promoted"] | None:
        found = document.get("baseline")
        if found is None:
            return None
        if isinstance(found, str):
            if found != PROMOTED:
                raise self.error(
                    ("baseline",),
                    f"baseline: expected the table [baseline] or the string 'promoted', "
                    f"got {found!r}",
                )
            return PROMOTED
        side = self.side(document, "baseline")
        candidate = document["candidate"]
        for key in ("op", "contract", "device"):
            if getattr(side, key) != candidate.get(key):
                raise self.error(
                    ("baseline", key),
                    f"[baseline] {key} = {getattr(side, key)!r}, but [candidate] {key} = "
                    f"{candidate.get(key)!r}; a claim never spans two of them",
                )
        return side

    def side(self, document: dict[str, Any], section: str) -> Side:
        table = document[section]
        if isinstance(table, dict):
            for form in LATER_FORMS:
                if form in table:
                    raise self.error(
                        (section, form),
                        f"[{section}] {form}: this version runs the form impl = "
                        "'module:function' only; wrap the implementation in such a function",
                    )
        values = self.section(document, section, SIDE)
        for key in SIDE_REQUIRED:
            if key not in values:
                raise self.error(
                    (section,),
                    f"[{section}]: key {key!r} is missing; required are {', '.join(SIDE_REQUIRED)}",
                )
        values["root"] = (self.folder / values.get("root", ".")).resolve()
        if "tiles" in values:
            values["tiles"] = self.folder / values["tiles"]
        return Side(**values)

    def section(
        self, document: dict[str, Any], section: str, keys: Mapping[str, Check]
    ) -> dict[str, Any]:
        table = document.get(section, {})
        if not isinstance(table, dict):
            raise self.error(
                (section,), f"{section}: expected the table [{section}], got {table!r}"
            )
        values = {}
        for key, value in table.items():
            if key not in keys:
                raise self.unknown((section,), key, tuple(keys))
            try:
                values[key] = keys[key](value)
            except WrongValueError as wrong:
                shown = str(value) if isinstance(value, Decimal) else repr(value)
                shown = shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "..."
                raise self.error(
                    (section, key), f"[{section}] {key}: expected {wrong}, got {shown}"
                ) from None
        return values

    def unknown(self, where: tuple[str, ...], key: str, known: tuple[str, ...]) -> UsageError:
        kind = f"[{where[0]}]: unknown key" if where else "unknown section or key"
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return self.error((*where, key), f"{kind} {key!r}{hint} (known: {', '.join(known)})")

    def error(self, where: tuple[str, ...], message: str) -> UsageError:
        return UsageError(f"{self.path}:{line_of(self.text, where)}: {message}")
