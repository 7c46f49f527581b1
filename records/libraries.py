"""Which native libraries a process has mapped, by content: a version does not identify a build."""

import hashlib
from functools import cache
from pathlib import Path

from bitgate.records.proof import Pairs

# The libraries that compute or communicate; the rest of a process changes no bits.
_RELEVANT = (
    "libtorch_cpu.",
    "libtorch_cuda.",
    "libtorch_xpu.",
    "libccl.",
    "libnccl.",
    "libcublas.",
    "libcublasLt.",
    "libcudart.",
    "libmkl_core.",
    "libopenblas",
    "libscipy_openblas",
    "libsycl.",
    "libze_intel_gpu.",
    "libze_loader.",
    "libintel-ext-pt-",
    "libtriton.",
)


def mapped_libraries(
    names: tuple[str, ...] = _RELEVANT, maps: Path = Path("/proc/self/maps")
) -> Pairs:
    """(file name, SHA-256) of the mapped files whose names begin with one of `names`, in order.

    Empty where the system does not list its mappings. A file is hashed once in a process, again
    only when its size or time changed.
    """
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return ()
    # address perms offset device inode path
    columns = (line.split(maxsplit=5) for line in lines)
    paths = {Path(column[5]) for column in columns if len(column) == 6}
    chosen = sorted(path for path in paths if path.name.startswith(names) and path.is_file())
    return tuple((path.name, _sha256_of(path)) for path in chosen)


def _sha256_of(path: Path) -> str:
    facts = path.stat()
    return _hash(path, facts.st_size, facts.st_mtime_ns)


@cache
def _hash(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - part of the key
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
