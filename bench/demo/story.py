"""The demo: capture a model, open the lanes, take three candidates through their stages."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path

from rich.markup import escape

from bitgate.bench.stages import Row, RunReport, run_candidate
from bitgate.parity.bundle_format import DIGESTS
from bitgate.parity.capture_checkpoint import Job, capture_tiny, tiny_prompts
from bitgate.parity.capture_transformers import Generation
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.console import console, table, telling
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.report import render

MODEL = "deepseek-v4"
TOKENS = 8
AUTHOR = "bitgate demo"
SUMMARY = "summary.json"

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """How a candidate of the demo ends: with promotions, or with one of these findings."""

    file: str
    findings: tuple[str, ...]
    promoted_tokens: tuple[int, ...] = ()


CANDIDATES = (
    Expectation(file="experts_sorted", findings=("exact",), promoted_tokens=(16, 64)),
    Expectation(file="mhc_compiled", findings=("deterministic-mismatch",)),
    Expectation(file="experts_stale", findings=("history-dependent", "nondeterministic")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one candidate ended; `endings` are (workload, effect, ending).

    `unsettled` gives the reason of each workload whose timing proved nothing.
    """

    candidate: str
    finding: str
    endings: tuple[tuple[str, str, str], ...]
    reason: str
    unsettled: tuple[tuple[str, str], ...]
    evidence: tuple[tuple[str, str], ...]
    as_expected: bool


def run(out: Path, *, as_json: bool) -> int:
    """Tell the story into the directory `out`; an earlier demo there is kept beside it.

    Returns:
        0 where every candidate ended as it should, 3 where one did not.

    Raises:
        UsageError: `out` holds something that no demo wrote.
        Inconclusive: the promoted path itself could not open its lanes on this machine.
    """
    _make_room(out)
    with telling(quiet=as_json) as tell:
        digests = _capture(out, tell)
        ledger = Ledger(out / "ledger")
        opening = _run(out, "experts_loop", ledger, tell, open_lane=True)
        ends = [_ended(opening, Expectation(file="experts_loop", findings=("exact",)))]
        if any(row.ending != "opened" for row in opening.rows):
            raise Inconclusive(
                f"experts-loop, the promoted path, could not open its lanes: {ends[0].reason}\n"
                f"Free the machine and run the demo again; what was measured is in {ledger.root}"
            )
        ends += [_ended(_run(out, one.file, ledger, tell), one) for one in CANDIDATES]
    render(ledger, out / "report.html")
    facts = {
        "digests_sha256": digests,
        "candidates": [asdict(one) for one in ends],
        "bundle": str(out / "bundle"),
        "ledger": str(out / "ledger"),
        "report": str(out / "report.html"),
    }
    (out / SUMMARY).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(facts))  # noqa: T201 - JSON is the command's result
    else:
        _show(out, digests, ends)
    return 0 if all(one.as_expected for one in ends) else 3


def _make_room(out: Path) -> None:
    """Move an earlier demo aside; refuse what is not one."""
    if out.is_dir() and any(out.iterdir()):
        if not (out / "candidates").is_dir():
            raise UsageError(
                f"{out}: expected an empty directory or an earlier demo, got something else; "
                "name another directory with --out"
            )
        number = 1
        while (aside := out.with_name(f"{out.name}-{number}")).exists():
            number += 1
        out.rename(aside)
    elif out.exists() and not out.is_dir():
        raise UsageError(f"{out}: expected a directory, got a file; name another with --out")
    with as_file(files("bitgate.bench.demo").joinpath("candidates")) as candidates:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(candidates, out / "candidates", ignore=ignore)


def _capture(out: Path, tell: Tell) -> str:
    """Capture the tiny model; the SHA-256 of all its tensors' digests."""
    asked = tiny_prompts()
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        tell(f"capture {MODEL}", done, len(asked))

    _say(f"capture the tiny {MODEL} while it generates {TOKENS} tokens for {len(asked)} prompts")
    tell(f"capture {MODEL}", 0, len(asked))
    job = Job(generation=Generation(tokens=TOKENS), progress=advance)
    capture_tiny(MODEL, out / "bundle", job, asked)
    return hashlib.sha256((out / "bundle" / DIGESTS).read_bytes()).hexdigest()


def _run(out: Path, name: str, ledger: Ledger, tell: Tell, *, open_lane: bool = False) -> RunReport:
    file = load_candidate_file(out / "candidates" / f"{name}.toml")
    _say(f"run {file.candidate.name}" + (" and open its lanes" if open_lane else ""))

    def tell_of_this(what: str, done: int, total: int) -> None:
        tell(f"{file.candidate.name}: {what}", done, total)

    return run_candidate(file, ledger, author=AUTHOR, progress=tell_of_this, open_lane=open_lane)


def _say(text: str) -> None:
    """One line on stderr, so that a log shows the steps where no progress bar can."""
    console(stderr=True).print(text, markup=False)


def _ended(report: RunReport, expected: Expectation) -> Ended:
    promoted = {row.workload.axis("tokens") for row in report.rows if row.ending == "promoted"}
    failure = report.verdict.first_failure
    reason = report.rows[-1].reason if failure is None else f"{failure.gate}: {failure.reason}"
    return Ended(
        candidate=report.candidate.name,
        finding=report.verdict.kind,
        endings=tuple((row.workload.key, _effect(row), row.ending) for row in report.rows),
        reason=reason,
        unsettled=tuple(
            (row.workload.key, row.reason)
            for row in report.rows
            if report.verdict.passed and row.ending in {"inconclusive", "invalid"}
        ),
        evidence=tuple(
            (result.gate, result.evidence.sha256)
            for result in report.verdict.results
            if result.evidence is not None
        ),
        as_expected=report.verdict.kind in expected.findings
        and promoted == set(expected.promoted_tokens)
        # Rejected for the bits that it gave, not because it could not run.
        and (failure is None or failure.mismatch is not None),
    )


def _effect(row: Row) -> str:
    if row.effect is None:
        return "not timed"
    if row.ending == "opened":
        return f"timed against itself, {row.effect.speedup[:4]}x"
    return f"{row.effect.effect}, {row.effect.speedup[:4]}x"


def _show(out: Path, digests: str, ends: list[Ended]) -> None:
    screen = console()
    shown = table("what became of each", "candidate", "finding", "workload", "effect", "ending")
    for one in ends:
        for place, (workload, effect, ending) in enumerate(one.endings):
            first = (one.candidate, one.finding) if place == 0 else ("", "")
            shown.add_row(*first, escape(_short(workload)), effect, ending)
    screen.print(shown)
    for one in ends:
        for workload, reason in one.unsettled:
            screen.print(f"{one.candidate}, {escape(_short(workload))}: {escape(reason)}")
        if one.finding != "exact" or not one.as_expected:
            screen.print(f"{one.candidate}: {escape(one.reason)}")
        if not one.as_expected:
            screen.print(f"{one.candidate} did not end as it should on a quiet machine; see above")
    screen.print(f"\ncaptured   {escape(str(out / 'bundle'))} (digests {digests[:12]})")
    for name in ("candidates", "ledger", "report.html"):
        screen.print(f"{name.partition('.')[0]:10} {escape(str(out / name))}")
    screen.print(f"\nnext       bitgate records list --ledger {escape(str(out / 'ledger'))}")
    screen.print(
        f"           bitgate run {escape(str(out / 'candidates/experts_sorted.toml'))} --plan"
    )


def _short(workload: str) -> str:
    """The operator and its number of tokens; the shape is the same throughout the demo."""
    op, _, rest = workload.partition("[")
    tokens = next(axis for axis in rest.partition("]")[0].split(",") if axis.startswith("tokens="))
    return f"{op} {tokens}"
