"""The report page: complete, self-contained, readable without colour, and never a script's host."""

import json
import re
from dataclasses import replace

import pytest

from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.lanes import lane_id, make_lane
from bitgate.records.ledger import Ledger
from bitgate.records.ops import OPERATORS
from bitgate.records.report import render
from bitgate.records.report.charts import history
from bitgate.records.report.maps import parity_map, read_cases
from bitgate.records.types import Decision, GateResult, Mismatch, Workload
from bitgate.records.views import record_views


def cases(*rows):
    keys = ("subject", "step", "class")
    listed = [dict(zip(keys, row, strict=True)) | {"tensors": []} for row in rows]
    return json.dumps({"schema": 1, "gate": "G9", "cases": listed}).encode()


STEPS = cases(
    ("r0t1:attn_hc/L0/c0/decode/r0", [0, 1], "equal"),
    ("r0t1:mlp.experts/L0/c0/decode/r0", [0, 1], "culprit"),
    ("r0t2:attn_hc/L0/c0/decode/r0", [0, 2], "victim"),
    ("without a step", None, "equal"),
)


@pytest.fixture
def filled(ledger, make) -> Ledger:
    writer = ledger.writer("a")
    evidence = ledger.put(STEPS, "application/json")
    loop = make["candidate"]("loop")
    opening = writer.append(make["record"](evidence, candidate=loop))
    fast = writer.append(
        make["record"](evidence, baseline=loop, measurement=make["measurement"](), effect="FASTER")
    )
    verdict = make["verdict"](evidence)
    mismatch = Mismatch(
        tensor="out",
        kind="bits",
        detail="",
        first_index=(3, 4),
        expected_bits="3f80",
        actual_bits="3f81",
        differing=1,
        total=8,
        max_ulp=1,
    )
    failed = GateResult(
        gate="G9",
        version=1,
        outcome="fail",
        reason="bits differ",
        compared=3,
        expected=4,
        finding="deterministic-mismatch",
        culprit="mlp.experts/L0/c0/decode/r0",
        mismatch=mismatch,
        evidence=evidence,
    )
    bad = writer.append(
        make["record"](
            evidence,
            candidate=make["candidate"]("<script>alert(1)</script>"),
            verdict=replace(
                verdict, kind="deterministic-mismatch", results=(*verdict.results[:3], failed)
            ),
            outcome="rejected",
            reason='G9 & "bits" <b>differ</b>',
            reopen_requires=("captured tensors",),
        )
    )
    decided = ((opening, "opening-baseline"), (fast, "promoted"), (bad, "rejected"))
    for entry, kind in decided:
        writer.append(
            Decision(
                created_at="2026-01-31T13:00:00Z",
                kind=kind,
                lane=entry.body.lane,
                record_id=entry.id,
                policy=1,
                author="ann",
                reason=entry.body.reason,
            )
        )
    return ledger


@pytest.fixture
def page(filled, tmp_path, parse):
    render(filled, tmp_path / "report.html")
    return parse((tmp_path / "report.html").read_text("utf-8"))


def test_every_part_is_there(page):
    for text in (
        "The ledger holds: 6 rows of 1 writer,",
        "mlp.experts/L0/c0/decode/r0",
        "first culprit",
        "expected 3f80, got 3f81; 1 of 8 elements differ, at most 1 ULP",
        "40/40",
        "p <= 0.0722 per call (40 trials, 0.95)",
        "Reopen requires: captured tensors.",
        "2,010 ns",
        "median ratio 1.990590",
        "Environments",
        "torch 2.13.0",
        "20 rounds in 5 processes",
    ):
        assert text in page.text, text


def test_it_needs_nothing_from_outside(filled, page, tmp_path):
    text = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"(?:https?:)?//[a-z]", text)
    assert "url(" not in text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.elements}
    references = [attributes["href"] for attributes in page.all("a")]
    anchors = {attributes.get("id") for _, attributes in page.elements}
    assert references
    assert {reference.removeprefix("#") for reference in references} <= anchors


def test_text_of_the_ledger_is_never_markup(page):
    assert "<script>alert(1)</script>" in page.text
    assert 'G9 & "bits" <b>differ</b>' in page.text
    assert "b" not in {tag for tag, _ in page.elements}


def test_it_can_be_read_without_colour_and_without_a_mouse(page):
    assert len(page.all("caption")) == len(page.all("table"))
    for drawing in page.all("svg"):
        assert drawing["role"] in {"img", "group"}
        assert drawing["aria-label"]
    assert all("scope" in attributes for attributes in page.all("th"))
    scrolling = [a for a in page.all("div") if a.get("class") == "scroll"]
    assert scrolling
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in scrolling)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.all("html")[0]["lang"] == "en"


def test_the_parity_map_shows_a_letter_for_each_class(page):
    maps = [a for a in page.all("table") if a.get("class") == "map"]
    assert len(maps) == 5 + 5 + 4  # each gate of each record stored this evidence
    cells = [a for a in page.all("td") if a.get("class") == "culprit"]
    assert cells
    title = "mlp.experts/L0/c0/decode/r0, request 0, token 1: culprit"
    assert {a["title"] for a in cells} == {title}


def test_history_marks_what_was_promoted_and_what_was_rejected(filled, page):
    (chart,) = [a for a in page.all("svg") if a["role"] == "group"]
    assert "3 records, 1 promoted, 1 rejected" in chart["aria-label"]
    drawn = history(record_views(filled))
    assert [mark.kind for mark in drawn.marks] == ["baseline", "promoted", "rejected"]
    opened, promoted, rejected = drawn.marks
    assert promoted.y > opened.y  # lower on the page: less time
    assert rejected.y > promoted.y  # on the floor: nothing was timed
    assert drawn.steps.count("V") == 2


def test_the_same_ledger_gives_the_same_bytes(filled, tmp_path):
    render(filled, tmp_path / "one.html")
    render(filled, tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_a_broken_ledger_says_so(filled, tmp_path, parse):
    (filled.root / "a" / "head.json").unlink()
    render(filled, tmp_path / "report.html")
    text = parse((tmp_path / "report.html").read_text("utf-8")).text
    assert "The ledger is broken. head: head.json" in text
    assert "The ledger holds" not in text


def test_missing_and_unreadable_evidence_is_said(ledger, make, tmp_path, parse):
    evidence = ledger.put(b"not json", "application/json")
    ledger.writer("a").append(make["record"](evidence))
    render(ledger, tmp_path / "report.html")
    assert "Expecting value" in (tmp_path / "report.html").read_text("utf-8")
    (ledger.root / "objects" / evidence.sha256[:2] / evidence.sha256).unlink()
    render(ledger, tmp_path / "report.html")
    text = parse((tmp_path / "report.html").read_text("utf-8")).text
    assert "The ledger is broken. object" in text
    assert "is missing" in text


def test_an_empty_ledger_is_never_called_sound(ledger, tmp_path, parse):
    ledger.root.mkdir()
    render(ledger, tmp_path / "report.html")
    text = parse((tmp_path / "report.html").read_text("utf-8")).text
    assert "The ledger is empty. Zero rows verify nothing." in text
    assert "The ledger holds" not in text


def test_errors_are_clear(ledger, tmp_path):
    with pytest.raises(UsageError, match="no ledger at"):
        render(Ledger(tmp_path / "nowhere"), tmp_path / "report.html")
    ledger.root.mkdir()
    with pytest.raises(EnvironmentUnfit, match="cannot write the report"):
        render(ledger, tmp_path)


def test_maps_say_how_much_they_show():
    many = [(f"r0t{step}:a/L0/c0/decode/r0", [0, step], "equal") for step in range(100)]
    drawn = parity_map(read_cases(cases(*many)))
    assert (drawn.shown, drawn.total_steps, drawn.counts) == (64, 100, (("equal", 100),))
    assert parity_map(read_cases(cases(("x", None, "equal")))) is None
    odd = parity_map(read_cases(cases(("x", [0, 1], "melted"))))
    assert odd.rows[0][1][0].letter == "?"
    with pytest.raises(ValueError, match="lists no cases"):
        read_cases(b"[]")


LONG = "\n G4: deterministic-mismatch <b>\n  out[0]: expected 3f80\n  run it again\n"


def test_a_long_reason_is_folded_to_its_first_line(ledger, evidence, make, tmp_path, parse):
    writer = ledger.writer("a")
    writer.append(make["record"](evidence, outcome="rejected", reason=LONG))
    writer.append(make["record"](evidence, outcome="rejected", reason="short"))
    render(ledger, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    page = parse(html)
    assert "<summary>G4: deterministic-mismatch &lt;b&gt; ...</summary>" in html
    assert "out[0]: expected 3f80 run it again" in page.text
    assert len(page.all("pre")) == 1
    assert "<td>short</td>" in html


def test_a_lane_without_times_has_no_chart_and_says_so(ledger, filled, make, tmp_path, parse):
    render(filled, tmp_path / "timed.html")
    charts = [
        svg["aria-label"]
        for svg in parse((tmp_path / "timed.html").read_text("utf-8")).all("svg")
        if svg["aria-label"].startswith("Record history")
    ]
    assert len(charts) == 1
    untimed = next(filled.records()).body
    filled.writer("a").append(replace(untimed, lane="another"))
    render(filled, tmp_path / "both.html")
    page = parse((tmp_path / "both.html").read_text("utf-8"))
    drawn = [svg["aria-label"] for svg in page.all("svg")]
    assert [name for name in drawn if name.startswith("Record history")] == charts
    assert page.text.count("Nothing was timed in this lane, so there is no chart.") == 1


def test_lanes_of_every_operator_are_shown(ledger, evidence, make, tmp_path, parse):
    writer = ledger.writer("a")
    lanes = []
    for operator in OPERATORS:
        axes = tuple((name, 2) for name, _ in operator.axes)
        workload = Workload(op=operator.name, axes=axes, dtype="bfloat16")
        candidate = make["candidate"](f"my-{operator.name}", op=operator.name)
        lanes.append(lane_id("cpu", workload))
        writer.append(make_lane("cpu", workload))
        writer.append(
            make["record"](
                evidence,
                lane=lanes[-1],
                candidate=candidate,
                baseline=candidate,
                workload=workload,
                measurement=make["measurement"](),
                effect="FASTER",
            )
        )
    render(ledger, tmp_path / "report.html")
    page = parse((tmp_path / "report.html").read_text("utf-8"))
    assert len(lanes) > 10
    for lane, operator in zip(lanes, OPERATORS, strict=True):
        assert f"{lane} No record stands in this lane. Median latency in ns" in page.text
        assert f"my-{operator.name}: passed, 1,010 ns" in page.text
