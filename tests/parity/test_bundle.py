import errno
import hashlib
import io
import json
import pathlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bitgate.parity.bundle import Bundle, BundleError, BundleWriter, Step
from bitgate.parity.bundle_format import NO_LAYER
from bitgate.parity.capture import CaptureIncomplete, Declared, Origin, Plan, capture, tap
from bitgate.parity.capture_snapshot import take
from bitgate.parity.digests import digest
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.types import Boundary

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


def test_a_bundle_gives_back_what_was_captured(toy: Toy, tmp_path: Path) -> None:
    bundle = Bundle.open(toy(tmp_path / "b"))
    frames = list(bundle.frames())
    assert [frame.boundary.key for frame in frames[:4]] == [
        "scale/L0/c0/prefill/r0",
        "attend/L0/c0/prefill/r0",
        "scale/L1/c0/prefill/r0",
        "scale/L0/c0/decode/r0",
    ]
    first = frames[0]
    assert (first.op, first.contract, first.closed) == ("toy", "toy/1", True)
    assert frames[2].constants == {"eps": 1e-6, "n": 4}
    x = torch.arange(1, 9).float().reshape(2, 4)
    assert torch.equal(first.inputs()["x"], x)
    assert torch.equal(first.outputs()["y"], x.bfloat16() * 3)
    assert first.meta("y").digest == digest(x.bfloat16() * 3)
    assert first.finite == {"x": 8, "y": 8, "half": 4}
    with pytest.raises(UsageError, match=r"no tensor 'z'; it has \['x', 'y', 'half'\]"):
        first.load("z")


def test_equal_captures_are_equal_bundles(toy: Toy, tmp_path: Path) -> None:
    one, two = Bundle.open(toy(tmp_path / "a")), Bundle.open(toy(tmp_path / "b"))
    assert one.sha256 == two.sha256
    other = Bundle.open(toy(tmp_path / "c", change=lambda name, step, out: out["y"].neg_()))
    assert other.sha256 != one.sha256


def test_views_keep_stride_offset_and_alias_and_shared_bytes_are_stored_once(
    tmp_path: Path, toy_origin: Origin
) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    weights = torch.zeros(7)
    plan = Plan(boundaries=(Declared(name="m"),), origin=toy_origin)
    with capture(plan, tmp_path / "b") as session, session.step(request=0, token=0, phase="decode"):
        odd = base.view(torch.bfloat16)[1:, 3:9:2]
        tap(
            "m",
            {"whole": base, "part": base[1:3, ::2].T, "odd": odd},
            out={"a": weights, "b": weights.clone()},
        )
    frame = next(Bundle.open(tmp_path / "b").frames())
    views = {view.tensor: view for view in frame.views}
    assert (views["part"].offset, views["part"].stride) == (6, (2, 6))
    assert views["whole"].alias_group == views["part"].alias_group == views["odd"].alias_group
    assert views["whole"].storage == views["part"].storage
    assert views["a"].storage == views["b"].storage
    assert views["a"].alias_group != views["b"].alias_group
    again = frame.inputs()
    assert torch.equal(again["part"], base[1:3, ::2].T)
    assert torch.equal(again["odd"].view(torch.int16), odd.view(torch.int16))
    again["whole"].zero_()
    assert not again["part"].any()
    outputs = frame.outputs()
    outputs["a"].fill_(1)
    assert not outputs["b"].any()
    stored = sum(
        load_file(p)[k].numel() for p in (tmp_path / "b").glob("tensors-*") for k in load_file(p)
    )
    assert stored == 24 * 4 + 7 * 4


def test_a_later_write_does_not_reach_the_bundle(toy_origin: Origin, tmp_path: Path) -> None:
    x = torch.ones(3)
    plan = Plan(boundaries=(Declared(name="m"),), origin=toy_origin)
    with capture(plan, tmp_path / "b") as session, session.step(request=0, token=0, phase="decode"):
        tap("m", x, out=x)
        x.zero_()
    assert torch.equal(next(Bundle.open(tmp_path / "b").frames()).load("in0"), torch.ones(3))


def test_the_ring_keeps_the_last_steps_and_digests_of_all(toy: Toy, tmp_path: Path) -> None:
    whole = Bundle.open(toy(tmp_path / "a"))
    ring = Bundle.open(toy(tmp_path / "b", keep_steps=1))
    assert [frame.tensors for frame in ring.frames()] == [frame.tensors for frame in whole.frames()]
    assert [frame.kept for frame in ring.frames()] == [False] * 6 + [True] * 3
    first, *_, last = ring.frames()
    assert torch.equal(last.load("y"), list(whole.frames())[-1].load("y"))
    with pytest.raises(UsageError, match="only digests were kept"):
        first.load("y")
    none = Bundle.open(toy(tmp_path / "c", keep_steps=0))
    assert not any(frame.kept for frame in none.frames())


def test_shards_are_capped(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BundleWriter.__init__, "__kwdefaults__", {"shard_bytes": 40})
    folder = toy(tmp_path / "b")
    shards = sorted(folder.glob("tensors-*.safetensors"))
    assert len(shards) > 3
    assert all(sum(t.numel() for t in load_file(path).values()) <= 40 for path in shards)
    Bundle.open(folder)


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
    with pytest.raises(BundleError, match="expected a bundle directory, found none"):
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


# --- writing --------------------------------------------------------------------------------------


def test_a_directory_in_use_is_not_touched(toy: Toy, tmp_path: Path) -> None:
    folder = toy(tmp_path / "b")
    with pytest.raises(UsageError, match="in use"):
        toy(folder)
    Bundle.open(folder)
    with pytest.raises(UsageError, match="expected a directory to write"):
        toy(tmp_path / "nowhere" / "b")
    (tmp_path / "empty").mkdir()
    Bundle.open(toy(tmp_path / "empty"))


def test_an_interrupted_capture_leaves_nothing(toy: Toy, tmp_path: Path) -> None:
    def fail(name: str, step: int, outputs: dict[str, torch.Tensor]) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toy(tmp_path / "b", change=fail)
    assert not list(tmp_path.iterdir())


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


class FullFile(io.BytesIO):
    name = "digests.jsonl"
    write = full


def test_a_full_disk_is_named(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(
        EnvironmentUnfit, match=r"no room on the disk for tensors-0000.* needed \d+"
    ):
        toy(tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_during_the_capture_is_named(tmp_path: Path) -> None:
    step, boundary = (
        Step(request=0, token=0),
        Boundary(name="m", layer=0, ordinal=0, phase="decode"),
    )

    def write() -> None:
        with BundleWriter(tmp_path / "b") as writer:
            writer._digests = FullFile()
            writer.add(step, boundary, ())

    with pytest.raises(EnvironmentUnfit, match=r"no room on the disk for digests\.jsonl"):
        write()
    assert not list(tmp_path.iterdir())


def test_an_empty_capture_is_refused(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(CaptureIncomplete, match="no step was captured"):
        toy(tmp_path / "b", steps=0)
    assert not list(tmp_path.iterdir())


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


def test_boundaries_fire_in_one_order_and_steps_follow_tokens(
    toy_origin: Origin, tmp_path: Path
) -> None:
    plan = Plan(boundaries=(Declared(name="a"), Declared(name="b")), origin=toy_origin)

    def run(orders: tuple[str, ...], tokens: tuple[int, ...]) -> None:
        with capture(plan, tmp_path / "b") as session:
            for order, token in zip(orders, tokens, strict=True):
                with session.step(request=0, token=token, phase="decode"):
                    for name in order:
                        tap(name, torch.ones(1))

    with pytest.raises(CaptureIncomplete, match=r"a/.* fired after b/"):
        run(("ab", "ba"), (0, 1))
    with pytest.raises(UsageError, match="expected a token after 3, got 3"):
        run(("ab", "ab"), (3, 3))
    run(("ab", "ab"), (0, 1))


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(EnvironmentUnfit, match=r"cannot write there: Permission denied"):
        BundleWriter(tmp_path / "b")
