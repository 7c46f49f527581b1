"""The records commands as a user meets them."""

import json

import pytest
from typer.testing import CliRunner

from bitgate.records.cli import build_app
from bitgate.records.errors import BitgateError, Inconclusive, LedgerBroken, UsageError
from bitgate.records.policy import PromotionRefused

LANE = "cpu/moe_experts/experts=8,hidden=128,intermediate=64,tokens=64,top_k=2/bfloat16"


class Agreeing:
    def evidence(self, record, ledger):
        return ()

    def effect(self, record):
        return "FASTER"


@pytest.fixture
def run(ledger):
    """Run a command on the ledger; a BitgateError comes out as it is raised."""
    app = build_app(Agreeing)

    def invoke(*arguments: str) -> str:
        command = [*arguments]
        if arguments[0] != "schema" and "--ledger" not in arguments:
            command += ["--ledger", str(ledger.root)]
        result = CliRunner().invoke(app, command)
        if isinstance(result.exception, BitgateError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


@pytest.fixture
def story(ledger, evidence, make) -> dict[str, str]:
    """An opening record, a faster one and a rejected one; their ids."""
    writer = ledger.writer("a")
    loop = make["candidate"]("loop")
    lane = make["lane"]()
    timed = {
        "baseline": loop,
        "measurement": make["measurement"](),
        "effect": "FASTER",
        "created_at": "2999-01-31T12:00:00Z",
    }
    rows = {
        "lane": lane,
        "loop": make["record"](evidence, candidate=loop),
        "fast": make["record"](evidence, **timed),
        "bad": make["record"](
            evidence,
            candidate=make["candidate"]("stale"),
            outcome="rejected",
            reason="reads [old] rows",
        ),
    }
    return {name: writer.append(row).id for name, row in rows.items()}


def test_the_whole_story(run, story, ledger):
    assert "opening-baseline" in run("promote", story["loop"][:8], "--first", "--author", "ann")
    assert "FASTER than loop" in run("promote", story["fast"], "--author", "ann")
    rejected = ("reject", story["bad"], "--reason", "history dependent", "--author", "ann")
    assert "rejected" in run(*rejected)
    listing = run("list")
    for text in ("loop", "sorted-once", "stale", "history dependent", "2010 -> 1010", "1.990590"):
        assert text in listing
    assert LANE in listing
    best = json.loads(run("best", LANE, "--json"))
    assert best["id"] == story["fast"]
    assert best["decisions"][0]["kind"] == "promoted"
    assert "4 rows" not in run("verify")
    assert json.loads(run("verify", "--strict", "--json"))["ok"] is True


def test_listing_as_json_and_by_lane(run, story):
    rows = json.loads(run("list", "--json"))["records"]
    assert [row["id"] for row in rows] == [story["loop"], story["fast"], story["bad"]]
    assert rows[1]["candidate_ns"] == 1010
    empty = {"records": [], "simulations": []}
    assert json.loads(run("list", "--json", "--lane", "elsewhere")) == empty
    assert "no records" in run("list", "--lane", "elsewhere")


def test_showing_one_record(run, story):
    text = run("show", story["fast"][:10])
    for part in ("G12", "40/40", "p <= 0.0722 per call (40 trials, 0.95)", "torch 2.13.0"):
        assert part in text
    shown = json.loads(run("show", story["fast"], "--json"))
    assert shown["record"]["verdict"]["kind"] == "exact"
    assert "reads [old] rows" in run("show", story["bad"])
    with pytest.raises(UsageError, match="no record or simulation's id begins"):
        run("show", "zzz")


def test_promotion_lists_what_is_missing(run, story):
    with pytest.raises(PromotionRefused, match="baseline: the lane has none yet"):
        run("promote", story["fast"], "--author", "ann")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bound", "expected 'REQUIREMENT; UNTIL; REASON'"),
        ("bound; tomorrow; because", "expected a UTC time"),
        ("bound; 2999-01-01T00:00:00Z; ", "reason is empty"),
    ],
)
def test_a_malformed_waiver_is_a_usage_error(run, story, text, message):
    with pytest.raises(UsageError, match=message):
        run("promote", story["loop"], "--first", "--waive", text)


def test_a_needless_waiver_is_refused(run, story):
    with pytest.raises(PromotionRefused, match="'bound' is not missing"):
        run("promote", story["loop"], "--first", "--waive", "bound; 2999-01-01T00:00:00Z; why not")


def test_a_rejection_needs_a_reason(run, story):
    with pytest.raises(UsageError, match="--reason is empty"):
        run("reject", story["bad"], "--reason", " ")


def test_a_rejection_says_which_record_stands_afterwards(run, story):
    def reject(name: str, *options: str) -> str:
        return run("reject", story[name], "--reason", "wrong", "--author", "ann", *options)

    run("promote", story["loop"], "--first", "--author", "ann")
    run("promote", story["fast"], "--author", "ann")
    assert f"in the lane stands sorted-once ({story['fast'][:12]})" in reject("bad")
    assert f"in the lane stands loop ({story['loop'][:12]})" in reject("fast")
    last = json.loads(reject("loop", "--json"))
    assert (last["kind"], last["record_id"], last["standing"]) == ("rejected", story["loop"], None)


def test_a_rejection_that_closes_the_lane_says_so(run, story):
    run("promote", story["loop"], "--first", "--author", "ann")
    closed = run("reject", story["loop"], "--reason", "wrong", "--author", "ann")
    assert "no record stands in the lane now; `bitgate records promote --first`" in closed


def test_verify_exit_codes(run, ledger, story, tmp_path):
    run("verify")
    file = ledger.root / "a" / "0001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"stale", b"fresh"))
    with pytest.raises(LedgerBroken, match="row: row 4 was edited") as caught:
        run("verify", "--json")
    assert caught.value.exit_code == 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(Inconclusive, match="zero rows verify nothing"):
        run("verify", "--ledger", str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="no ledger at"):
        run("verify", "--ledger", str(tmp_path / "nowhere"))


def test_decisions_never_create_a_ledger(run, tmp_path):
    with pytest.raises(UsageError, match="no ledger at"):
        run("reject", "abc", "--reason", "x", "--ledger", str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


def test_a_noted_head_finds_a_cut_chain(run, story, ledger):
    noted = run("head").strip()
    assert noted.split()[:2] == ["a", "4"]
    assert json.loads(run("head", "--json"))[0]["count"] == 4
    run("verify", "--against", noted)
    with pytest.raises(LedgerBroken, match="the noted head names another row"):
        run("verify", "--against", noted.replace(" 4 ", " 3 "))


def test_best_names_the_lanes_that_there_are(run, story):
    with pytest.raises(UsageError, match="lanes with one: none"):
        run("best", LANE)
    run("promote", story["loop"], "--first")
    with pytest.raises(UsageError, match="lanes with one: cpu/moe_experts"):
        run("best", "elsewhere")


def test_the_schema_is_json(run):
    assert json.loads(run("schema"))["title"] == "One line of a bitgate ledger"


def test_the_report_is_written(run, story, tmp_path):
    out = tmp_path / "deep" / "report.html"
    assert str(out) in run("report", "--out", str(out))
    assert out.stat().st_size > 5_000
    assert json.loads(run("report", "--out", str(out), "--json")) == {"report": str(out)}


def test_a_long_reason_is_shown_whole_only_where_one_record_is_shown(run, ledger, evidence, make):
    reason = "G4: mismatch\n  out[0]: expected 3f80\n  reproduce with this"
    entry = ledger.writer("a").append(make["record"](evidence, outcome="rejected", reason=reason))
    listed = run("list")
    assert "G4: mismatch ..." in listed
    assert "expected 3f80" not in listed
    shown = run("show", entry.id)
    assert "expected 3f80" in shown
    assert "reproduce with this" in shown
    assert json.loads(run("list", "--json"))["records"][0]["reason"] == reason
