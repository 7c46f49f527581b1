"""The device check: in an environment with its few packages, and with faults planted in it."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bitgate.kernels.catalogue import implementation, kernel
from bitgate.kernels.data import IntegerStream
from bitgate.kernels.device_check import context as checking_context
from bitgate.kernels.device_check import fixtures as checking_fixtures
from bitgate.kernels.device_check import run as checking
from bitgate.kernels.device_check import tiles, timings
from bitgate.kernels.device_check.context import Context, bitwise, bounded, difference
from bitgate.kernels.device_check.inputs import device_spread
from bitgate.kernels.device_check.rows import Answer, write
from bitgate.kernels.device_check.sections import SECTIONS, Section
from bitgate.kernels.device_check.timings import Contest, contest
from bitgate.kernels.devices import device
from bitgate.kernels.interpreter import triton
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.kernels.moe.experts_data import spread
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.provenance import process_environment

ROOT = Path(__file__).resolve().parents[2]
# What the check may need, with what torch itself imports.
PACKAGES = (
    *("torch", "torchgen", "triton", "numpy", "numpy.libs"),
    *("typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"),
    *("filelock", "fsspec"),
)
HOUR_NS = 3_600 * 10**9
POINT = kernel("moe_act").suites["default"][0]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of packages that holds the few that the check may import, and nothing else."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    site, folder = Path(spec.origin).parents[1], tmp_path / "site"
    folder.mkdir()
    for name in PACKAGES:
        if (site / name).exists():
            (folder / name).symlink_to(site / name)
    return folder


@pytest.fixture
def context() -> Context:
    return Context(device=device("cpu"), quick=True, deadline_ns=time.monotonic_ns() + HOUR_NS)


def check(bare: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(ROOT / "scripts" / "device_check.py"), "--out", str(out)]
    changes = {"PYTHONPATH": str(bare), "TRITON_INTERPRET": "0"}
    return subprocess.run(
        [*command, *options],
        env=process_environment(changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )


def rows(out: Path, name: str) -> list[dict]:
    return json.loads((out / name).read_text())["rows"]


# --- in its own environment ----------------------------------------------------------------------


def test_it_needs_no_other_package(bare, tmp_path):
    out = tmp_path / "out"
    done = check(bare, out, "--quick", "--only", "arithmetic", "--only", "hyper-connections")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in out.iterdir()} == {
        *("device.json", "checks.json", "timings.json", "answers.json")
    }
    about = json.loads((out / "device.json").read_text())
    assert about["environment"]["device"] == "cpu"
    assert about["sources"]["bitgate.kernels.mhc.post_triton"]
    (row,) = rows(out, "timings.json")
    assert row["outcome"] == "pass"
    assert len(row["baseline_ns"]) == len(row["order"])
    assert any(one["question"] == "triton:div_rn" for one in rows(out, "answers.json"))


@pytest.mark.slow  # the whole check: a minute and more in the interpreter
def test_the_whole_check_finds_nothing_wrong(bare, tmp_path):
    out = tmp_path / "out"
    done = check(bare, out, "--quick", "--seconds", "3000")
    found = rows(out, "checks.json")
    assert [row for row in found if row["outcome"] == "fail"] == []
    # Only what numba compiles is missing here, so the check says that it is incomplete.
    absent = [row for row in found if row["outcome"] == "not-run"]
    assert {row["side"]["name"].rpartition("-")[2] for row in absent} == {"numba"}
    assert done.returncode == 3, done.stdout + done.stderr
    sections = {row["section"] for row in found}
    assert {"canonical", "fixtures", "native"} <= sections
    assert "stopped" not in done.stdout


def test_an_unknown_device_and_a_full_folder_are_refused(bare, tmp_path):
    done = check(bare, tmp_path / "out", "--device", "cuda")
    assert done.returncode == (4 if not torch.cuda.is_available() else 0)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="empty folder"):
        checking.run(device("cpu"), tmp_path, quick=True)
    with pytest.raises(UsageError, match="unknown section 'tile'; known: arithmetic"):
        checking.run(device("cpu"), tmp_path / "new", quick=True, only=["tile"])
    with pytest.raises(UsageError, match="at least one second, got 0"):
        checking.run(device("cpu"), tmp_path / "new", quick=True, seconds=0)


# --- what it says of faults ----------------------------------------------------------------------


def test_every_bit_counts():
    value = torch.arange(6, dtype=torch.float32)
    other = value.clone()
    other.view(torch.int32)[4] ^= 1
    found = difference({"out": value}, {"out": other})
    assert (found.compared, found.differing) == (6, 1)
    assert found.first == "out[4]: expected 0x40800000, got 0x40800001"
    zero = torch.zeros(1)
    assert difference({"out": zero}, {"out": -zero}).differing == 1
    with pytest.raises(ValueError, match=r"expected torch\.float32"):
        difference({"out": zero}, {"out": zero.double()})
    with pytest.raises(ValueError, match="expected the tensors"):
        difference({"out": zero}, {})


def test_a_row_passes_only_with_something_compared(context):
    side = context.side(implementation("moe_act-triton"))
    value = {"out": torch.ones(2)}
    assert bitwise("s", side, "x", POINT, difference(value, value)).outcome == "pass"
    empty = {"out": torch.ones(0)}
    assert bitwise("s", side, "x", POINT, difference(empty, empty)).outcome == "not-run"
    wrong = bitwise("s", side, "x", POINT, difference(value, {"out": torch.zeros(2)}))
    assert wrong.outcome == "fail"
    assert "2 of 2 elements differ" in wrong.reason
    assert bitwise("s", side, "x", POINT, EnvironmentUnfit("no device")).outcome == "not-run"
    assert bitwise("s", side, "x", POINT, RuntimeError("launch failed")).outcome == "fail"


@pytest.mark.parametrize(
    ("actual", "outcome"), [(1.0, "pass"), (1.1, "pass"), (1.2, "fail"), (float("nan"), "fail")]
)
def test_an_error_is_held_against_its_bound(context, actual, outcome):
    side = context.side(implementation("moe_act-triton"))
    exact = {"out": (torch.ones(1).double(), torch.full((1,), 0.125).double())}
    row = bounded("s", side, POINT, exact, {"out": torch.tensor([actual])})
    assert row.outcome == outcome


def test_sides_that_differ_are_not_timed(context):
    side = context.side(implementation("moe_act-triton"))
    calls = {"B": lambda: (torch.zeros(2),), "C": lambda: (torch.ones(2),)}
    fight = Contest(section="s", workload=POINT, baseline=side, candidate=side, calls=calls)
    (row,) = contest(context, fight)
    assert row.outcome == "fail"
    assert row.baseline_ns == ()
    assert "nothing was timed" in row.reason


def test_a_timed_output_that_changes_is_found(context):
    side = context.side(implementation("moe_act-triton"))
    seen: list[int] = []

    def drifting() -> tuple[torch.Tensor, ...]:
        seen.append(1)
        return (torch.full((2,), float(len(seen) > 20)),)

    calls = {"B": lambda: (torch.zeros(2),), "C": drifting}
    fight = Contest(section="s", workload=POINT, baseline=side, candidate=side, calls=calls)
    (row,) = contest(context, fight)
    assert row.outcome == "fail"
    assert row.candidate_ns == ()
    assert "differ from the first" in row.reason


def test_nothing_starts_after_the_deadline():
    late = Context(device=device("cpu"), quick=True, deadline_ns=0)
    timed = {"experts", "hyper-connections", "fixtures", "canonical", "native", "tiles"}
    for section in SECTIONS:
        if section.name in timed:
            assert list(section.run(late)) == [], section.name


def test_tiles_that_do_not_run_are_in_no_group_of_equal_bits(context):
    class Unfit(triton.TritonError):
        """What a compiler raises where a tile does not fit."""

    def run(config):
        if config.block_k == 64:
            raise Unfit("out of resource")
        return torch.zeros(2)

    (row,) = tiles._grouped(context, "q", tiles.FP8_CONFIGS, run)
    groups, *faults = row.answer.split("; ")
    assert groups == "1 groups of equal bits: 16/128/128/g8/w4/s3 64/128/128/g8/w4/s3"
    assert faults == [f"{m}/128/64/g8/w4/s3 did not run: Unfit: out of resource" for m in (16, 64)]


def test_a_kernel_that_does_not_compile_costs_only_itself(context, monkeypatch):
    def broken(**_):
        raise triton.TritonError("planted")

    monkeypatch.setattr(checking_fixtures, "KERNELS", (kernel("moe_act"),))
    monkeypatch.setattr(checking_context, "load", lambda _: broken)
    found = list(checking_fixtures.integer_fixtures(context))
    assert len(found) == 2 * len(kernel("moe_act").integer_cases())
    assert {row.outcome for row in found} == {"fail"}
    assert {row.reason for row in found} == {"TritonError: planted"}


def test_the_experts_are_timed_on_a_processor_of_any_name(context, monkeypatch):
    facts = replace(context.device.probe(), device_name="AMD EPYC 7B13")
    monkeypatch.setattr(type(context.device), "probe", lambda _: facts)
    started: list[Contest] = []
    monkeypatch.setattr(timings, "contest", lambda _, rivals: started.append(rivals) or iter(()))
    assert list(timings.experts(context)) == []
    assert dict(started[0].candidate.config)["block_m"] == str(DEFAULT_CONFIG.block_m)


def test_a_section_that_raises_costs_only_itself(tmp_path, monkeypatch):
    def broken(context):
        yield Answer(section="broken", question="q", answer=context.name)
        raise ZeroDivisionError("planted")

    def whole(context):
        yield Answer(section="whole", question="q", answer=context.name)

    planted = tuple(Section(name=run.__name__, run=run, share=1) for run in (broken, whole))
    monkeypatch.setattr(checking, "SECTIONS", planted)
    said: list[str] = []
    result = checking.run(device("cpu"), tmp_path / "out", quick=True, say=said.append)
    assert "stopped by ZeroDivisionError: planted" in said[0]
    assert result.exit_code == 3
    assert len(rows(tmp_path / "out", "answers.json")) == 2


@pytest.mark.parametrize(
    ("outcomes", "ending", "code"),
    [
        ([True, True], "2 pass", 0),
        ([True, None], "1 pass, 1 not-run", 3),
        ([True, False, None], "1 fail", 1),
        ([], "no row", 3),
        ([True], "stopped by its time: 1 pass", 3),
    ],
)
def test_nothing_less_than_all_is_a_pass(context, outcomes, ending, code):
    side, value = context.side(implementation("moe_act-triton")), {"out": torch.ones(2)}
    found = {
        True: difference(value, value),
        False: difference(value, {"out": torch.zeros(2)}),
        None: EnvironmentUnfit("not here"),
    }
    checks = [bitwise("s", side, "x", POINT, found[outcome]) for outcome in outcomes]
    result = checking.Result(rows=list(checks), sections=[("s", ending)])
    assert result.exit_code == code
    assert ("stopped early: s" in result.summary) == ending.startswith("stopped")


def test_a_file_of_more_than_the_machine_hands_back_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected at most"):
        write(tmp_path, "big.json", {"rows": ["x" * (16 << 20)]})


@pytest.mark.parametrize("seed", [0, 5, (1 << 63) + 7, (1 << 64) - 1])
def test_inputs_made_on_the_device_are_those_of_the_stream(seed):
    made = device_spread(seed, (3, 100), scale_log2=9, device="cpu")
    expected = spread(IntegerStream(seed), (3, 100), scale_log2=9)
    assert torch.equal(made.view(torch.int16), expected.view(torch.int16))
