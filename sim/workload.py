"""Request traces: what arrives when, with how many tokens. Times are integer nanoseconds."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bitgate.records.errors import UsageError

_MOST_DIGITS = 12
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace. `arrival_ns` counts from the trace's first arrival.

    priority: a smaller number is more important, where the engine's policy asks
    segments: (segment, tokens) runs that name its first tokens, prompt and then output: requests
        share a prefix exactly as far as their runs agree; unnamed tokens are shared with nobody
    """

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    segments: tuple[tuple[int, int], ...] = ()


def read_azure(path: Path) -> Iterator[Request]:
    """Yield the requests of an Azure LLM inference trace, in file order.

    Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023 (CSV with the
    columns TIMESTAMP, ContextTokens, GeneratedTokens; times in UTC with up to seven decimals).

    Raises:
        UsageError: the file is missing, empty or no text table, a column is missing, or a row has
            an unreadable time, a count below one, or an arrival before its predecessor; names file
            and line.
    """
    try:
        yield from _azure(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"{path}: {error}; expected a CSV as text with the columns {AZURE_COLUMNS}"
        ) from None


def _azure(path: Path) -> Iterator[Request]:
    if not path.is_file():
        raise UsageError(f"{path}: no such trace; expected a CSV with the columns {AZURE_COLUMNS}")
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = [name for name in AZURE_COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise UsageError(f"{path}, line 1: columns {missing} missing, got {rows.fieldnames}")
        first_ns = last_ns = None
        for number, row in enumerate(rows):
            where = f"{path}, line {number + 2}"
            arrival_ns = _nanoseconds(row["TIMESTAMP"], where)
            if last_ns is not None and arrival_ns < last_ns:
                raise UsageError(f"{where}: arrives before the line above; sort the trace by time")
            last_ns = arrival_ns
            first_ns = arrival_ns if first_ns is None else first_ns
            yield Request(
                id=number,
                arrival_ns=arrival_ns - first_ns,
                prompt_tokens=_count(row["ContextTokens"], f"{where}: ContextTokens"),
                output_tokens=_count(row["GeneratedTokens"], f"{where}: GeneratedTokens"),
            )
        if first_ns is None:
            raise UsageError(f"{path}: the trace holds no request")


def _nanoseconds(text: str | None, where: str) -> int:
    """Whole nanoseconds since the epoch; the seventh decimal does not fit datetime, so by hand."""
    seconds, _, decimals = (text or "").partition(".")
    try:
        whole = datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        fraction_ns = int(decimals.ljust(9, "0")) if decimals else 0
    except ValueError:
        fraction_ns = -1
    if fraction_ns < 0 or len(decimals) > 9:
        raise UsageError(f"{where}: expected a time like 2023-11-16 18:15:46.6805900, got {text!r}")
    return int(whole.timestamp()) * 1_000_000_000 + fraction_ns


def _count(text: str | None, where: str) -> int:
    """A token count of at least one."""
    if text is None or not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise UsageError(f"{where}: expected a whole number of at least 1, got {text!r:.60}")
    return int(text)
