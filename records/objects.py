"""Files of evidence, kept by their SHA-256 below the ledger: objects/ab/ab12..."""

import hashlib
import os
from pathlib import Path

from bitgate.records.base import require_sha256
from bitgate.records.durable import make_directory, replace_file
from bitgate.records.proof import Evidence


class ObjectError(Exception):
    """An object that is missing, or whose bytes were changed."""


class ObjectStore:
    """Content-addressed files below `root`; an object that exists is never written again."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, sha256: str) -> Path:
        """Where the object with this hash lies, or would lie."""
        require_sha256(sha256, "object")
        return self._root / sha256[:2] / sha256

    def put(self, data: bytes, media: str) -> Evidence:
        """Store `data` durably; media is its media type, such as application/json.

        Raises:
            EnvironmentUnfit: no room on disk, or no permission; nothing was stored.
            ObjectError: the object is there already and was changed since.
        """
        evidence = Evidence(
            sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), media=media
        )
        path = self.path(evidence.sha256)
        if path.exists():
            self.get(evidence.sha256)
        else:
            make_directory(path.parent)
            replace_file(path, data, suffix=f".{os.getpid()}.tmp")
        return evidence

    def get(self, sha256: str) -> bytes:
        """The bytes of an object.

        Raises:
            ObjectError: there is no such object, or its bytes no longer have this hash.
        """
        path = self.path(sha256)
        if not path.is_file():
            raise ObjectError(f"the object {path} is missing")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ObjectError(f"the object {path} was changed: its SHA-256 is another")
        return data
