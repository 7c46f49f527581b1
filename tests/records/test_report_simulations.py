"""Simulations as people see them: on the page and in the terminal, from stored summaries only."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from bitgate.records.cli import build_app
from bitgate.records.errors import LedgerBroken
from bitgate.records.report import render
from bitgate.records.report.simulated import comparisons, simulation_pages
from bitgate.records.summaries import SummaryError, milliseconds, percent, read_summary


@pytest.fixture
def stored(bench, make):
    """A function that stores a simulation of the lane that `bench` opened."""
    bench.open()

    def store(edit=None, *, name="slice", row=None, **changes):
        summary = make["summary"]((bench.opening,), **changes)
        if edit is not None:
            edit(summary)
        evidence = bench.ledger.put(json.dumps(summary).encode(), "application/json")
        simulation = make["simulation"](evidence, (bench.opening,), name=name)
        return bench.writer.append(replace(simulation, **(row or {})))

    return store


@pytest.fixture
def page(bench, tmp_path, parse):
    def page():
        render(bench.ledger, tmp_path / "report.html")
        return parse((tmp_path / "report.html").read_text("utf-8"))

    return page


def test_everything_that_a_summary_says_is_on_the_page(stored, page, bench):
    entry = stored()
    shown = page()
    for text in (
        "CPU timings of node lab-1 (CPU).",
        "CPU timings of node lab-1 (CPU): they say nothing about another device",
        "tiny-moe: Qwen3MoeForCausalLM, bfloat16",
        "256 requests of slice.csv with 262,144 prompt and 54,321 output tokens",
        "block_size 16, max_num_active_seqs null, max_num_seqs 128",
        "standing, regime warm, not extrapolated; peaks: bytes_per_second 10000000000",
        "passed: findings [], requests 256",
        "shares of the simulated busy time: 25 % exact, 60 % interpolated, 15 % assumed.",
        "1,000.25 output tok/s over 132,000.000 ms",
        "TTFT 256 120.000 ms 100.000 ms 200.000 ms 400.000 ms",
        "TPOT 256 20.000 ms 19.000 ms 30.000 ms 41.000 ms",
        "E2E 256 4,000.000 ms 3,900.000 ms 6,000.000 ms 9,000.000 ms",
        "moe_experts 2,000 900.000 ms 90 % 27.78 % exact, 72.22 % interpolated",
        "gemm 8,000 100.000 ms 10 % 100 % assumed none",
        read_summary(bench.ledger, entry).digest,
        entry.id,
    ):
        assert text in shown.text, text
    assert {"href": f"#record-{bench.opening[:12]}", "class": "id"} in shown.all("a")
    assert "with other prices" not in shown.text


def test_whose_timings_these_are_is_said_first(stored, page):
    def cuda(summary):
        summary["prices"] |= {"device": "cuda", "device_name": "H800"}

    def guessed(summary):
        zero = dict.fromkeys(("exact", "interpolated", "extrapolated"), "0.000000")
        summary["coverage"] |= zero | {"assumed": "1.000000"}

    stored(cuda, name="a", row={"device": "cuda"})
    stored(guessed, name="b", row={"coverage": (("assumed", "1"),)})
    shown = page()
    assert "a cuda timings of node lab-1 (H800)." in shown.text
    assert "b Nothing here was measured: every price is assumed." in shown.text


def test_the_bar_has_the_shares_and_says_them(stored, page):
    stored()
    shown = page()
    (bar,) = [svg for svg in shown.all("svg") if svg.get("class") == "bar"]
    assert bar["aria-label"] == "Coverage of slice: 25 % exact, 60 % interpolated, 15 % assumed"
    assert bar["role"] == "img"
    parts = [part for part in shown.all("rect") if part["class"] in ("exact", "interpolated")]
    width = float(bar["viewbox"].split()[2])
    assert [float(part["width"]) / width for part in parts] == [0.25, 0.6]
    assert [float(part["x"]) / width for part in parts] == [0, 0.25]


def test_what_stands_is_put_beside_what_it_replaced(stored, page):
    stored(name="older", scale=8)
    stored(name="before", basis="replaced", scale=4)
    stored(name="after", scale=2)
    shown = page()
    assert shown.text.count("with other prices") == 1
    assert "output tok/s 250.25 500.25 1.999" in shown.text
    assert "TTFT p50 400.000 ms 200.000 ms 2.000" in shown.text
    assert "E2E mean 16,000.000 ms 8,000.000 ms 2.000" in shown.text
    assert "TPOT p99 164.000 ms 82.000 ms 2.000" in shown.text


def test_one_basis_is_compared_with_its_own_past(stored, bench):
    stored(name="first", scale=4)
    stored(name="second", scale=2)
    stored(name="third", scale=1)
    (found,) = comparisons(simulation_pages(bench.ledger))
    assert (found.before.row.name, found.after.row.name) == ("first", "third")


def change(*path, to):
    def edit(summary):
        place = summary
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        change("workload", "sha256", to="0" * 64),
        change("engine", "max_num_seqs", to=64),
        change("model", "config_sha256", to="0" * 64),
        change("prices", "regime", to="cold"),
        change("prices", "allow_extrapolation", to=True),
        change("prices", "peaks", to=None),
    ],
    ids=["workload", "engine", "model", "regime", "extrapolation", "peaks"],
)
def test_what_differs_in_more_than_prices_is_not_compared(stored, bench, edit):
    stored(name="before", basis="replaced", scale=4)
    stored(name="after")
    assert len(comparisons(simulation_pages(bench.ledger))) == 1
    stored(edit, name="another", scale=3)
    (found,) = comparisons(simulation_pages(bench.ledger))
    assert found.after.row.name == "after"


def test_equal_prices_are_no_comparison(stored, bench):
    stored(name="one")
    stored(name="two")
    assert comparisons(simulation_pages(bench.ledger)) == []


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (change("schema", to="bitgate-sim/2"), "not of bitgate-sim/1: schema"),
        (change("metrics", "ttft_ns", "p50", to="soon"), "metrics.ttft_ns.p50"),
        (change("metrics", "ttft_ns", "p90", to=1.5), "metrics.ttft_ns.p90"),
        (change("metrics", "output_tokens_per_second", to="NaN"), "output_tokens_per_second"),
        (lambda summary: summary["metrics"].pop("tpot_ns"), "metrics.tpot_ns"),
        (lambda summary: summary.pop("digest"), "digest"),
        (change("model", "name", to="huge"), "the model of the summary is not that of the row"),
        (change("prices", "device", to="cuda"), "the device of the summary"),
        (change("prices", "node", to="lab-2"), "the node of the summary"),
        (change("coverage", "exact", to="0.950000"), "the coverage of the summary"),
        (lambda summary: summary["prices"]["ops"].pop(0), "the sources of the summary"),
    ],
)
def test_a_summary_that_says_something_else_is_never_shown_as_good(stored, page, bench, edit, says):
    entry = stored(edit)
    with pytest.raises(SummaryError, match=says):
        read_summary(bench.ledger, entry)
    shown = page()
    assert "Its summary cannot be shown." in shown.text
    assert says in shown.text
    assert "1,000.25 output tok/s" not in shown.text


def test_a_summary_that_is_gone_is_said(stored, page, bench):
    entry = stored()
    sha256 = entry.body.summary.sha256
    (bench.ledger.root / "objects" / sha256[:2] / sha256).unlink()
    shown = page()
    assert "The ledger is broken. object" in shown.text
    assert "Its summary cannot be shown." in shown.text


def test_a_failed_audit_and_times_that_nobody_had_are_said(stored, page):
    def edit(summary):
        summary["audit"] = {"passed": False, "findings": ["tokens: 3 lost"]}
        nothing = dict.fromkeys(("mean", "p50", "p90", "p99"))
        summary["metrics"]["tpot_ns"] = {"count": 0, **nothing}

    stored(edit)
    shown = page()
    assert 'NOT PASSED: findings ["tokens: 3 lost"]' in shown.text
    assert "TPOT 0 none none none none" in shown.text


def test_names_of_a_summary_are_never_markup(stored, page):
    evil = "<script>alert(1)</script>"
    stored(change("workload", "trace", to=evil), name=evil)
    shown = page()
    assert evil in shown.text
    assert not shown.all("script")


def test_the_page_stays_readable_without_colour_and_mouse(stored, page):
    stored(name="before", basis="replaced", scale=2)
    stored(name="after")
    shown = page()
    assert len(shown.all("caption")) == len(shown.all("table"))
    assert all("scope" in attributes for attributes in shown.all("th"))
    assert all(one["aria-labelledby"] in shown.ids for one in shown.all("article"))
    assert len(set(shown.ids)) == len(shown.ids)
    targets = {attributes["href"].removeprefix("#") for attributes in shown.all("a")}
    assert targets <= set(shown.ids)


def test_listing_and_showing(stored, bench):
    entry = stored()

    def run(*arguments):
        app = build_app(lambda: None)
        done = CliRunner().invoke(app, [*arguments, "--ledger", str(bench.ledger.root)])
        if done.exception is not None:
            raise done.exception
        return done.stdout

    listed = run("list")
    assert "1000.250000" in listed
    assert "25 % exact, 60 % interpolated, 15 % assumed" in listed
    (row,) = json.loads(run("list", "--json"))["simulations"]
    assert row["id"] == entry.id
    assert row["records"] == 1
    assert "simulations" not in run("list", "--lane", bench.record().lane)
    shown = run("show", entry.id[:9])
    for text in ("CPU timings of node lab-1", "TTFT", "120.000 ms", bench.opening[:12], "tok/s"):
        assert text in shown, text
    whole = json.loads(run("show", entry.id, "--json"))
    assert whole["simulation"]["model"] == "tiny-moe"
    assert whole["summary"]["metrics"]["makespan_ns"] == 132_000_000_000
    sha256 = entry.body.summary.sha256
    (bench.ledger.root / "objects" / sha256[:2] / sha256).write_bytes(b"{}")
    assert "was changed" in run("list")
    with pytest.raises(LedgerBroken, match="was changed"):
        run("show", entry.id)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        ("0", "0 %"),
        ("1", "100 %"),
        ("0.1", "10 %"),
        ("0.123456", "12.35 %"),
        ("0.000001", "below 0.01 %"),
        ("0.999999", "above 99.99 %"),
    ],
)
def test_rounding_never_makes_all_or_nothing(share, text):
    assert percent(Decimal(share)) == text


def test_milliseconds_are_exact_to_the_third_decimal():
    assert milliseconds(1_234_567_890_123) == "1,234,567.890 ms"
    assert milliseconds("1500.500000") == "0.002 ms"
    assert milliseconds(None) == "none"
