"""The demo: capture two models, open the lanes, take four candidates through their stages."""

import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path

from bitgate.bench.stages import RunReport, judge_candidate, run_candidate
from bitgate.demo.endings import Expectation, ended
from bitgate.demo.screen import show
from bitgate.demo.service import simulate
from bitgate.parity.bundle_format import DIGESTS
from bitgate.parity.capture_checkpoint import Job, capture_tiny, tiny_prompts
from bitgate.parity.capture_transformers import Generation
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.console import console, telling
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.report import render

MODELS = ("deepseek-v4", "qwen3-moe")
TOKENS = 8
AUTHOR = "bitgate demo"
OPENING = "experts_loop"
SUMMARY = "summary.json"

Tell = Callable[[str, int, int], None]


CANDIDATES = (
    Expectation(file="experts_sorted", findings=("exact",), promoted_tokens=(16, 64)),
    Expectation(file="mhc_compiled", findings=("deterministic-mismatch",)),
    Expectation(file="experts_stale", findings=("history-dependent", "nondeterministic")),
    Expectation(file="experts_dense", findings=("deterministic-mismatch",)),
)


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
        digests = {model: _capture(model, out, tell) for model in MODELS}
        ledger = Ledger(out / "ledger")
        rejected = _judge(out, ledger, tell)
        opening = _run(out, OPENING, ledger, tell, open_lane=True)
        ends = [ended(opening, Expectation(file=OPENING, findings=("exact",)))]
        if any(row.ending != "opened" for row in opening.rows):
            raise Inconclusive(
                f"experts-loop, the promoted path, could not open its lanes: {ends[0].reason}\n"
                f"Free the machine and run the demo again; what was measured is in {ledger.root}"
            )
        for one in CANDIDATES:
            report = rejected.get(one.file) or _run(out, one.file, ledger, tell)
            ends.append(ended(report, one))
        _say("simulate a piece of an Azure trace before and after the promotions")
        service = simulate(out, ledger)
    render(ledger, out / "report.html")
    facts = {
        "digests_sha256": digests,
        "candidates": [asdict(one) for one in ends],
        "simulations": asdict(service),
        "ledger": str(out / "ledger"),
        "report": str(out / "report.html"),
    }
    (out / SUMMARY).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(facts))  # noqa: T201 - JSON is the command's result
    else:
        show(out, digests, ends, service)
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
    with as_file(files("bitgate.demo").joinpath("candidates")) as candidates:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(candidates, out / "candidates", ignore=ignore)


def _capture(model: str, out: Path, tell: Tell) -> str:
    """Capture the tiny model; the SHA-256 of all its tensors' digests."""
    asked = tiny_prompts()
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        tell(f"capture {model}", done, len(asked))

    _say(f"capture the tiny {model} while it generates {TOKENS} tokens for {len(asked)} prompts")
    tell(f"capture {model}", 0, len(asked))
    job = Job(generation=Generation(tokens=TOKENS), progress=advance)
    capture_tiny(model, out / model, job, asked)
    return hashlib.sha256((out / model / DIGESTS).read_bytes()).hexdigest()


def _judge(out: Path, ledger: Ledger, tell: Tell) -> dict[str, RunReport]:
    """Everything that is not timed, side by side; the runs of those that no gate should pass.

    Of the others only the gates: their runs use what passed here again.
    """
    rejected = [one.file for one in CANDIDATES if not one.promoted_tokens]
    others = [OPENING, *(one.file for one in CANDIDATES if one.promoted_tokens)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = {file: pool.submit(_run, out, file, ledger, tell) for file in rejected}
        gates = [pool.submit(_gates, out, file, ledger, tell) for file in others]
        for judged in gates:
            judged.result()
        return {file: judged.result() for file, judged in runs.items()}


def _gates(out: Path, name: str, ledger: Ledger, tell: Tell) -> None:
    file = load_candidate_file(out / "candidates" / f"{name}.toml")
    _say(f"judge {file.candidate.name}")
    judge_candidate(file, ledger, progress=_telling(file.candidate.name, tell))


def _run(out: Path, name: str, ledger: Ledger, tell: Tell, *, open_lane: bool = False) -> RunReport:
    file = load_candidate_file(out / "candidates" / f"{name}.toml")
    _say(f"run {file.candidate.name}" + (" and open its lanes" if open_lane else ""))

    return run_candidate(
        file,
        ledger,
        author=AUTHOR,
        progress=_telling(file.candidate.name, tell),
        resume=True,
        open_lane=open_lane,
    )


def _telling(name: str, tell: Tell) -> Tell:
    return lambda what, done, total: tell(f"{name}: {what}", done, total)


def _say(text: str) -> None:
    """One line on stderr, so that a log shows the steps where no progress bar can."""
    console(stderr=True).print(text, markup=False)
