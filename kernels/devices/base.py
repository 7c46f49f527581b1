"""The protocol of a device, and what it reports about itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from bitgate.records.errors import EnvironmentUnfit
from bitgate.records.libraries import mapped_libraries
from bitgate.records.types import Pairs

GraphLevel = Literal["none", "capture", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What probing found. `missing` names each fact that could not be had, with the reason."""

    name: str
    available: bool
    reason: str
    device_name: str = ""
    count: int = 0
    memory_bytes: int | None = None
    driver: str | None = None
    capability: str | None = None
    uuid: str | None = None
    cache_bytes: int | None = None
    missing: Pairs = ()

    @property
    def libraries(self) -> Pairs:
        """(file name, SHA-256) of the native libraries mapped by now; more come with first use."""
        return mapped_libraries()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Times one call. `resolution_ns` is what the clock can tell apart, measured or declared."""

    name: str
    resolution_ns: int
    elapsed_ns: Callable[[Callable[[], object]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSupport:
    """How far graph capture goes: not at all, captured only, or replayed with right values."""

    level: GraphLevel
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The state of the device while it measures; None where `missing` gives the reason."""

    clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    missing: Pairs = ()


class Device(ABC):
    """One kind of device. Nothing outside this folder branches on its name."""

    name: str

    @abstractmethod
    def probe(self) -> DeviceFacts:
        """Allocate, compute and read back, and say what is there. Never raises for absence."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything that this thread queued on its current stream is done."""

    @abstractmethod
    def timer(self) -> Timer:
        """The best clock for one call, work on the device included."""

    @abstractmethod
    def graph_support(self) -> GraphSupport:
        """Capture and replay a small computation, and say how far that went."""

    def graph(self, call: Callable[[], object]) -> Callable[[], None]:  # noqa: ARG002
        """Capture what `call` launches; return what replays it on the same memory.

        The call must have run before, so that nothing is compiled or loaded during capture.

        Raises:
            EnvironmentUnfit: this kind of device has no graphs.
        """
        raise EnvironmentUnfit(
            f"expected a device with graph capture, got {self.name}: {self.graph_support().reason}"
        )

    @abstractmethod
    def telemetry(self) -> Telemetry:
        """Clock, temperature and power at this moment."""

    def flusher(self) -> Callable[[], None]:
        """A function that evicts the last-level cache by writing a buffer of twice its size.

        The buffer lives as long as the function. Raises EnvironmentUnfit without the device.
        """
        facts = self.require()
        size = 2 * (facts.cache_bytes or FALLBACK_CACHE_BYTES)
        buffer = torch.zeros(min(size, MAX_FLUSH_BYTES), dtype=torch.uint8, device=self.name)

        def flush() -> None:
            buffer.add_(1)
            self.synchronize()

        return flush

    def require(self) -> DeviceFacts:
        """The facts of a device that is there, or EnvironmentUnfit: why not, and what to do."""
        facts = self.probe()
        if not facts.available:
            raise EnvironmentUnfit(
                f"device {self.name} was asked for and is not usable here: {facts.reason}; "
                f"{self.remedy}"
            )
        return facts

    @property
    @abstractmethod
    def remedy(self) -> str:
        """What a user can do when the device is absent."""


# Larger than the last-level cache of the devices known when this was written, except servers with
# stacked caches, whose size the system reports.
FALLBACK_CACHE_BYTES = 64 << 20
# A virtual machine reports its host's whole cache; writing more than this would cost more than a
# cold call is worth.
MAX_FLUSH_BYTES = 512 << 20
