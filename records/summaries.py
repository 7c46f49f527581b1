"""A simulation's summary as it was stored: the simulator's JSON of the schema bitgate-sim/1.

Only what people are shown is read here; a key that this version does not know is left alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, TypeAdapter, ValidationError

from bitgate.records.base import require_decimal
from bitgate.records.errors import LedgerBroken
from bitgate.records.ledger import Entry, Ledger
from bitgate.records.rows import PRICE_SOURCES, Simulation

SummarySchema = Literal["bitgate-sim/1"]
SUMMARY_SCHEMA: Final[SummarySchema] = get_args(SummarySchema)[0]


def _decimal(text: str) -> str:
    require_decimal(text, "it")
    return text


DecimalText = Annotated[str, AfterValidator(_decimal)]


class SummaryError(LedgerBroken):
    """The stored summary cannot be read, or says something else than its row."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One time over all requests, in nanoseconds; None where no request had it."""

    count: int
    mean: DecimalText | None
    p50: int | None
    p90: int | None
    p99: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Time to the first token, per further token and to the last, and the tokens per second."""

    ttft_ns: Spread
    tpot_ns: Spread
    e2e_ns: Spread
    output_tokens_per_second: DecimalText
    makespan_ns: int


@dataclass(frozen=True, slots=True)
class Price:
    """What all calls of one operator took, as a share of the busy time, and how that was had."""

    op: str
    calls: int
    ns: int
    share: DecimalText
    how: dict[str, DecimalText]
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """Where the prices came from; `basis` says whose timings were taken of each lane.

    `peaks` are the declared figures that prices are assumed from, if there are any.
    """

    basis: str
    regime: str
    allow_extrapolation: bool
    peaks: dict[str, Any] | None
    device: str
    device_name: str
    node: str
    ops: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """The simulated model."""

    name: str
    architecture: str
    dtype: str
    config_sha256: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests that were served."""

    trace: str
    sha256: str
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One simulation's answer. `engine` and `audit` are plain JSON objects."""

    schema: SummarySchema
    name: str
    labels: tuple[str, ...]
    model: Model
    workload: Trace
    engine: dict[str, Any]
    prices: Prices
    coverage: dict[str, DecimalText | int]
    metrics: Metrics
    audit: dict[str, Any]
    digest: str


def read_summary(ledger: Ledger, entry: Entry[Simulation]) -> Summary:
    """The summary of a simulation.

    Raises:
        LedgerBroken: the object is missing or was changed.
        SummaryError: it is no summary, or its row says something else.
    """
    data = ledger.get(entry.body.summary.sha256)
    try:
        summary = _adapter().validate_json(data, strict=True)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(map(str, detail["loc"])) or "the whole"
        raise SummaryError(
            f"the summary is not of {SUMMARY_SCHEMA}: {place}: {detail['msg']}"
        ) from None
    _require_same(summary, entry.body)
    return summary


def shares(coverage: Mapping[str, str | int]) -> tuple[tuple[str, Decimal], ...]:
    """The shares of a coverage that are not zero, 0 to 1, in the order of PRICE_SOURCES."""
    found = ((how, Decimal(coverage.get(how, 0))) for how in PRICE_SOURCES)
    return tuple((how, share) for how, share in found if share)


def in_words(coverage: Mapping[str, str | int]) -> str:
    """A coverage as one line, such as: 6 % exact, 94 % interpolated."""
    return ", ".join(f"{percent(share)} {how}" for how, share in shares(coverage))


def percent(share: Decimal | str) -> str:
    """A share in percent with two decimals at most; rounding never makes it all or nothing."""
    exact = Decimal(share)
    text = f"{exact * 100:.2f}".rstrip("0").rstrip(".")
    if text == "0" and exact > 0:
        return "below 0.01 %"
    return "above 99.99 %" if text == "100" and exact < 1 else f"{text} %"


def milliseconds(nanoseconds: int | str | None) -> str:
    """Nanoseconds, whole or as a decimal string, in milliseconds with three decimals."""
    return "none" if nanoseconds is None else f"{Decimal(nanoseconds).scaleb(-6):,.3f} ms"


def model_line(summary: Summary) -> str:
    """The simulated model as one line."""
    model = summary.model
    return f"{model.name}: {model.architecture}, {model.dtype}"


def workload_line(summary: Summary) -> str:
    """The served requests as one line."""
    trace = summary.workload
    return (
        f"{trace.requests:,} requests of {trace.trace} with {trace.prompt_tokens:,} prompt and "
        f"{trace.output_tokens:,} output tokens"
    )


def prices_line(summary: Summary) -> str:
    """How the prices were had, as one line."""
    prices = summary.prices
    beyond = "extrapolated" if prices.allow_extrapolation else "not extrapolated"
    peaks = "no declared peaks" if prices.peaks is None else f"peaks: {one_line(prices.peaks)}"
    return f"{prices.basis}, regime {prices.regime}, {beyond}; {peaks}"


def tokens_per_second(summary: Summary) -> str:
    """The served output tokens per second, with two decimals."""
    return f"{Decimal(summary.metrics.output_tokens_per_second):,.2f}"


def source_line(summary: Summary) -> str:
    """What a reader must know before any number: whose timings these are."""
    prices = summary.prices
    if Decimal(summary.coverage["assumed"]) == 1:
        return "Nothing here was measured: every price is assumed"
    kind = "CPU timings" if prices.device == "cpu" else f"{prices.device} timings"
    return f"{kind} of node {prices.node} ({prices.device_name})"


def audit_line(summary: Summary) -> str:
    """Whether the simulation conserved what it must, and what it counted."""
    counts = {name: value for name, value in summary.audit.items() if name != "passed"}
    passed = "passed" if summary.audit.get("passed") is True else "NOT PASSED"
    return f"{passed}: {one_line(counts)}"


def one_line(known: Mapping[str, Any]) -> str:
    """A JSON object as one line, such as: block_size 16, max_num_seqs 128."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in sorted(known.items()))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _require_same(summary: Summary, row: Simulation) -> None:
    """Raise SummaryError unless the row, which verification covers, says what its summary says."""
    prices = summary.prices
    priced = {identity for price in prices.ops for identity in price.record_ids}
    for what, told, written in (
        ("model", summary.model.name, row.model),
        ("device", prices.device, row.device),
        ("node", prices.node, row.node),
        ("coverage", shares(summary.coverage), shares(dict(row.coverage))),
        ("sources", sorted(priced), sorted(row.record_ids)),
    ):
        if told != written:
            raise SummaryError(
                f"the {what} of the summary is not that of the row: {told} and {written}"
            )


@cache
def _adapter() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)
