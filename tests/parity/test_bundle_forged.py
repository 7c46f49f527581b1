"""Bundles that are broken, or forged by somebody who knows the format, are refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bitgate.parity.bundle import Bundle, BundleError
from bitgate.parity.bundle_format import NO_LAYER
from bitgate.parity.capture import Declared, Origin, Plan, capture
from bitgate.parity.capture_snapshot import take
from bitgate.records.errors import UsageError

Toy = Callable[..., Path]


def reseal(folder: Path) -> None:
    """Fix up the seal after an edit, as somebody who knows the format could."""
    files = [
        {
            "name": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size_bytes": path.stat().st_size,
        }
        for path in sorted(folder.iterdir())
        if path.name != "COMPLETE"
    ]
    (folder / "COMPLETE").write_text(json.dumps({"schema": 1, "files": files}))


def edit_lines(path: Path, change: Callable[[list[dict]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_manifest(folder: Path, change: Callable[[dict], None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


# --- broken bundles are refused, with the file named ----------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "digests.jsonl",
        "layout.jsonl",
        "tokens.jsonl",
        "tensors-0000.safetensors",
        "COMPLETE",
    ],
)
def test_a_missing_file_is_refused(toy: Toy, tmp_path: Path, name: str) -> None:
    folder = toy(tmp_path / "b")
    (folder / name).unlink()
    with pytest.raises(BundleError, match=name):
        Bundle.open(folder)
    if name != "COMPLETE":
        reseal(folder)
        with pytest.raises(
            BundleError, match=name.replace("tensors-0000.safetensors", "no shard holds")
        ):
            Bundle.open(folder)


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "digests.jsonl", "layout.jsonl", "tensors-0000.safetensors", "COMPLETE"],
)
def test_a_truncated_or_edited_file_is_refused(toy: Toy, tmp_path: Path, name: str) -> None:
    folder = toy(tmp_path / "b")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-5])
    with pytest.raises(BundleError, match=f"{name}: (truncated|not a JSON)"):
        Bundle.open(folder)
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(changed))
    with pytest.raises(BundleError, match=name if name != "COMPLETE" else "b"):
        Bundle.open(folder)


def test_an_extra_file_and_another_format_are_refused(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    (folder / "notes.txt").write_text("x")
    with pytest.raises(BundleError, match=r"notes\.txt: not listed"):
        Bundle.open(folder)
    (folder / "notes.txt").unlink()
    edit_manifest(folder, lambda manifest: manifest.update(schema=2, novelty=1))
    reseal(folder)
    with pytest.raises(BundleError, match=r"manifest\.json: written in bundle format 2"):
        Bundle.open(folder)
    with pytest.raises(UsageError, match="expected a bundle directory, found none"):
        Bundle.open(tmp_path / "nowhere")


@given(data=st.data())
def test_deleting_a_frame_consistently_is_refused(
    tmp_path_factory: pytest.TempPathFactory, toy: Toy, data: st.DataObject
) -> None:
    folder = toy(tmp_path_factory.mktemp("frame") / "b", steps=2)
    gone = data.draw(st.integers(0, 5))

    def drop(lines: list[dict]) -> None:
        del lines[gone]
        for seq, line in enumerate(lines):
            line["seq"] = seq

    boundary = list(Bundle.open(folder).frames())[gone].boundary.key
    edit_lines(folder / "digests.jsonl", drop)
    edit_lines(folder / "layout.jsonl", drop)
    reseal(folder)
    with pytest.raises(BundleError, match=f"no frame of {boundary}"):
        Bundle.open(folder)


def test_deleting_one_line_a_tensor_or_a_storage_is_refused(toy: Toy, tmp_path: Path) -> None:
    digests_only = toy(tmp_path / "a")
    edit_lines(digests_only / "digests.jsonl", lambda lines: lines.pop(1) and None)
    reseal(digests_only)
    with pytest.raises(BundleError, match="a line is gone"):
        Bundle.open(digests_only)

    layout_only = toy(tmp_path / "b")
    edit_lines(layout_only / "layout.jsonl", lambda lines: lines.pop() and None)
    reseal(layout_only)
    with pytest.raises(BundleError, match=r"layout\.jsonl: expected 9 lines, got 8"):
        Bundle.open(layout_only)

    tensor = toy(tmp_path / "c")
    edit_lines(tensor / "digests.jsonl", lambda lines: lines[2]["tensors"].pop() and None)
    edit_lines(tensor / "layout.jsonl", lambda lines: lines[2]["views"].pop() and None)
    reseal(tensor)
    with pytest.raises(BundleError, match=r"digests\.jsonl, line 3: .* expected the tensors"):
        Bundle.open(tensor)

    values = toy(tmp_path / "d")
    edit_lines(
        values / "layout.jsonl",
        lambda lines: [v.update(storage=None) for v in lines[2]["views"]] and None,
    )
    reseal(values)
    with pytest.raises(BundleError, match="disagree on what is kept"):
        Bundle.open(values)

    storage = toy(tmp_path / "e")
    shard = storage / "tensors-0000.safetensors"
    tensors = load_file(shard)
    tensors.pop("s00000001")
    save_file(tensors, shard)
    reseal(storage)
    with pytest.raises(BundleError, match="no shard holds storage 1"):
        Bundle.open(storage)


def test_a_changed_byte_with_a_fixed_up_seal_misses_its_digest(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    shard = folder / "tensors-0000.safetensors"
    tensors = load_file(shard)
    tensors["s00000002"][1] ^= 64
    save_file(tensors, shard)
    reseal(folder)
    with pytest.raises(BundleError, match="tensor half has digest"):
        Bundle.open(folder)


# --- forged by somebody who fixes up the hashes ---------------------------------------------------


def both(folder: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """The same change of the lines of frames and of layouts, numbered anew."""

    def numbered(lines: list[dict]) -> None:
        lines[:] = change(lines)
        for seq, line in enumerate(lines):
            line["seq"] = seq

    edit_lines(folder / "digests.jsonl", numbered)
    edit_lines(folder / "layout.jsonl", numbered)


def swap_frames(folder: Path) -> None:
    both(folder, lambda lines: [lines[1], lines[0], *lines[2:]])


def swap_steps(folder: Path) -> None:
    both(folder, lambda lines: lines[:3] + lines[6:] + lines[3:6])
    edit_manifest(folder, lambda manifest: manifest["steps"].append(manifest["steps"].pop(1)))


def drop_a_boundary_of_decoding(folder: Path) -> None:
    both(folder, lambda lines: lines[:3] + lines[4:6] + lines[7:])
    edit_manifest(folder, lambda manifest: manifest["expected"].pop(3))


def a_constant(text: str) -> Callable[[Path], None]:
    def change(manifest: dict) -> None:
        manifest["expected"][2]["constants"] = [["eps", text]]

    return lambda folder: edit_manifest(folder, change)


def miscount(folder: Path) -> None:
    edit_lines(
        folder / "digests.jsonl", lambda lines: lines[0]["tensors"][0].update(finite=7) and None
    )


def widen(folder: Path) -> None:
    for name, place in (("digests", ("tensors", "meta")), ("layout", ("views", None))):

        def change(lines: list[dict], place: tuple[str, str | None] = place) -> None:
            line = lines[0][place[0]][0]
            (line[place[1]] if place[1] else line)["dtype"] = "complex128"

        edit_lines(folder / f"{name}.jsonl", change)


def rename_a_storage(folder: Path) -> None:
    shard = folder / "tensors-0000.safetensors"
    tensors = load_file(shard)
    tensors["t00000001"] = tensors.pop("s00000001")
    save_file(tensors, shard)


def store_floats(folder: Path) -> None:
    shard = folder / "tensors-0000.safetensors"
    tensors = load_file(shard)
    tensors["s00000001"] = tensors["s00000001"].view(torch.float16)
    save_file(tensors, shard)


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (swap_frames, "comes too late: frames follow"),
        (swap_steps, "comes too late in its request"),
        (drop_a_boundary_of_decoding, r"decode lacks the boundaries .*scale"),
        (a_constant("four"), "could not convert"),
        (miscount, "tensor x has 8 finite elements.*says 7"),
        (widen, "unknown dtype complex128"),
        (rename_a_storage, r"tensors-0000.*not a shard"),
        (store_floats, r"tensors-0000.*expected flat bytes, got F16"),
        (lambda folder: (folder / "more.jsonl").touch(), "no file of a bundle"),
        (
            lambda folder: edit_manifest(folder, lambda m: m.update(requests=1 << 40)),
            "expected req",
        ),
    ],
    ids=[
        "frames-swapped",
        "steps-swapped",
        "boundary-of-one-phase",
        "constant",
        "finite",
        "dtype",
        "storage-renamed",
        "floats",
        "extra",
        "requests",
    ],
)
def test_what_no_capture_writes_is_refused(
    toy: Toy, tmp_path: Path, forge: Callable[[Path], None], message: str
) -> None:
    folder = toy(tmp_path / "b")
    forge(folder)
    reseal(folder)
    with pytest.raises(BundleError, match=message):
        Bundle.open(folder)


def test_a_directory_in_place_of_a_file_is_refused(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    (folder / "layout.jsonl").unlink()
    (folder / "layout.jsonl").mkdir()
    with pytest.raises(BundleError, match=r"layout\.jsonl: expected a file"):
        Bundle.open(folder)


def test_a_file_that_is_listed_twice_is_refused(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    seal = json.loads((folder / "COMPLETE").read_text())
    seal["files"].append(seal["files"][0])
    (folder / "COMPLETE").write_text(json.dumps(seal))
    with pytest.raises(BundleError, match=r"digests\.jsonl.*twice"):
        Bundle.open(folder)


def test_a_weight_that_differs_in_one_step_is_refused(toy_origin: Origin, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    weight = torch.ones(2)
    plan = Plan(boundaries=(Declared(name="m"),), origin=toy_origin, keep_steps=0)
    with capture(plan, folder) as session:
        for token in range(2):
            with session.step(request=0, token=token, phase="decode"):
                taken = take("param", {"w": weight}, clone=False) + take(
                    "out", {"y": weight + token}
                )
                session.record("m", NO_LAYER, taken, ())
    Bundle.open(folder)

    def change(lines: list[dict]) -> None:
        lines[1]["tensors"][0]["meta"]["digest"] = "0" * 32

    edit_lines(folder / "digests.jsonl", change)
    reseal(folder)
    with pytest.raises(BundleError, match="the weight w has another digest"):
        Bundle.open(folder)
