"""A simulation in the ledger: it says what it was priced from, and that is there."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bitgate.records.base import InvariantError
from bitgate.records.chain import HEAD, Header, make_head, write_entry
from bitgate.records.clock import utc_now
from bitgate.records.codec import SCHEMA, canonical
from bitgate.records.errors import LedgerBroken, UsageError
from bitgate.records.policy import reject
from bitgate.records.references import broken_names
from bitgate.records.types import Evidence
from bitgate.records.verify import walk

NOBODY = "f" * 64
GUESS = (("assumed", "1.0"),)
SUMMARY = Evidence(sha256="a" * 64, size_bytes=3, media="application/json")


@pytest.fixture
def summary(ledger) -> Evidence:
    return ledger.put(b'{"schema":"bitgate-sim/1"}', "application/json")


@pytest.fixture
def opened(bench) -> str:
    """The record that opened the lane of writer `a`."""
    bench.open()
    return bench.opening


def plant(ledger, simulation, writer="a") -> None:
    """Append past the writer's own checks, with every hash and the head as they have to be."""
    (head,) = [head for head in ledger.heads() if head.writer == writer]
    header = Header(
        created_at=utc_now(),
        kind="simulation",
        prev=head.sha256,
        schema=SCHEMA,
        seq=head.count + 1,
        writer=writer,
    )
    line, entry = write_entry(simulation, header)
    with (ledger.root / writer / "0001.jsonl").open("ab") as stream:
        stream.write(line + b"\n")
    new = make_head(entry.seq, entry.sha256, writer)
    (ledger.root / writer / HEAD).write_bytes(canonical(new) + b"\n")


def the_break(ledger) -> tuple[str, str]:
    (found,) = ledger.verify().breaks
    assert found.line is not None
    return found.kind, found.message


# --- what the value forbids ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"coverage": ()}, "adds up to 0; expected exactly 1"),
        ({"coverage": (("exact", "0.5"), ("assumed", "0.4"))}, "adds up to 9/10"),
        ({"coverage": (("exact", "1.1"), ("assumed", "-0.1"))}, "assumed is -0.1"),
        ({"coverage": (("exact", "1"), ("exact", "0"))}, "at most once"),
        ({"coverage": (("guessed", "1"),)}, "coverage names each of exact, interpolated"),
        ({"coverage": (("exact", "all"),)}, "expected a decimal string"),
        ({"coverage": (("exact", "1e-400"), ("assumed", "1"))}, "adds up to"),
        ({"record_ids": (NOBODY, NOBODY)}, "named twice"),
        ({"record_ids": ("short",)}, "expected a SHA-256"),
        ({"record_ids": ()}, "no record is named, and not everything is assumed"),
        ({"record_ids": (), "coverage": (("exact", "1"), ("assumed", "0"))}, "no record is named"),
        ({"name": " "}, "name is empty"),
        ({"device": ""}, "device is empty"),
        ({"node": ""}, "node is empty"),
        ({"model": ""}, "model is empty"),
        ({"created_at": "today"}, "expected a UTC time"),
    ],
)
def test_what_no_simulation_says(make, changes, says):
    plain = make["simulation"](SUMMARY, (NOBODY,))
    with pytest.raises(InvariantError, match=says):
        replace(plain, **changes)


def test_what_a_simulation_may_say(make):
    thirds = (("exact", "0.333333"), ("interpolated", "0.333333"), ("assumed", "0.333334"))
    assert make["simulation"](SUMMARY, (NOBODY,), coverage=thirds).coverage == thirds
    guess = replace(make["simulation"](SUMMARY, (NOBODY,)), record_ids=(), coverage=GUESS)
    assert guess.record_ids == ()
    none = (("exact", "1"), ("assumed", "0"))
    assert make["simulation"](SUMMARY, (NOBODY,), coverage=none).coverage == none


# --- appending -----------------------------------------------------------------------------------


def test_a_simulation_comes_back_and_verifies(ledger, bench, opened, summary, make):
    entry = bench.writer.append(make["simulation"](summary, (opened,)))
    assert list(ledger.simulations()) == [entry]
    assert entry.kind == "simulation"
    assert ledger.look_up(entry.id[:10]) == entry
    assert ledger.look_up(opened).id == opened
    with pytest.raises(UsageError, match="no record's id"):
        ledger.find(entry.id)
    with pytest.raises(UsageError, match="no record or simulation's id"):
        ledger.look_up(NOBODY)
    assert ledger.verify(strict=True).ok


def test_a_source_that_is_rejected_later_stays_what_the_prices_came_from(
    ledger, bench, opened, summary, make
):
    bench.writer.append(make["simulation"](summary, (opened,)))
    reject(bench.writer, opened, author="ann", reason="a better way to time it")
    assert ledger.verify().ok


def test_sources_may_lie_in_another_chain(ledger, bench, opened, summary, make):
    ledger.writer("b").append(make["simulation"](summary, (opened,)))
    assert ledger.verify().ok


@pytest.mark.parametrize("source", ["missing", "undecided", "rejected"])
def test_prices_that_nobody_accepted_are_not_written(ledger, bench, opened, summary, make, source):
    record = NOBODY if source == "missing" else bench.store(reason="another")
    if source == "rejected":
        reject(bench.writer, record, author="ann", reason="slow")
    says = "is in no chain" if source == "missing" else "was never promoted"
    before = len(list(ledger.entries()))
    with pytest.raises(UsageError, match=f"nothing was appended.*{record[:16]} {says}"):
        bench.writer.append_many([make["lane"](), make["simulation"](summary, (opened, record))])
    assert len(list(ledger.entries())) == before


def test_a_summary_that_is_not_there_is_not_written(ledger, bench, opened, make):
    with pytest.raises(LedgerBroken, match="missing"):
        bench.writer.append(make["simulation"](SUMMARY, (opened,)))
    assert list(ledger.simulations()) == []


# --- verifying -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["missing", "undecided", "rejected"])
def test_prices_that_nobody_accepted_are_a_named_break(
    ledger, bench, opened, summary, make, source
):
    record = NOBODY if source == "missing" else bench.store(reason="another")
    if source == "rejected":
        reject(bench.writer, record, author="ann", reason="slow")
    plant(ledger, make["simulation"](summary, (opened,)))
    assert ledger.verify(strict=True).ok
    plant(ledger, make["simulation"](summary, (opened, record)))
    kind, message = the_break(ledger)
    assert kind == "simulation"
    assert record[:16] in message
    assert ("in no chain" if source == "missing" else "never promoted") in message


def test_a_chain_that_vanished_is_found_by_a_simulation(ledger, bench, opened, summary, make):
    ledger.writer("b").append(make["simulation"](summary, (opened,)))
    shutil.rmtree(ledger.root / "a")
    kind, message = the_break(ledger)
    assert kind == "simulation"
    assert "a chain is missing" in message


@pytest.mark.parametrize("spoil", ["edited", "removed", "another size"])
def test_the_summary_must_be_what_it_was(ledger, bench, opened, summary, make, spoil):
    size = summary.size_bytes + (spoil == "another size")
    bench.writer.append(make["simulation"](replace(summary, size_bytes=size), (opened,)))
    path = ledger.root / "objects" / summary.sha256[:2] / summary.sha256
    if spoil == "edited":
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    elif spoil == "removed":
        path.unlink()
    kind, message = the_break(ledger)
    assert kind == "object"
    assert summary.sha256 in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'["exact","0.25"]', b'["exact","0.95"]'),
        (b'"model":"tiny-moe"', b'"model":"huge-moe"'),
        (b'"kind":"simulation"', b'"kind":"record"'),
        (b'"schema":2', b'"schema":1'),
    ],
)
def test_an_edited_simulation_is_named(ledger, bench, opened, summary, make, old, new):
    entry = bench.writer.append(make["simulation"](summary, (opened,)))
    bench.writer.append(make["lane"](id="after"))
    file = ledger.root / "a" / "0001.jsonl"
    assert file.read_bytes().splitlines()[entry.seq - 1].count(old) == 1
    lines = file.read_bytes().splitlines(keepends=True)
    lines[entry.seq - 1] = lines[entry.seq - 1].replace(old, new)
    file.write_bytes(b"".join(lines))
    (found,) = ledger.verify().breaks
    assert (found.kind, Path(found.file), found.line) == ("row", file, entry.seq)
    with pytest.raises(LedgerBroken):
        list(ledger.simulations())


def test_what_was_appended_during_the_walk_is_looked_up_again(ledger, bench, opened, summary, make):
    early = walk(ledger.root / "a").lines
    later = bench.promote(bench.claim()).record_id
    simulation = make["simulation"](summary, (opened, later))
    ledger.writer("b").append(simulation)
    late = walk(ledger.root / "b").lines
    assert broken_names([*early, *late], ledger) == {}
    shutil.rmtree(ledger.root / "a")
    assert broken_names([*early, *late], ledger)["b"].kind == "simulation"
