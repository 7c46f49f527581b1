import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bitgate.parity.bits import raw_bytes
from bitgate.parity.bundle import Bundle
from bitgate.parity.bundle_format import NO_LAYER
from bitgate.parity.bundle_write import file_line
from bitgate.parity.capture import Declared, Origin, Plan, capture
from bitgate.parity.capture_snapshot import take
from bitgate.parity.compare import Report, compare_bundles
from bitgate.parity.digests import digest

Toy = Callable[..., Path]
Outputs = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def promoted(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(toy(tmp_path_factory.mktemp("promoted") / "b"))


def against(promoted: Bundle, folder: Path) -> Report:
    return compare_bundles(promoted, Bundle.open(folder))


def test_the_same_capture_is_equal_and_counted(promoted: Bundle, toy: Toy, tmp_path: Path) -> None:
    report = against(promoted, toy(tmp_path / "b"))
    assert report.verdict == "equal"
    assert report.compared == 9 * 3
    assert report.counts == {"equal": 9}
    assert report.earliest is None


def test_culprit_victims_and_state_suspects_are_told_apart(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    def one_ulp(name: str, step: int, out: Outputs) -> None:
        if (name, step) == ("scale0", 1):
            out["y"].view(torch.int16)[0, 2] += 1

    report = against(promoted, toy(tmp_path / "culprit", change=one_ulp))
    assert report.verdict == "differs"
    assert [row.kind for row in report.rows] == [
        *["equal"] * 3,
        "culprit",
        *["victim"] * 2,
        *["equal"] * 3,
    ]
    culprit = report.earliest
    assert culprit is not None
    assert report.first_by_rank == {0: culprit}
    assert culprit.where == "scale/L0/c0/decode/r0 at request 0, token 1"
    (difference,) = culprit.differences
    assert difference.mismatch is not None
    assert difference.mismatch.first_index == (0, 2)
    assert difference.mismatch.max_ulp == 1
    assert dict(difference.numbers)["max_abs"] == "0.0625"
    assert "first difference: culprit scale/L0/c0/decode/r0" in report.reason

    def hidden(name: str, step: int, out: Outputs) -> None:
        if (name, step) == ("attend0", 2):
            out["half"].mul_(2)

    suspect = against(promoted, toy(tmp_path / "suspect", change=hidden)).earliest
    assert suspect is not None
    assert (suspect.kind, suspect.boundary.name) == ("state-suspect", "attend")


def test_a_difference_between_boundaries_is_said_to_be_so(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    report = against(promoted, toy(tmp_path / "b", start=1e-3))
    assert report.rows[0].kind == "victim"
    assert "arose between captured boundaries: victim scale/L0/c0/prefill/r0" in report.reason


def test_stale_and_misrouted_values_are_recognised(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    older: Outputs = {}

    def stale(name: str, step: int, out: Outputs) -> None:
        if name == "scale1" and step == 1:
            older.update({key: value.clone() for key, value in out.items()})
        if name == "scale1" and step == 2:
            out["y"].copy_(older["y"])

    found = against(promoted, toy(tmp_path / "stale", change=stale)).earliest
    assert found is not None
    assert found.differences[0].hints == ("equals its own value at request 0, token 1: stale?",)

    other: Outputs = {}

    def misrouted(name: str, step: int, out: Outputs) -> None:
        if name == "attend0":
            other.update({key: value.clone() for key, value in out.items()})
        if name == "scale1" and step == 0:
            out["y"].copy_(other["y"])

    found = against(promoted, toy(tmp_path / "misrouted", change=misrouted)).earliest
    assert found is not None
    assert found.differences[0].hints == (
        "equals y of attend/L0/c0/prefill/r0 in this step: misrouted?",
    )


def test_provenance_comes_first_and_fields_are_named(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    report = against(promoted, toy(tmp_path / "b", weights="c"))
    assert report.verdict == "incomparable"
    assert [item.field for item in report.refused] == ["weights_sha256"]
    assert report.counts == {"incomparable": 9}
    assert report.compared == 0
    assert "weights_sha256" in report.reason


def test_a_shorter_capture_is_missing_frames_never_a_smaller_comparison(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    shorter = Bundle.open(toy(tmp_path / "b", steps=2))
    for report in (compare_bundles(promoted, shorter), compare_bundles(shorter, promoted)):
        assert report.verdict == "differs"
        assert report.counts == {"equal": 6, "missing": 3}


def test_without_kept_values_digests_still_find_the_culprit(toy: Toy, tmp_path: Path) -> None:
    def change(name: str, step: int, out: Outputs) -> None:
        if (name, step) == ("scale1", 0):
            out["half"][0, 0] = 0

    bare = Bundle.open(toy(tmp_path / "a", keep_steps=0))
    report = against(bare, toy(tmp_path / "b", keep_steps=0, change=change))
    found = report.earliest
    assert found is not None
    assert found.boundary.key == "scale/L1/c0/prefill/r0"
    assert found.differences[0].mismatch is None
    assert "values were not kept" in report.reason


def test_a_different_contract_or_dtype_is_not_equal(
    promoted: Bundle, toy: Toy, tmp_path: Path
) -> None:
    def wider(name: str, step: int, out: Outputs) -> None:
        if name == "scale1":
            out["y"] = out["y"].float()

    report = against(promoted, toy(tmp_path / "b", change=wider))
    assert report.counts == {"equal": 6, "culprit": 3}
    assert "expected torch.bfloat16, got torch.float32" in report.reason

    folder = toy(tmp_path / "c")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["expected"][0]["contract"] = "toy/2"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seal(folder)
    report = against(promoted, folder)
    assert report.verdict == "incomparable"
    assert report.counts == {"equal": 8, "incomparable": 1}
    assert "contract: expected toy/1, got toy/2; toy/1 and toy/2 are two orders" in report.reason


def seal(folder: Path) -> None:
    files = [file_line(path) for path in sorted(folder.iterdir()) if path.name != "COMPLETE"]
    lines = [
        {"name": line.name, "sha256": line.sha256, "size_bytes": line.size_bytes} for line in files
    ]
    (folder / "COMPLETE").write_text(json.dumps({"schema": 1, "files": lines}))


def flip_stored_bit(folder: Path, place: tuple[int, int, int, int]) -> None:
    """Flip one bit of one captured tensor, and fix up every digest and hash that knows of it."""
    frame_at, tensor_at, element, bit = place
    frames = [json.loads(line) for line in (folder / "digests.jsonl").read_text().splitlines()]
    layouts = [json.loads(line) for line in (folder / "layout.jsonl").read_text().splitlines()]
    frame = list(Bundle.open(folder).frames())[frame_at]
    view = layouts[frame_at]["views"][tensor_at]
    changed = raw_bytes(frame.load(view["tensor"])).copy()
    width = changed.size // max(1, int(np.prod(view["shape"])))
    changed[element * width + bit // 8] ^= np.uint8(1 << bit % 8)
    tensor = torch.from_numpy(changed)
    frames[frame_at]["tensors"][tensor_at]["meta"]["digest"] = digest(tensor)
    number = 1 + max(v["storage"] for line in layouts for v in line["views"])
    view.update(storage=number, start=0)
    shard = folder / "tensors-0000.safetensors"
    tensors = load_file(shard) | {f"s{number:08d}": tensor}
    used = {f"s{v['storage']:08d}" for line in layouts for v in line["views"]}
    save_file({key: value for key, value in tensors.items() if key in used}, shard)
    for name, lines in (("digests.jsonl", frames), ("layout.jsonl", layouts)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(folder)


@given(data=st.data())
def test_any_flipped_bit_of_any_captured_tensor_is_found_where_it_is(
    promoted: Bundle, toy: Toy, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    frames = list(promoted.frames())
    frame = frames[data.draw(st.integers(0, len(frames) - 1), label="frame")]
    at = data.draw(st.integers(0, len(frame.tensors) - 1), label="tensor")
    values = frame.load(frame.tensors[at].name)
    element = data.draw(st.integers(0, values.numel() - 1), label="element")
    bit = data.draw(st.integers(0, 8 * values.element_size() - 1), label="bit")
    folder = toy(tmp_path_factory.mktemp("flip") / "b")
    flip_stored_bit(folder, (frame.seq, at, element, bit))
    report = against(promoted, folder)
    changed = [row for row in report.rows if row.kind != "equal"]
    assert [(row.step, row.boundary) for row in changed] == [(frame.step, frame.boundary)]
    (difference,) = changed[0].differences
    mismatch = difference.mismatch
    assert difference.name == frame.tensors[at].name
    assert mismatch is not None
    assert mismatch.differing == 1
    assert mismatch.first_index == tuple(int(i) for i in np.unravel_index(element, values.shape))
    assert int(mismatch.expected_bits or "", 16) ^ int(mismatch.actual_bits or "", 16) == 1 << bit
    role = difference.role
    assert changed[0].kind == {"in": "victim", "out": "culprit"}[role] or not frame.closed


def test_a_call_that_changes_its_inputs_is_not_one_that_leaves_them(
    toy_origin: Origin, tmp_path: Path
) -> None:
    plan = Plan(boundaries=(Declared(name="m", closed=True),), origin=toy_origin)

    def write(name: str, mutated: tuple[str, ...]) -> Bundle:
        with (
            capture(plan, tmp_path / name) as session,
            session.step(request=0, token=0, phase="decode"),
        ):
            taken = take("in", {"x": torch.ones(2)}) + take("out", {"y": torch.ones(2)})
            session.record("m", NO_LAYER, taken, mutated)
        return Bundle.open(tmp_path / name)

    plain, writing = write("plain", ()), write("writing", ("x",))
    report = compare_bundles(plain, writing)
    assert (report.verdict, report.rows[0].kind) == ("differs", "culprit")
    assert "inputs changed during the call" in report.reason
    assert compare_bundles(writing, writing).verdict == "equal"
    assert compare_bundles(plain, plain).verdict == "equal"
