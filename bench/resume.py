"""What a killed run leaves behind, and what of it may be used again.

`<ledger>/../runs/<candidate digest>/gates.json` holds passed gate results by their identity key: a
SHA-256 over everything that a gate's answer depends on. A changed byte anywhere gives another key,
so nothing stale is ever found. The ledger itself never holds half a run.
"""

import json

from bitgate.records.codec import FormatError, canonical, decode
from bitgate.records.durable import replace_file
from bitgate.records.errors import EnvironmentUnfit, LedgerBroken
from bitgate.records.ledger import Ledger
from bitgate.records.types import GateResult


class RunState:
    """The passed gates of one candidate, kept beside a ledger."""

    def __init__(self, ledger: Ledger, digest: str) -> None:
        self._ledger = ledger
        self.path = ledger.root.resolve().parent / "runs" / digest / "gates.json"
        self._kept: dict[str, GateResult] = {}

    def load(self) -> dict[str, GateResult]:
        """The results whose evidence still lies in the ledger; empty where nothing was kept.

        Raises:
            EnvironmentUnfit: the file is damaged; says which to remove.
        """
        if not self.path.is_file():
            return {}
        try:
            stored = json.loads(self.path.read_bytes())
            kept = {
                key: decode(GateResult, json.dumps(value).encode()) for key, value in stored.items()
            }
        except (AttributeError, ValueError, FormatError) as error:
            raise EnvironmentUnfit(
                f"{self.path} is damaged ({error}); remove it, or run without --resume"
            ) from error
        self._kept = {key: result for key, result in kept.items() if self._has_evidence(result)}
        return dict(self._kept)

    def keep(self, key: str, result: GateResult) -> None:
        """Store a passed result; a crash leaves the file as it was, or with it."""
        if result.outcome != "pass":
            return
        self._kept[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plain = {key: json.loads(canonical(value)) for key, value in self._kept.items()}
        replace_file(self.path, json.dumps(plain, indent=1, sort_keys=True).encode())

    def _has_evidence(self, result: GateResult) -> bool:
        if result.evidence is None:
            return False
        try:
            self._ledger.get(result.evidence.sha256)
        except LedgerBroken:
            return False
        return True
