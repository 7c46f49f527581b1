"""What was tuned, as a file that the engine and this package read, and a report beside it."""

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitgate.bench.tune import Tuned, Tuning, facts_of
from bitgate.kernels.devices import device
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.configs import entry_of, read, tile_config
from bitgate.kernels.moe.configs_vllm import Lookup, file_name
from bitgate.kernels.moe.contract import DEFAULT_CONFIG
from bitgate.records.durable import replace_file
from bitgate.records.errors import EnvironmentUnfit, UsageError
from bitgate.records.provenance import harness


def destination(tuning: Tuning, folder: Path, engine: str, *, force: bool) -> Path:
    """Where the tuned file will lie, under the name that the engine looks for.

    Raises:
        UsageError: the folder is none, or the file is there and `force` was not given.
        EnvironmentUnfit: the device is not usable here.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder for the tuned file; make it first")
    point = tuning.workloads[0]
    columns = {"moe_experts": ("intermediate", 1), "moe_gemm": ("n", 2)}
    axis, factor = columns[tuning.implementation.op]
    name = file_name(
        Lookup(
            experts=point.axis("experts"),
            intermediate=point.axis(axis) // factor,
            tokens=point.axis("tokens"),
            device_name=device(tuning.device).require().device_name,
            engine=engine,
        )
    )
    path = folder / name
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists; choose another folder with --out, or write over it with --force"
        )
    return path


def write(path: Path, tuned: Tuned, *, force: bool, triton_version: str) -> None:
    """Write the chosen tiles, all or nothing, and read them back as they will be read.

    Raises:
        UsageError: the file has come into being meanwhile, and `force` was not given.
        EnvironmentUnfit: it cannot be written.
    """
    content: dict[str, Any] = {"triton_version": triton_version}
    content |= {str(one.tokens): entry_of(one.config) for one in tuned.chosen}
    data = (json.dumps(content, indent=4) + "\n").encode()
    if force:
        replace_file(path, data)
    else:
        _create(path, data)
    file = read(path)
    for one in tuned.chosen:
        found = tile_config(tiles.at(file, one.tokens))
        if found != one.config:
            raise AssertionError(f"{path}: {one.tokens} tokens: {found}, expected {one.config}")


def _create(path: Path, data: bytes) -> None:
    """A new file with this content, or none: a link never replaces what is there."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tuned-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                os.fsync(stream.fileno())
            Path(name).chmod(0o644)
            path.hardlink_to(name)
        finally:
            with suppress(OSError):
                Path(name).unlink()
    except FileExistsError:
        raise UsageError(f"{path} has come into being meanwhile; nothing was written") from None
    except OSError as error:
        raise EnvironmentUnfit(f"{path}: cannot be written ({error.strerror})") from error


def save(path: Path, facts: dict[str, Any]) -> None:
    """Write a report, in one step. Raises EnvironmentUnfit where that does not work."""
    replace_file(path, (json.dumps(facts, indent=2) + "\n").encode())


def report(tuning: Tuning, tuned: Tuned, path: Path) -> dict[str, Any]:
    """All that was tried, rejected ones included, with raw samples: for people and for scripts."""
    facts = device(tuning.device).require()
    return {
        "op": tuning.implementation.op,
        "implementation": tuning.implementation.name,
        "contract": tuning.implementation.contract,
        "device": facts.name,
        "device_name": facts.device_name,
        "harness": asdict(harness()),
        "workloads": [one.key for one in tuning.workloads],
        "plan": asdict(tuning.plan),
        "alpha_of_each": tuning.share,
        "default": entry_of(DEFAULT_CONFIG),
        "file": str(path),
        "chosen": [
            {"tokens": one.tokens, "tiles": entry_of(one.config), "why": one.why}
            for one in tuned.chosen
        ],
        "tried": [facts_of(one) for one in tuned.tried],
    }
