"""Which of a ledger's timings may price one model: of its calls, and all of one comparability."""

from collections.abc import Iterable
from dataclasses import dataclass

from bitgate.records.errors import UsageError
from bitgate.records.policy.judge import difference
from bitgate.records.timings import LaneTiming
from bitgate.sim.arch import Term
from bitgate.sim.peaks import Peaks
from bitgate.sim.prices import split

DECLARED = "declared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The timings of one simulation, and where they were taken.

    Without any, `device` is that of the declared peaks, and the rest says so.
    """

    timings: tuple[LaneTiming, ...]
    device: str
    device_name: str
    node: str
    regime: str


def select(
    timings: Iterable[LaneTiming],
    terms: Iterable[Term],
    *,
    device: str | None = None,
    peaks: Peaks | None = None,
) -> Sources:
    """The timings of calls that the model makes, on plain random data.

    Args:
        timings: those of a ledger's lanes.
        terms: the model's operators.
        device: the kind of device; needed where the ledger has lanes on several.
        peaks: declared peaks; with them a model may have no timing at all.

    Raises:
        UsageError: several kinds of device and none is chosen; timings that must not enter one
            sum, with every field in which they differ; nothing to price the model with, or peaks
            of another device.
    """
    wanted = {term.key for term in terms}
    fitting = [
        found
        for found in timings
        if found.workload.case == "random" and split(found.workload)[0] in wanted
    ]
    devices = sorted({found.environment.device for found in fitting})
    if device is None and len(devices) > 1:
        raise UsageError(
            f"the ledger has lanes of this model on the devices {', '.join(devices)}; prices of "
            "different devices are never mixed. Choose one (--device)"
        )
    chosen = tuple(found for found in fitting if device in {None, found.environment.device})
    _one_comparability(chosen)
    if chosen:
        where = chosen[0].environment
        return Sources(
            timings=chosen,
            device=where.device,
            device_name=where.device_name,
            node=where.node,
            regime=chosen[0].regime,
        )
    if peaks is None:
        raise UsageError(
            f"nothing prices this model{'' if device is None else f' on {device}'}: no lane of the "
            "ledger is for one of its calls, and no peaks are declared. Open lanes for its shapes "
            "(`bitgate run FILE --open-lane`), or declare a device's peaks (--peaks FILE)"
        )
    if device not in {None, peaks.device}:
        raise UsageError(
            f"--device {device}: the ledger has no timing of this model there, and the declared "
            f"peaks of {peaks.name} are of {peaks.device}; declare peaks of {device}"
        )
    return Sources(
        timings=(),
        device=peaks.device,
        device_name=peaks.name,
        node=DECLARED,
        regime=DECLARED,
    )


def _one_comparability(timings: tuple[LaneTiming, ...]) -> None:
    """Raise UsageError where two timings were not taken under the same conditions."""
    for other in timings[1:]:
        differing = difference(timings[0].comparability, other.comparability)
        if differing:
            raise UsageError(
                f"the timings of {timings[0].lane} and {other.lane} cannot enter one simulation; "
                f"they differ in: {'; '.join(differing)}. Measure both under the same conditions"
            )
