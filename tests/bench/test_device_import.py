"""Device checks as records: what passed, what failed, and files that are none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bitgate.bench.device_import import import_device_check
from bitgate.bench.import_cli import app
from bitgate.kernels.catalogue import implementation, kernel
from bitgate.kernels.device_check import run as checking
from bitgate.kernels.device_check.context import Context, bitwise, difference
from bitgate.kernels.device_check.sections import SECTIONS, Section
from bitgate.kernels.devices import device
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger

Edit = Callable[[dict[str, Any]], object]
OP = "mhc_post"


def _some(context: Context):
    """A section's row on each of two workloads, and one on a fixture."""
    definition = kernel(OP)
    found, truth = implementation(f"{OP}-numba"), implementation(f"{OP}-replay")
    for point in definition.suites["default"][:2]:
        inputs = definition.make_inputs(point, 0)
        expected, actual = (context.call(definition, one, inputs, {}) for one in (truth, found))
        yield bitwise("some", context.side(found), truth.name, point, difference(expected, actual))
    case = definition.integer_cases()[0]
    actual = context.call(definition, found, case.inputs, case.constants)
    row = difference(case.expected, {name: actual[name] for name in case.expected})
    yield bitwise("fixtures", context.side(found), "integers", case.name, row)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small device check of this processor, timing included."""
    out = tmp_path_factory.mktemp("check") / "out"
    timing = next(one for one in SECTIONS if one.name == "hyper-connections")
    with pytest.MonkeyPatch.context() as patch:
        some = Section(name="some", run=_some, share=1)
        patch.setattr(checking, "SECTIONS", (some, timing))
        result = checking.run(device("cpu"), out, quick=True, say=lambda line: line)
    assert result.exit_code == 0
    return out


@pytest.fixture
def folder(checked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checked, tmp_path / "check"))


def edit(path: Path, change: Edit) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def at(**values: Any) -> Edit:
    """Change the first row."""
    return lambda content: content["rows"][0].update(values)


def of_side(**values: Any) -> Edit:
    """Change the side of the first row."""
    return lambda content: content["rows"][0]["side"].update(values)


def test_rows_become_records_that_verify(folder, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    entries = import_device_check(folder, ledger)
    records = [entry.body for entry in entries]
    assert [record.outcome for record in records] == ["reported"] * 3
    assert {record.candidate.name for record in records} == {f"{OP}-numba", f"{OP}-triton"}
    timed = [record for record in records if record.measurement is not None]
    assert len(timed) == 1
    assert timed[0].effect is not None
    assert timed[0].baseline is not None
    assert {result.gate for result in records[0].verdict.results} == {
        *("device:some", "device:fixtures")
    }
    assert records[0].verdict.bound is not None
    assert {entry.body.id for entry in ledger.lanes()} == {record.lane for record in records}
    assert ledger.verify(strict=True).ok
    with pytest.raises(UsageError, match="is in the ledger already"):
        import_device_check(folder, ledger)

    def later(content: dict[str, Any]) -> None:
        content["started_at"] = "2026-12-01T00:00:00.000000Z"
        content["sections"][0] = ["some", "stopped by its time: no row in 0.0 s"]

    # Another check of the same node: the lanes are declared already.
    edit(folder / "device.json", later)
    again = import_device_check(folder, ledger)
    assert len(again) == 3
    assert "stopped before their end: some" in again[0].body.verdict.coverage


def test_a_difference_rejects_the_implementation(folder, tmp_path):
    def fail(content: dict[str, Any]) -> None:
        content["rows"][1] |= {
            "outcome": "fail",
            "reason": "2 of 9 elements differ",
            "differing": 2,
        }

    edit(folder / "checks.json", fail)
    records = [entry.body for entry in import_device_check(folder, Ledger(tmp_path / "ledger"))]
    assert [record.outcome for record in records] == ["reported", "rejected", "reported"]
    assert records[1].reason == "device:some: 2 of 9 elements differ"
    assert records[1].verdict.kind == "deterministic-mismatch"


def test_a_failed_fixture_rejects_every_workload_and_takes_no_time(folder, tmp_path):
    def fail(content: dict[str, Any]) -> None:
        for row in content["rows"]:
            if not row["workload"]:
                row["outcome"] = "fail"
                row["side"]["name"] = f"{OP}-triton"

    edit(folder / "checks.json", fail)
    records = [entry.body for entry in import_device_check(folder, Ledger(tmp_path / "ledger"))]
    wrong = [record for record in records if record.outcome == "rejected"]
    assert [record.candidate.name for record in wrong] == [f"{OP}-triton"]
    assert wrong[0].measurement is None


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("device.json", lambda content: content.pop("environment"), "field 'environment'"),
        ("device.json", lambda content: content.update(sources={}), "expected the sources of"),
        (
            "checks.json",
            lambda content: content.update(format="other/1"),
            "expected format bitgate",
        ),
        ("checks.json", lambda content: content["rows"].append({"kind": "x"}), "kind 'check'"),
        ("checks.json", lambda content: content.update(rows=5), "checks.json: expected a list"),
        ("checks.json", lambda content: content.pop("rows"), "the field 'rows'"),
        ("checks.json", at(compared=0), r"checks\.json: row 0: .*a pass to compare something"),
        ("checks.json", at(differing=3), r"differ nowhere, got 3 of 256"),
        ("checks.json", at(differing=-1), "differing of 0 to compared"),
        ("checks.json", at(outcome="fail", differing=257), "got 257 of 256"),
        (
            "checks.json",
            lambda content: content["rows"].append(content["rows"][0]),
            r"row 3: expected each comparison once, got that of row 0",
        ),
        ("checks.json", of_side(tier="junk"), r"row 0: .*tier"),
        ("checks.json", of_side(op="moe_act"), "expected a workload of moe_act"),
        ("timings.json", lambda content: content["rows"][0].pop("order"), "order"),
        ("timings.json", at(verified_outputs=1), "verified"),
        ("timings.json", at(order=""), r"timings\.json: row 0: .*a positive time of both sides"),
        ("timings.json", at(null_order=""), "got 0 rounds"),
        ("timings.json", at(baseline_ns=[1]), r"and \[1, 30\] times"),
        ("timings.json", at(candidate_ns=[0] * 30), "a positive time of both sides"),
        (
            "timings.json",
            lambda content: content["rows"].append(content["rows"][0] | {"outcome": "fail"}),
            "row 1: expected each comparison once",
        ),
        ("device.json", lambda content: content.update(sources=[]), "pairs of path and SHA-256"),
        ("device.json", lambda content: content.update(sources={"m": [["a"]]}), "pairs of path"),
        ("device.json", lambda content: content.update(sources={"m": 5}), "by module, got"),
        ("device.json", lambda content: content.update(sources={"m": [["a", "z"]]}), "SHA-256"),
        ("device.json", lambda content: content.update(sources={"m": [[1, "0" * 64]]}), "paths"),
    ],
)
def test_files_that_are_none_are_refused_and_nothing_is_written(
    folder, tmp_path, name, change, says
):
    edit(folder / name, change)
    ledger = Ledger(tmp_path / "ledger")
    with pytest.raises(UsageError, match=says):
        import_device_check(folder, ledger)
    assert not ledger.root.is_dir() or list(ledger.records()) == []


def test_no_row_is_no_record(folder, tmp_path):
    for name in ("checks.json", "timings.json"):
        edit(folder / name, lambda content: content.update(rows=[]))
    with pytest.raises(UsageError, match="got none"):
        import_device_check(folder, Ledger(tmp_path / "ledger"))
    (folder / "device.json").write_text("{")
    with pytest.raises(UsageError, match=r"device\.json: expected a result file"):
        import_device_check(folder, Ledger(tmp_path / "ledger"))


def test_the_command_counts_what_it_appended(folder, tmp_path):
    done = CliRunner().invoke(
        app, ["device-check", str(folder), "--ledger", str(tmp_path / "ledger"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["outcomes"] == {"reported": 3}
