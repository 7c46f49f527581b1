"""Tuned tiles on their way into an implementation: as text in its identity, as a TileConfig in it.

A candidate file names a tuned file; its whole content becomes part of the candidate's `config`, and
so of its digest. In the process that runs the implementation every call gets the TileConfig of its
own number of tokens as the keyword `config`, as an engine chooses it. References keep their
default: a candidate whose tiles change the bits is found out, not followed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from bitgate.kernels.moe.configs import (
    Resolved,
    TunedFile,
    entry_of,
    from_file,
    parse,
    tile_config,
)
from bitgate.kernels.moe.configs_vllm import Lookup
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, FP8_CONFIG, TileConfig
from bitgate.records.errors import UsageError
from bitgate.records.proof import Pairs, Workload

# The name among a candidate's config pairs; no operator has a constant of this name.
TILES: Final = "tiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledOp:
    """An operator with tiles: `rows` is the tensor with a row for each token.

    `intermediate` are axes of which one must be a multiple of the file's N, by that factor.
    `block_m` is that of the alignment, where it is an input and not for the tiles to choose, and
    `default` what implementations take without a file.
    """

    rows: str
    intermediate: tuple[tuple[str, int], ...]
    block_m: int | None = None
    default: TileConfig = DEFAULT_CONFIG


TILED: Final = {
    "moe_experts": TiledOp(rows="x", intermediate=(("intermediate", 1),)),
    # The first matmul has both halves as columns, the second sums over one.
    "moe_gemm": TiledOp(
        rows="a", intermediate=(("n", 2), ("k", 1)), block_m=DEFAULT_CONFIG.block_m
    ),
    "moe_experts_fp8": TiledOp(rows="x", intermediate=(("intermediate", 1),), default=FP8_CONFIG),
    "moe_gemm_fp8": TiledOp(
        rows="a",
        intermediate=(("n", 2), ("k", 1)),
        block_m=FP8_CONFIG.block_m,
        default=FP8_CONFIG,
    ),
}


def packed(file: TunedFile) -> str:
    """A tuned file as one line of text, from which `unpacked` makes it again."""
    content: dict[str, Any] = {str(tokens): entry for tokens, entry in file.entries}
    if file.triton_version is not None:
        content["triton_version"] = file.triton_version
    whole = {"file": file.name, "sha256": file.sha256, "content": content}
    return json.dumps(whole, separators=(",", ":"))


def unpacked(text: str) -> TunedFile:
    """The tuned file of a text that `packed` has made."""
    whole = json.loads(text)
    file = parse(whole["file"], json.dumps(whole["content"]).encode())
    return replace(file, sha256=whole["sha256"])


def of_config(config: Pairs) -> str:
    """The packed tiles among a candidate's config pairs; empty where it has none."""
    return dict(config).get(TILES, "")


def without(config: Pairs) -> Pairs:
    """The config that two sides must share to be compared: each has tiles of its own."""
    return tuple(pair for pair in config if pair[0] != TILES)


def resolved(op: str, text: str, workload: Workload) -> Resolved:
    """The tiles of one workload.

    Raises:
        UsageError: the operator has no tiles, the file was tuned for other extents, or what it
            holds for this number of tokens is no TileConfig.
    """
    tiled, file = _tiled(op), unpacked(text)
    experts = workload.axis("experts")
    sizes = [workload.axis(axis) // factor for axis, factor in tiled.intermediate]
    file.require(experts, next((one for one in sizes if file.is_for(experts, one)), sizes[-1]))
    found = at(file, workload.axis("tokens"))
    block_m = tile_config(found).block_m
    if tiled.block_m not in (None, block_m):
        raise UsageError(
            f"{found.source}: BLOCK_SIZE_M {block_m}; the pairs of {op} come aligned by "
            f"{tiled.block_m}, expected tiles of that"
        )
    return found


def bound(function: Callable[..., Any], op: str, text: str) -> Callable[..., Any]:
    """The implementation with the tiles of each call's number of tokens as its `config`."""
    rows, file = _tiled(op).rows, unpacked(text)
    configs: dict[int, TileConfig] = {}

    def with_tiles(**arguments: Any) -> Any:
        tokens = len(arguments[rows])
        if tokens not in configs:
            configs[tokens] = tile_config(at(file, max(tokens, 1)))
        return function(**arguments, config=configs[tokens])

    return with_tiles


def notes(found: Resolved) -> Pairs:
    """What a record says about the tiles: the dictionary, and where it comes from."""
    pairs = [(name, str(value)) for name, value in found.tiles.items()]
    pairs.append(("source", found.source))
    pairs += [("sha256", found.sha256)] if found.sha256 else []
    pairs += [("key", str(found.key))] if found.key is not None else []
    pairs += [("notes", "; ".join(found.notes))] if found.notes else []
    return tuple((f"{TILES}:{name}", value) for name, value in pairs)


def default_notes(op: str) -> Pairs:
    """What a record says about an implementation that takes tiles and was given none."""
    name = "FP8_CONFIG" if _tiled(op).default == FP8_CONFIG else "DEFAULT_CONFIG"
    entry = entry_of(_tiled(op).default)
    return notes(Resolved(tiles=dict(entry), tokens=0, source=f"{name}, no file"))


def _tiled(op: str) -> TiledOp:
    if op not in TILED:
        raise UsageError(f"tiles: {op} has none; operators with tiles: {', '.join(TILED)}")
    return TILED[op]


def at(file: TunedFile, tokens: int) -> Resolved:
    """The tiles of a file for a number of tokens, launched as its name says."""
    place = dict(file.place)
    shape = json.loads(place["block_shape"]) if "block_shape" in place else None
    lookup = Lookup(
        experts=int(place["experts"]),
        intermediate=int(place["columns"]),
        tokens=tokens,
        device_name=place["device"],
        dtype=place.get("dtype", "bf16"),
        block_shape=None if shape is None else (shape[0], shape[1]),
    )
    return from_file(file, lookup)
