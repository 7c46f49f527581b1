"""A candidate's tuned tiles: part of its identity, given to it alone, said in its records."""

import json
from pathlib import Path
from typing import Any

import pytest

from bitgate.bench.findings import fail_all
from bitgate.bench.resolve import Job, resolve
from bitgate.bench.rounds import findings_of
from bitgate.bench.rows import store
from bitgate.bench.sides import Contest, started
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.configs import entry_of
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.parity.gates import resolve as gates
from bitgate.parity.gates.base import Budget
from bitgate.parity.gates.session import Session
from bitgate.parity.worker import Launch
from bitgate.records.candidate_file import CandidateFile, load_candidate_file
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.types import Verdict

NAME = "E=4,N=8,device_name=TEST.json"
CONFIG = TileConfig(block_m=32, block_n=32)
TRITON = "bitgate.kernels.moe.staged_triton:experts_triton"
SIDE = """\
[{section}]
name = "{section}"
op = "moe_experts"
contract = "{contract}"
tier = "native"
device = "cpu"
impl = "{impl}"
{more}
"""
SHAPES = """\
[workloads]
shapes = [{experts = 4, hidden = 8, intermediate = 8, tokens = 5, top_k = 2}]
dtype = "bfloat16"
"""


def side(section: str, more: str = "", impl: str = TRITON) -> str:
    contract = "moe-torch/1" if impl.endswith("experts_loop") else "moe-bf16/1"
    return SIDE.format(section=section, contract=contract, impl=impl, more=more)


def file(folder: Path, *sides: str, name: str = NAME) -> CandidateFile:
    (folder / name).write_text(json.dumps({"16": entry_of(CONFIG)}))
    path = folder / "candidate.toml"
    path.write_text("".join(sides) + SHAPES)
    return load_candidate_file(path)


def job(folder: Path, *sides: str, **options: Any) -> Job:
    return resolve(file(folder, *sides, **options), Ledger(folder / "ledger"))


TUNED = side("candidate", f'tiles = "{NAME}"')


def test_tiles_are_part_of_the_identity(tmp_path: Path) -> None:
    plain = job(tmp_path, side("candidate")).subject.candidate
    tuned = job(tmp_path, TUNED).subject.candidate
    assert plain.digest != tuned.digest
    assert plain.config == ()
    found = tiles.unpacked(tiles.of_config(tuned.config))
    assert found.entries == ((16, entry_of(CONFIG)),)
    # One number in the file is another candidate.
    (tmp_path / NAME).write_text(json.dumps({"17": entry_of(CONFIG)}))
    again = resolve(load_candidate_file(tmp_path / "candidate.toml"), Ledger(tmp_path / "ledger"))
    assert again.subject.candidate.digest != tuned.digest


def test_tiles_are_no_constant_and_each_side_has_its_own(tmp_path: Path) -> None:
    found = job(tmp_path, TUNED, side("baseline"))
    assert set(found.subject.constants) == set(dict(found.subject.kernel.constants))
    with pytest.raises(UsageError, match="another config"):
        job(tmp_path, TUNED, side("baseline", "config = { swiglu_limit = 5 }"))


def test_a_record_says_which_tiles_ran(tmp_path: Path) -> None:
    found = job(tmp_path, TUNED)
    said = dict(gates.tile_notes(found.subject.candidate, found.workloads[0]))
    assert said["tiles:BLOCK_SIZE_M"] == "32"
    assert said["tiles:key"] == "16"
    assert said["tiles:source"] == f"file {NAME}"
    plain = job(tmp_path, side("candidate"))
    said = dict(gates.tile_notes(plain.subject.candidate, plain.workloads[0]))
    assert said["tiles:BLOCK_SIZE_M"] == str(DEFAULT_CONFIG.block_m)
    loop = job(tmp_path, side("candidate", impl="bitgate.kernels.moe.experts:experts_loop"))
    assert gates.tile_notes(loop.subject.candidate, loop.workloads[0]) == ()


def test_a_candidate_that_is_never_timed_is_recorded_with_its_tiles(tmp_path: Path) -> None:
    found = job(tmp_path, TUNED)
    verdict = Verdict(kind="not-run", required=("G0",), results=(), bound=None, coverage="none")
    findings = findings_of(found)
    fail_all(findings, verdict)
    ledger = Ledger(tmp_path / "ledger")
    (entry,) = store(found, verdict, findings, ledger.writer())
    assert dict(entry.body.notes)["tiles:BLOCK_SIZE_N"] == "32"
    assert (
        dict(entry.body.notes)["tiles:sha256"]
        == tiles.unpacked(tiles.of_config(entry.body.candidate.config)).sha256
    )


class Listener:
    """Takes what is sent to a process."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def send(self, header: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.sent = header

    def receive(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"facts": {"before": {}, "after": {}}}, {}


def test_the_gates_and_the_timing_give_them_to_the_candidate_alone(tmp_path: Path) -> None:
    found = job(tmp_path, TUNED, side("baseline"))
    launched: list[Launch] = []

    class Runner:
        def close(self) -> None:
            """Nothing runs."""

    session = Session(
        subject=found.subject,
        workloads=found.workloads,
        bundle=None,
        budget=Budget(),
        put=lambda data, media: pytest.fail("no evidence"),
        progress=lambda what, done, total: None,
        launcher=lambda launch: launched.append(launch) or Runner(),
    )
    with session:
        session.candidate()
        assert session.reference is not None
    text = tiles.of_config(found.subject.candidate.config)
    assert [one.tiles for one in launched] == [text, ""]
    child: Any = Listener()
    contest = Contest(subject=found.subject, baseline_target=TRITON, baseline_root=None)
    started([child], contest, "BC", cold=False)
    assert [child.sent["sides"][name]["tiles"] for name in "BC"] == ["", text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (side("candidate", 'tiles = "E=4,N=8,device_name=X.json"'), "cannot read the tuned file"),
        (side("candidate", 'config = { tiles = "x" }'), "tiles is no constant"),
        (
            side("candidate", f'tiles = "{NAME}"', impl="bitgate.kernels.moe.experts:experts_loop"),
            "experts_loop takes none",
        ),
        (side("candidate", "tiles = 3"), "expected a non-empty string"),
    ],
)
def test_tiles_that_cannot_be_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job(tmp_path, text)


def test_tiles_of_another_shape_are_refused(tmp_path: Path) -> None:
    other = NAME.replace("N=8", "N=16")
    with pytest.raises(UsageError, match="expected a file for 4 experts of 8"):
        job(tmp_path, side("candidate", f'tiles = "{other}"'), name=other)
