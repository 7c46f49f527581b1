"""Tuned files are read or refused by key, resolved as the engine does, and say where they are from.

tests/parity/foreign_vllm/test_tuned_files.py compares with the engine's own functions.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bitgate.kernels.moe.configs import (
    TunedFile,
    entry_of,
    from_file,
    parse,
    read,
    resolve,
    tile_config,
    without_dtype,
)
from bitgate.kernels.moe.configs_vllm import Lookup, file_name
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.records.errors import UsageError

NAME = "E=128,N=768,device_name=NVIDIA_H200.json"
TILES = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}


def lookup(tokens: int = 64, **changes: Any) -> Lookup:
    values = {"experts": 128, "intermediate": 768, "device_name": "NVIDIA H200"} | changes
    return Lookup(tokens=tokens, **values)


def made(entries: dict[str, Any], name: str = NAME) -> TunedFile:
    return parse(name, json.dumps(entries).encode())


def write(folder: Path, entries: dict[str, Any], name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (lookup(), NAME),
        (lookup(dtype="fp16"), NAME),
        (lookup(device_name="NVIDIA H200 NVL"), NAME),
        (
            lookup(device_name="NVIDIA H200 NVL", engine="0.10.2"),
            "E=128,N=768,device_name=NVIDIA_H200_NVL.json",
        ),
        (lookup(device_name="NVIDIA H20"), "E=128,N=768,device_name=NVIDIA_H20.json"),
        (
            lookup(dtype="fp8_w8a8", block_shape=(128, 64)),
            "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,64].json",
        ),
        # Two codes of four bits are packed into a byte: the file counts the columns twice.
        (
            lookup(dtype="int4_w4a16"),
            "E=128,N=1536,device_name=NVIDIA_H200,dtype=int4_w4a16.json",
        ),
    ],
)
def test_the_name_of_a_file(asked: Lookup, name: str) -> None:
    assert file_name(asked) == name


@pytest.mark.parametrize(
    ("tokens", "key"),
    [(1, 1), (4, 1), (5, 8), (16, 24), (17, 24), (4096, 24), (15, 8)],
)
def test_the_nearest_count_counts_and_the_first_of_two(tokens: int, key: int) -> None:
    # 16 is as near to 24 as to 8, and 24 stands first.
    file = made({str(count): TILES for count in (24, 1, 8)})
    assert file.nearest(tokens)[0] == key


def test_a_users_folder_wins_and_the_origin_is_kept(tmp_path: Path) -> None:
    shipped = write(tmp_path / "shipped", {"1": TILES})
    mine = write(tmp_path / "mine", {"triton_version": "3.6.0", "1": TILES | {"num_warps": 8}})
    found = resolve(lookup(), [mine.parent, shipped.parent])
    assert found.tiles["num_warps"] == 8
    assert found.source == f"file {NAME}"
    assert found.key == 1
    assert found.sha256 == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert found.notes == ("tuned with Triton 3.6.0",)
    assert found.warning is None
    assert resolve(lookup(), [shipped.parent]).tiles["num_warps"] == 4


def test_without_a_file_the_default_is_named_and_its_price(tmp_path: Path) -> None:
    found = resolve(lookup(4096), [tmp_path])
    assert found.source == "default of vLLM 0.33.0, no file"
    assert (found.sha256, found.key) == (None, None)
    assert NAME in str(found.warning)
    assert "factor of two" in str(found.warning)


def test_a_folder_that_is_not_there_is_no_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a folder with tuned files"):
        resolve(lookup(), [tmp_path / "typo"])


@pytest.mark.parametrize(
    ("tokens", "changes", "tiles"),
    [
        # M, N, K, group, warps and stages; None: Triton's own.
        (128, {"engine": "0.10.2"}, (16, 32, 64, 1, None, None)),
        (129, {"engine": "0.10.2"}, (64, 64, 32, 8, None, None)),
        (4096, {"engine": "0.10.2", "dtype": "fp8_w8a8"}, (64, 64, 32, 8, None, None)),
        (
            4096,
            {"engine": "0.10.2", "dtype": "fp8_w8a8", "block_shape": (128, 64)},
            (64, 128, 64, 32, 4, 3),
        ),
        (1, {}, (16, 64, 128, 1, 4, 4)),
        (32, {}, (16, 64, 128, 1, 4, 4)),
        (33, {}, (32, 64, 128, 1, 4, 3)),
        (96, {}, (32, 128, 64, 1, 4, 3)),
        (512, {}, (64, 128, 64, 1, 8, 3)),
        (128 * 129 - 1, {}, (128, 128, 64, 1, 8, 3)),
        (128 * 129, {}, (128, 128, 64, 16, 8, 3)),
        (4096, {"dtype": "fp8_w8a8"}, (128, 128, 128, 1, 8, 3)),
        (4, {"dtype": "fp8_w8a8", "block_shape": (128, 128)}, (16, 64, 128, 1, 4, 4)),
        (4, {"dtype": "fp8_w8a8", "block_shape": (32, 32)}, (16, 32, 32, 1, 4, 3)),
        (8, {"dtype": "fp8_w8a8", "block_shape": (128, 128)}, (16, 64, 128, 1, 4, 3)),
        (64, {"dtype": "fp8_w8a8", "block_shape": (128, 128)}, (16, 128, 128, 32, 4, 3)),
        (65, {"dtype": "fp8_w8a8", "block_shape": (128, 128)}, (64, 128, 128, 32, 4, 3)),
        (1, {"batch_invariant": True}, (64, 64, 32, 8, None, None)),
        (4096, {"batch_invariant": True}, (64, 64, 32, 8, None, None)),
    ],
)
def test_the_defaults_by_version(
    tokens: int, changes: dict[str, Any], tiles: tuple[int | None, ...]
) -> None:
    found = resolve(lookup(tokens, **changes)).tiles
    assert tuple(found.get(name) for name in TILES) == tiles


def test_the_batch_invariant_mode_ignores_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"1": TILES}).parent
    found = resolve(lookup(batch_invariant=True), [folder])
    assert found.tiles["BLOCK_SIZE_N"] == 64
    assert found.tiles != resolve(lookup(), [folder]).tiles
    assert "files ignored" in found.source
    assert found.warning is None


@pytest.mark.parametrize("shape", [(128, 64), (64, 128)])
def test_a_step_over_k_stays_within_a_scale_group(tmp_path: Path, shape: tuple[int, int]) -> None:
    # The engine takes the smaller extent, whichever axis it belongs to.
    asked = lookup(dtype="fp8_w8a8", block_shape=shape)
    folder = write(tmp_path / "mine", {"64": TILES}, file_name(asked)).parent
    found = resolve(asked, [folder])
    assert found.tiles["BLOCK_SIZE_K"] == 64
    assert found.notes == (f"BLOCK_SIZE_K 128 is launched as 64: block_shape {list(shape)}",)


def test_a_lookup_that_forgets_the_dtype_is_found_out(tmp_path: Path) -> None:
    # A profiler that took the dtype from bf16 buffers timed 64/64/32 where the model ran 64/128/64.
    asked = lookup(4096, dtype="fp8_w8a8", block_shape=(128, 64), engine="0.10.2")
    wrong = without_dtype(asked)
    assert wrong is not None
    assert [wrong.tiles[name] for name in ("BLOCK_SIZE_N", "BLOCK_SIZE_K")] == [64, 32]
    tuned = write(tmp_path / "mine", {"64": TILES}, file_name(asked)).parent
    assert without_dtype(asked, [tuned]) is not None
    # A file under the wrong name that says the same changes nothing, and bf16 has no such part.
    write(tuned, {"64": TILES}, file_name(asked).replace(",dtype=fp8_w8a8", ""))
    assert without_dtype(asked, [tuned]) is None
    assert without_dtype(lookup()) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "0.31"}, r"known \(0\.10\.2, 0\.32\.0, 0\.33\.0\), got '0\.31'"),
        ({"engine": "0.3"}, r"got '0\.3'"),
        # Which of several would be a guess.
        ({"engine": "0"}, r"got '0';"),
        ({"dtype": "fp8"}, "dtype: expected one of bf16"),
        ({"block_shape": (128, 128)}, "without the dtype finds another file"),
        ({"dtype": "fp8_w8a8", "block_shape": (128, 0)}, "expected two extents"),
        ({"experts": 0}, "experts: expected at least 1, got 0"),
        ({"device_name": " "}, "device_name"),
        ({"device_name": "AMD Instinct MI300X"}, "ROCm"),
        ({"dtype": "int4_w4a16", "block_shape": (32, 32)}, "completes these defaults"),
        ({"engine": "0.10.2", "batch_invariant": True}, "no batch-invariant mode"),
    ],
)
def test_questions_without_an_answer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(lookup(**changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "expected a table by token counts, got"),
        (b"{}", "at least one token count, got none"),
        (b'{"triton_version": "3.6.0"}', "at least one token count"),
        (b'{"triton_version": 3, "1": {}}', "triton_version: expected a text, got 3"),
        (b'{"1": {}, "1": {}}', "each key once, got twice: 1"),
        (b'{"one": {}}', "expected token counts as keys and triton_version, got 'one'"),
        (b'{"0": {}}', "got '0'"),
        (b'{"%s": {}}' % (b"9" * 5000), "expected token counts as keys"),
        (b'{"1": 16}', "key 1: expected a table of tiles, got 16"),
        (json.dumps({"1": TILES, "01": TILES}).encode(), "each token count once"),
        (json.dumps({"1": TILES | {"tile_m": 16}}).encode(), "key 1: unknown tile_m"),
        (json.dumps({"1": TILES | {"SPLIT_K": 2}}).encode(), "never splits K"),
        (json.dumps({"1": TILES | {"BLOCK_SIZE_M": 48}}).encode(), "power of two, got 48"),
        (json.dumps({"1": TILES | {"num_warps": 0}}).encode(), "at least 1, got 0"),
        (json.dumps({"1": TILES | {"num_warps": 3}}).encode(), "num_warps: expected a power of"),
        (json.dumps({"1": TILES | {"num_warps": "4"}}).encode(), "got '4'"),
        (json.dumps({"1": TILES | {"num_warps": True}}).encode(), "got True"),
        (json.dumps({"1": TILES | {"kpack": [2]}}).encode(), "kpack: expected a whole number"),
        (b'{"1": {"BLOCK_SIZE_M": 16}}', "expected BLOCK_SIZE_N, GROUP_SIZE_M"),
    ],
)
def test_a_file_that_says_something_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse(NAME, content)
    assert str(refused.value).startswith(NAME)


@pytest.mark.parametrize(
    "name",
    [
        "tiles.json",
        "E=384,N=256,device_name=AMD,dtype=int4_w4a16,backend=flydsl.json",
        "E=0,N=256,device_name=D.json",
        "E=\u0663,N=256,device_name=D.json",
        "E=8,N=64,device_name=D,dtype=fp8_w8a8,block_shape=[0128,128].json",
    ],
)
def test_a_file_of_another_kernel_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected a name such as"):
        made({"1": TILES}, name)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the tuned file"):
        read(tmp_path / NAME)


def test_a_file_belongs_to_its_shape() -> None:
    made({"1": TILES}).require(128, 768)
    made({"1": TILES}, NAME.replace(".json", ",dtype=int4_w4a16.json")).require(128, 384)
    with pytest.raises(UsageError, match="expected a file for 64 experts of 768"):
        made({"1": TILES}).require(64, 768)


def test_tiles_come_back_as_they_were_written() -> None:
    config = TileConfig(block_m=32, block_n=64, block_k=128, group_m=16, num_warps=8, num_stages=2)
    file = made({"64": entry_of(config)})
    assert tile_config(from_file(file, lookup())) == config
    # Without a word about it, Triton launches with 4 warps and 3 stages.
    assert tile_config(resolve(lookup(4096, engine="0.10.2"))) == TileConfig(
        block_m=64, block_n=64, block_k=32, group_m=8, num_warps=4, num_stages=3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"waves_per_eu": 2}, "waves_per_eu=2 cannot be expressed"),
        ({"grf_mode": "256"}, "grf_mode=256 cannot be expressed"),
        ({"num_ctas": 2}, "num_ctas=2 cannot be expressed"),
        ({"BLOCK_SIZE_M": 8}, "expected block_m to be a power of two from 16 to 1024, got 8"),
        ({"BLOCK_SIZE_K": None}, "expected BLOCK_SIZE_K for a TileConfig, got none"),
    ],
)
def test_what_a_tile_config_cannot_express_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    tiles = {name: value for name, value in (TILES | changes).items() if value is not None}
    found = from_file(made({"1": tiles}), lookup())
    with pytest.raises(UsageError, match=message):
        tile_config(found)


def test_what_says_nothing_may_stand() -> None:
    found = from_file(made({"1": TILES | {"SPLIT_K": 1, "num_ctas": 1}}), lookup())
    assert tile_config(found).block_k == 128
    assert tile_config(from_file(made({"1": entry_of(DEFAULT_CONFIG)}), lookup())) == DEFAULT_CONFIG
