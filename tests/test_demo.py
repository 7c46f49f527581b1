"""The demo: it never overwrites, and twice in a row it tells the same story."""

import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitgate.demo import service, story
from bitgate.demo.endings import Expectation, ended
from bitgate.parity.bundle import Bundle
from bitgate.parity.compare import compare_bundles
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.types import Workload
from bitgate.sim.cli import app as sim_app


def test_what_no_demo_wrote_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="empty directory or an earlier demo"):
        story.run(tmp_path, as_json=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="got a file"):
        story.run(tmp_path / "out", as_json=True)


def test_an_earlier_demo_is_moved_aside(tmp_path):
    out = tmp_path / "out"
    for earlier in range(3):
        story._make_room(out)
        (out / "mark").write_text(str(earlier))
    assert (tmp_path / "out-1" / "mark").read_text() == "0"
    assert (tmp_path / "out-2" / "mark").read_text() == "1"
    assert not (out / "ledger").exists()


def test_every_candidate_of_the_demo_is_a_valid_file(tmp_path):
    story._make_room(tmp_path / "out")
    files = sorted((tmp_path / "out" / "candidates").glob("*.toml"))
    assert [path.stem for path in files] == sorted(
        ["experts_loop", *(expected.file for expected in story.CANDIDATES)]
    )
    for path in files:
        module = load_candidate_file(path).candidate.impl.partition(":")[0]
        assert (path.parent / f"{module}.py").is_file()


@pytest.mark.parametrize(
    ("finding", "mismatch", "expected"),
    [
        ("deterministic-mismatch", "bits", True),
        ("deterministic-mismatch", None, False),  # it raised: no bits were compared
        ("nondeterministic", "bits", False),
        ("exact", "bits", False),
    ],
)
def test_a_rejection_for_another_reason_is_not_the_expected_one(finding, mismatch, expected):
    failure = SimpleNamespace(gate="G4", reason="r", mismatch=mismatch)
    verdict = SimpleNamespace(kind=finding, first_failure=failure, results=(), passed=False)
    report = SimpleNamespace(candidate=SimpleNamespace(name="x"), rows=(), verdict=verdict)
    wanted = Expectation(file="x", findings=("deterministic-mismatch",))
    assert ended(report, wanted).as_expected is expected


def test_a_missing_promotion_is_not_the_expected_end():
    verdict = SimpleNamespace(kind="exact", first_failure=None, results=(), passed=True)
    row = SimpleNamespace(
        ending="passed",
        reason="not faster",
        effect=None,
        workload=Workload(op="moe_experts", axes=(("tokens", 16),), dtype="bfloat16"),
    )
    report = SimpleNamespace(candidate=SimpleNamespace(name="x"), rows=(row,), verdict=verdict)
    wanted = Expectation(file="x", findings=("exact",), promoted_tokens=(16,))
    assert not ended(report, wanted).as_expected
    row.ending = "promoted"
    assert ended(report, wanted).as_expected


def promoted(candidate: dict) -> list[str]:
    """Where it was promoted; elsewhere it may end slower or undecided, as the machine has it."""
    return [workload for workload, _, ending in candidate["endings"] if ending == "promoted"]


@pytest.mark.slow
def test_twice_in_a_row_it_tells_the_same_story(tmp_path, capsys):
    facts = []
    for _ in range(2):
        code = story.run(tmp_path / "out", as_json=True)
        facts.append(json.loads(capsys.readouterr().out))
        assert code == 0, facts[-1]
    first, second = facts
    assert first["digests_sha256"] == second["digests_sha256"]
    for one, other in zip(first["candidates"], second["candidates"], strict=True):
        assert one["finding"] == other["finding"]
        assert promoted(one) == promoted(other)
    for model in story.MODELS:
        bundles = [Bundle.open(tmp_path / name / model) for name in ("out-1", "out")]
        assert compare_bundles(*bundles).verdict == "equal"
    for name in ("out-1", "out"):
        report = Ledger(tmp_path / name / "ledger").verify(strict=True)
        assert report.ok, report.breaks
        page = (tmp_path / name / "report.html").read_text()
        assert "experts-sorted" in page
        assert "azure-slice-standing" in page
    assert_worth_something(second["simulations"])
    assert_repeats(tmp_path / "out", tmp_path / "again", capsys)


def assert_worth_something(simulations: dict) -> None:
    both = [simulations[basis] for basis in ("replaced", "standing")]
    assert all(found["audit"]["passed"] for found in both)
    before, after = (Decimal(found["metrics"]["output_tokens_per_second"]) for found in both)
    assert before < after


def assert_repeats(out: Path, again: Path, capsys) -> None:
    """The command that the demo names gives the same bytes once more."""
    with pytest.raises(SystemExit) as ended:
        sim_app(["run", *service.again(out).split(), "--out", str(again)])
    assert ended.value.code == 0
    capsys.readouterr()
    for name in ("summary.json", "requests.csv", "steps.csv"):
        assert (again / name).read_bytes() == (out / "simulation/standing" / name).read_bytes()
