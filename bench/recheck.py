"""What promotion asks to be computed again: the stored evidence, and the effect."""

from bitgate.bench.effect import effect
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.policy import Recheck
from bitgate.records.types import Effect, Record


class _Recheck:
    """Digests are compared again by parity, statistics are computed again from raw samples."""

    def evidence(self, record: Record, ledger: Ledger) -> tuple[str, ...]:
        """Complaints about the stored evidence of the passed gates."""
        from bitgate.parity.gates import recheck_evidence

        return recheck_evidence(record, ledger.get)

    def effect(self, record: Record) -> Effect:
        """The effect that the raw samples carry now."""
        if record.measurement is None:
            raise UsageError(f"record of {record.candidate.name}: it holds no measurement")
        return effect(record.measurement).effect


def recheck() -> Recheck:
    """The re-check that `bitgate records promote` uses."""
    return _Recheck()
