"""Tuned tiles: files in vLLM's form, what they resolve to for a number of tokens, and from where.

A file maps token counts to tiles. Its name says for which experts, device and dtype it was tuned:

    E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json
    {"triton_version": "3.6.0", "64": {"BLOCK_SIZE_M": 16, ..., "num_stages": 3}, "4096": {...}}

The entry of the nearest token count is taken, the first of two that are equally near. Where there
is no file the engine's defaults stand in, and they moved between releases: what is recorded is the
resolved dictionary with where it came from, never a name alone.

Keys that no kernel of vLLM's experts reads are refused. Those that other platforms' compilers read
are kept and shown; `tile_config` refuses them, because a TileConfig cannot express them.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bitgate.kernels.arguments import whole_number
from bitgate.kernels.moe import configs_vllm
from bitgate.kernels.moe.configs_vllm import DTYPES, Entry, Lookup, file_name
from bitgate.kernels.moe.contract import TileConfig
from bitgate.records.errors import UsageError

_BLOCKS: Final = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_REQUIRED: Final = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "GROUP_SIZE_M", "num_warps", "num_stages")
# Of AMD's and Intel's compilers, and clusters, which one may stand only where it says nothing.
_EXTRAS: Final = ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "grf_mode", "num_ctas")
_KNOWN: Final = (*_BLOCKS, *_REQUIRED[2:], "SPLIT_K", *_EXTRAS)
_VERSION: Final = "triton_version"
# What Triton launches with where an engine's default does not say.
_TRITON: Final = {"num_warps": 4, "num_stages": 3}
FIELDS: Final = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
_NAME: Final = re.compile(
    r"E=(?P<experts>[1-9][0-9]*),N=(?P<columns>[1-9][0-9]*),device_name=(?P<device>[^,]+)"
    r"(?:,dtype=(?P<dtype>[^,]+))?"
    r"(?:,block_shape=(?P<block_shape>\[[1-9][0-9]*,[1-9][0-9]*\]))?\.json"
)
_SLOW: Final = (
    "published figures show about a factor of two without one: Qwen3-30B-A3B on an H100, 4096 "
    "tokens, 1.58 ms in vLLM 0.14 without a file against 0.836 ms in 0.24 (aiconfigurator's tables)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFile:
    """A checked file: its entries in the file's order, and what identifies it.

    `place` is its name's content: experts, columns (N), device, dtype, block_shape.
    """

    name: str
    sha256: str
    entries: tuple[tuple[int, Entry], ...]
    triton_version: str | None
    place: tuple[tuple[str, str], ...]

    def nearest(self, tokens: int) -> tuple[int, Entry]:
        """The token count nearest to `tokens`, of two the one that stands first, and its tiles."""
        return min(self.entries, key=lambda entry: abs(entry[0] - tokens))

    def is_for(self, experts: int, intermediate: int) -> bool:
        """Whether the file was tuned for these extents."""
        place = dict(self.place)
        packing = 2 if place.get("dtype") == "int4_w4a16" else 1
        return (place["experts"], place["columns"]) == (str(experts), str(intermediate * packing))

    def require(self, experts: int, intermediate: int) -> None:
        """Raise UsageError unless the file was tuned for these extents."""
        if not self.is_for(experts, intermediate):
            raise UsageError(
                f"{self.name}: expected a file for {experts} experts of {intermediate} "
                "intermediate elements, got one whose name says otherwise; name that of this shape"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The tiles that an engine launches with, and where they came from; this is what is recorded.

    `key` is the token count of the file's entry, None where `source` is a default. `notes` say
    what was changed or is unusual, `warning` what costs speed.
    """

    tiles: Entry
    tokens: int
    source: str
    sha256: str | None = None
    key: int | None = None
    notes: tuple[str, ...] = ()
    warning: str | None = None


def read(path: Path) -> TunedFile:
    """Read and check a tuned file.

    Raises:
        UsageError: it is not there, its name or content is not of that form, or it has no entry;
            the message names file, key, what was expected and what came.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read the tuned file ({error.strerror})") from error
    return parse(path.name, data)


def parse(name: str, data: bytes) -> TunedFile:
    """A tuned file from its name and its bytes; raises as `read`."""
    place = _place(name)
    try:
        document = json.loads(data, object_pairs_hook=lambda pairs: _table(name, pairs))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{name}: expected a table by token counts, got {_shown(document)}")
    version = document.pop(_VERSION, None)
    if not isinstance(version, str | None):
        raise UsageError(f"{name}: {_VERSION}: expected a text, got {_shown(version)}")
    entries = tuple((_tokens(name, key), _entry(name, key, it)) for key, it in document.items())
    if not entries:
        raise UsageError(f"{name}: expected tiles for at least one token count, got none")
    counts = [tokens for tokens, _ in entries]
    if len(set(counts)) != len(counts):
        raise UsageError(f"{name}: expected each token count once, got {counts}")
    return TunedFile(
        name=name,
        sha256=hashlib.sha256(data).hexdigest(),
        entries=entries,
        triton_version=version,
        place=place,
    )


def resolve(lookup: Lookup, folders: Sequence[Path] = ()) -> Resolved:
    """The tiles that the engine launches with.

    Args:
        lookup: the engine's question.
        folders: where tuned files are looked for, a user's own before the engine's; the first
            that has the file wins.

    Raises:
        UsageError: a folder is none, a file does not hold what it should, or there is neither a
            file nor a known default.
    """
    return _resolve(lookup, file_name(lookup), folders)


def without_dtype(lookup: Lookup, folders: Sequence[Path] = ()) -> Resolved | None:
    """What a lookup that forgets the dtype launches with; None where that changes nothing.

    A profiler that derived the dtype's name from bf16 buffers timed these tiles instead of those
    that `fused_experts` takes: for FP8 in blocks another promotion interval, so other bits, too.
    """
    if DTYPES[lookup.dtype] is None:
        return None
    name = file_name(lookup).replace(f",dtype={DTYPES[lookup.dtype]}", "")
    plain = replace(lookup, dtype="bf16", block_shape=None)
    found = _resolve(plain, name, folders)
    # The launch still knows that the weights are quantised in blocks.
    found = replace(found, tiles=configs_vllm.clamped(found.tiles, lookup))
    return None if found.tiles == resolve(lookup, folders).tiles else found


def _resolve(lookup: Lookup, name: str, folders: Sequence[Path]) -> Resolved:
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: expected a folder with tuned files; there is none")
    paths = [] if lookup.batch_invariant else [folder / name for folder in folders]
    path = next((one for one in paths if one.exists()), None)
    if path is not None:
        return from_file(read(path), lookup)
    rules = configs_vllm.engine(lookup.engine)
    if lookup.batch_invariant:
        source, warning = f"batch-invariant mode of vLLM {rules.version}, files ignored", None
    else:
        source = f"default of vLLM {rules.version}, no file"
        places = ", ".join(map(str, folders)) or "no folder was named"
        warning = f"no {name} ({places}); {_SLOW}"
    entry: Entry = dict(configs_vllm.default(lookup))
    launched = configs_vllm.clamped(entry, lookup)
    return Resolved(
        tiles=launched,
        tokens=lookup.tokens,
        source=source,
        notes=_clamp_note(entry, launched, lookup),
        warning=warning,
    )


def from_file(file: TunedFile, lookup: Lookup) -> Resolved:
    """The tiles that one file gives for a lookup, whatever its name says."""
    key, entry = file.nearest(lookup.tokens)
    launched = configs_vllm.clamped(entry, lookup)
    notes = _clamp_note(entry, launched, lookup)
    if file.triton_version is not None:
        notes += (f"tuned with Triton {file.triton_version}",)
    extras = [name for name in entry if name in _EXTRAS]
    if extras:
        notes += (f"settings of another platform's compiler: {', '.join(extras)}",)
    return Resolved(
        tiles=launched,
        tokens=lookup.tokens,
        source=f"file {file.name}",
        sha256=file.sha256,
        key=key,
        notes=notes,
    )


def tile_config(resolved: Resolved) -> TileConfig:
    """The tiles as this package's kernels take them; what they do not say is Triton's default.

    Raises:
        UsageError: a TileConfig cannot express them.
    """
    tiles = _TRITON | resolved.tiles
    neutral = {"SPLIT_K": 1, "num_ctas": 1}
    for name, value in tiles.items():
        if name in FIELDS.values() or neutral.get(name) == value:
            continue
        raise UsageError(
            f"{resolved.source}: {name}={value} cannot be expressed by a TileConfig, which has "
            f"{', '.join(FIELDS)}; it was not tuned for these kernels"
        )
    for name in FIELDS.values():
        if name not in tiles:
            raise UsageError(f"{resolved.source}: expected {name} for a TileConfig, got none")
    try:
        return TileConfig(**{field: int(tiles[name]) for field, name in FIELDS.items()})
    except UsageError as error:
        raise UsageError(f"{resolved.source}: {error}") from None


def entry_of(config: TileConfig) -> dict[str, int]:
    """A TileConfig under the names of the files."""
    return {name: getattr(config, field) for field, name in FIELDS.items()}


def _place(name: str) -> tuple[tuple[str, str], ...]:
    """What a file's name says; UsageError where it is not of that form."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise UsageError(
            f"{name}: expected a name such as E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,"
            "block_shape=[128,128].json (dtype and block_shape where they apply); files for "
            "another backend are not for this kernel"
        )
    return tuple((part, text) for part, text in found.groupdict().items() if text)


def _clamp_note(entry: Entry, launched: Entry, lookup: Lookup) -> tuple[str, ...]:
    if entry == launched:
        return ()
    was, now = entry["BLOCK_SIZE_K"], launched["BLOCK_SIZE_K"]
    return (
        f"BLOCK_SIZE_K {was} is launched as {now}: block_shape {list(lookup.block_shape or ())}",
    )


def _table(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise UsageError(f"{name}: expected each key once, got twice: {', '.join(twice)}")
    return table


def _tokens(name: str, key: str) -> int:
    tokens = whole_number(key)
    if not tokens:
        raise UsageError(f"{name}: expected token counts as keys and {_VERSION}, got {_shown(key)}")
    return tokens


def _entry(name: str, key: str, value: Any) -> Entry:
    where = f"{name}: key {key}"
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table of tiles, got {_shown(value)}")
    unknown = [one for one in value if one not in _KNOWN]
    if unknown:
        raise UsageError(
            f"{where}: unknown {', '.join(unknown)}; expected of {', '.join(_KNOWN)}. A file "
            "with others was tuned for another kernel"
        )
    missing = [one for one in _REQUIRED if one not in value]
    if missing:
        raise UsageError(f"{where}: expected {', '.join(missing)} as well, got {', '.join(value)}")
    for setting, given in value.items():
        _check_setting(f"{where}: {setting}", setting, given)
    return dict(value)


def _check_setting(where: str, setting: str, given: Any) -> None:
    if setting in _EXTRAS:
        if isinstance(given, bool) or not isinstance(given, int | str):
            raise UsageError(f"{where}: expected a whole number or a text, got {_shown(given)}")
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"{where}: expected a whole number of at least 1, got {_shown(given)}")
    # Triton launches with no other number of warps either.
    if setting in (*_BLOCKS, "num_warps") and given & (given - 1):
        raise UsageError(f"{where}: expected a power of two, got {given}")
    if setting == "SPLIT_K" and given != 1:
        raise UsageError(f"{where}: expected 1, got {given}; this kernel never splits K")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
