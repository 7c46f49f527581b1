"""What this node can do, found out by trying; works without torch and says that it is missing."""

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from bitgate.records.console import console, print_json, table
from bitgate.records.libraries import mapped_libraries
from bitgate.records.provenance import end_of_life, harness, switches

Status = Literal["ok", "missing", "unfit", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report: what was looked at, how it is, and what to do about it."""

    area: str
    name: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package, the lowest version that works, and what it is needed for."""

    package: str
    minimum: tuple[int, ...]
    needed_for: str
    required: bool


REQUIREMENTS = (
    Requirement(
        package="torch", minimum=(2, 11), needed_for="kernels (2.8: capture)", required=True
    ),
    Requirement(package="triton", minimum=(3, 6), needed_for="Triton kernels", required=True),
    Requirement(package="numba", minimum=(0, 62), needed_for="fast CPU paths", required=False),
    Requirement(package="transformers", minimum=(5, 19), needed_for="capture", required=False),
    Requirement(package="vllm", minimum=(0, 10, 2), needed_for="vLLM suites", required=False),
    Requirement(package="nvidia-ml-py", minimum=(13,), needed_for="CUDA telemetry", required=False),
    Requirement(package="pyzes", minimum=(0, 1), needed_for="XPU telemetry", required=False),
)
LEGACY = ("intel-extension-for-pytorch", "oneccl-bindings-for-pytorch")


def examine() -> tuple[Finding, ...]:
    """Everything that the report says, in its order."""
    return (
        *_node(),
        *_packages(),
        *_devices(),
        *_legacy(),
        *(_finding("switch", name, "note", value) for name, value in switches()),
        *(_finding("library", name, "note", digest) for name, digest in mapped_libraries()),
    )


def run(*, as_json: bool) -> int:
    """Print the report; 0 where the main job can run, 4 where something it needs is missing."""
    findings = examine()
    fit = not any(one.status == "unfit" for one in findings)
    if as_json:
        print_json({"fit": fit, "findings": [asdict(one) for one in findings]})
    else:
        report = table("bitgate doctor", "area", "what", "status", "detail")
        for one in findings:
            report.add_row(one.area, one.name, one.status, one.detail)
        console().print(report)
        console().print(
            "This node can run the main job on its CPU."
            if fit
            else "This node cannot run the main job: mend the lines marked unfit."
        )
    return 0 if fit else 4


def _finding(area: str, name: str, status: Status, detail: str) -> Finding:
    return Finding(area=area, name=name, status=status, detail=detail)


def _node() -> Iterator[Finding]:
    own = harness()
    state = f"commit {own.commit or 'unknown'}{', with local changes' if own.dirty else ''}"
    yield _finding("bitgate", own.version, "ok", f"{state}, sources {own.source_sha256[:12]}")
    yield _finding("node", "python", "ok", platform.python_version())
    yield _finding("node", "system", "ok", platform.platform())
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    room: Status = "unfit" if free_gib < 1 else "ok"
    yield _finding("node", "disk", room, f"{free_gib:.1f} GiB free here; a run needs about 1 GiB")
    compiler = shutil.which("g++") or shutil.which("clang++")
    yield _finding(
        "node",
        "C++ compiler",
        "ok" if compiler else "missing",
        compiler or "torch.compile on the CPU needs one; install g++",
    )


def _packages() -> Iterator[Finding]:
    for need in REQUIREMENTS:
        wanted = ".".join(map(str, need.minimum))
        try:
            found = version(need.package)
        except PackageNotFoundError:
            status: Status = "unfit" if need.required else "missing"
            yield _finding("package", need.package, status, f"{need.needed_for}: needs >= {wanted}")
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", found.partition("+")[0]))
        fits = numbers >= need.minimum
        status = "ok" if fits else "unfit" if need.required else "note"
        detail = found if fits else f"{found}; {need.needed_for} needs >= {wanted}"
        yield _finding("package", need.package, status, detail)


def _devices() -> Iterator[Finding]:
    try:
        from bitgate.kernels.devices import DEVICES
    except ModuleNotFoundError as error:
        yield _finding("device", "any", "unfit", f"they are tried through torch: {error}")
        return

    for device in DEVICES:
        facts = device.probe()
        if not facts.available:
            yield _finding("device", device.name, "missing", facts.reason)
            continue
        about = [
            facts.device_name,
            f"{facts.count} x",
            f"{facts.memory_bytes / 2**30:.0f} GiB" if facts.memory_bytes else "",
            f"driver {facts.driver}" if facts.driver else "",
            facts.capability or "",
            f"graphs: {device.graph_support().level}",
        ]
        yield _finding("device", device.name, "ok", ", ".join(part for part in about if part))


def _legacy() -> Iterator[Finding]:
    present = []
    for name in LEGACY:
        try:
            present.append((name, version(name)))
        except PackageNotFoundError:
            continue
    for name, why in end_of_life(tuple(present)):
        yield _finding("end of life", name, "note", f"{dict(present)[name]}: {why}")
    if not present:
        yield _finding("end of life", "none", "ok", f"none of {', '.join(LEGACY)} is installed")
