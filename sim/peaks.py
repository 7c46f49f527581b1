"""Declared peaks of a device: what an operator takes at least, where nothing was measured."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bitgate.records.base import Value, require
from bitgate.records.codec import FormatError, decode
from bitgate.records.errors import UsageError

_EXAMPLE = """such a file begins like this:

    device = "cuda"
    name = "H200 SXM"
    bytes_per_second = 4_800_000_000_000
    bytes_source = "where this number is from"
    flops_source = "where these numbers are from"
    launch_ns = 4_000
    launch_source = "where this number is from"
    [flops_per_second]
    bfloat16 = 989_000_000_000_000"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks(Value):
    """What somebody declares a device to reach; each number says where it is from.

    flops_per_second: (dtype, operations per second) pairs
    launch_ns: what each call takes besides
    """

    device: str
    name: str
    bytes_per_second: int
    bytes_source: str
    flops_per_second: tuple[tuple[str, int], ...]
    flops_source: str
    launch_ns: int
    launch_source: str

    def __post_init__(self) -> None:
        rates = (self.bytes_per_second, *(rate for _, rate in self.flops_per_second))
        require(min(rates) > 0, f"{self.name}: expected rates of at least 1 a second")
        require(self.launch_ns >= 0, f"{self.name}: expected launch_ns of 0 or more")
        for what in ("device", "name", "bytes_source", "flops_source", "launch_source"):
            require(bool(getattr(self, what).strip()), f"{what} is empty")

    def flops(self, dtype: str) -> int:
        """Operations per second in this dtype; UsageError where none is declared."""
        rates = dict(self.flops_per_second)
        if dtype not in rates:
            raise UsageError(
                f"the peaks of {self.name} name no operations per second for {dtype}, only for "
                f"{', '.join(rates) or 'nothing'}"
            )
        return rates[dtype]


def load_peaks(path: Path) -> Peaks:
    """Read a TOML file of declared peaks.

    Raises:
        UsageError: no such file, no TOML, a key that is missing, unknown or of another type.
    """
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
        rates = values.get("flops_per_second")
        if isinstance(rates, dict):
            values["flops_per_second"] = sorted(rates.items())
        return decode(Peaks, json.dumps(values).encode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; {_EXAMPLE}") from None
    # A TOML error is a ValueError, and so are bytes that are no text and numbers without end.
    except (ValueError, RecursionError, TypeError, FormatError) as error:
        raise UsageError(f"{path}: {error}; {_EXAMPLE}") from None
