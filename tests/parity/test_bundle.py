"""What a bundle holds, how it is read, and how it is written."""

import errno
import io
import pathlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bitgate.parity.bundle import Bundle, BundleWriter, Step
from bitgate.parity.bundle_format import constant_pairs, constant_values
from bitgate.parity.capture import CaptureIncomplete, Declared, Origin, Plan, capture, tap
from bitgate.parity.digests import digest
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.types import Boundary

Toy = Callable[..., Path]


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
    assert frames[2].constants == {"eps": 1e-6, "n": 4, "score": "top-k"}
    x = torch.arange(1, 9).float().reshape(2, 4)
    assert torch.equal(first.inputs()["x"], x)
    assert torch.equal(first.outputs()["y"], x.bfloat16() * 3)
    assert first.meta("y").digest == digest(x.bfloat16() * 3)
    assert first.finite == {"x": 8, "y": 8, "half": 4}
    with pytest.raises(UsageError, match=r"no tensor 'z'; it has \['x', 'y', 'half'\]"):
        first.load("z")


def test_constants_read_back_as_they_were_written() -> None:
    constants = {"a": -3, "b": 1e-6, "c": float("inf"), "d": "it's 4", "e": "7", "f": ""}
    assert constant_values(constant_pairs(constants)) == constants
    for damaged in ("", "four", "'four", "'a' + 'b'"):
        with pytest.raises(ValueError, match=r"four|convert|malformed"):
            constant_values((("n", damaged),))


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
