"""Content hashes that say which code was measured, and by which code."""

import hashlib
import os
import subprocess
from dataclasses import fields
from pathlib import Path

import bitgate
from bitgate.records.rows import Candidate, Harness

_SOURCE_SUFFIXES = frozenset({".py", ".toml", ".json", ".html", ".css"})


def candidate_digest(value: Candidate) -> str:
    """The SHA-256 over every field of the candidate except its name and the digest itself."""
    # Here, not above: a borrowed machine has the standard library alone and makes no digests.
    import rfc8785

    names = sorted({field.name for field in fields(value)} - {"name", "digest"})
    return hashlib.sha256(rfc8785.dumps([getattr(value, name) for name in names])).hexdigest()


def harness() -> Harness:
    """The identity of bitgate itself: version, sources, and its git revision in a checkout."""
    package = Path(bitgate.__file__).parent
    commit, dirty = _revision(package)
    return Harness(
        version=bitgate.__version__,
        commit=commit,
        dirty=dirty,
        source_sha256=_tree_sha256(package),
    )


def _tree_sha256(package: Path) -> str:
    """One hash over the paths and contents of all sources of the package, links followed."""
    total = hashlib.sha256()
    for directory, below, names in os.walk(package, followlinks=True):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            path = Path(directory, name)
            if path.suffix in _SOURCE_SUFFIXES:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                total.update(f"{path.relative_to(package).as_posix()} {digest}\n".encode())
    return total.hexdigest()


def _revision(package: Path) -> tuple[str | None, bool]:
    """The commit that holds the package and whether its sources differ; None outside of git."""
    # An environment inside somebody else's checkout is not tracked there: its commit is not ours.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, False
    commit = _git(package, "rev-parse", "HEAD")
    # Links lead from the package to the folders of the checkout, so the whole of it is asked.
    status = _git(package, "status", "--porcelain", "--", ":/*.py", ":/*.toml", ":/*.json")
    return commit, status != ""


def _git(directory: Path, *arguments: str) -> str | None:
    """The output of a git command; None where git is missing or refuses."""
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
