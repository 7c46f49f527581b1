"""What CUDA and XPU share: both are reached through torch.accelerator and one torch namespace."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from bitgate.kernels.devices.base import Device, DeviceFacts, GraphSupport, Telemetry, Timer
from bitgate.records.types import Pairs

# What torch raises for a device that its build or this node lacks, and for a driver that fails.
ABSENT = (AssertionError, AttributeError, NotImplementedError, RuntimeError)
# What the telemetry calls raise without their library, driver or rights.
_SILENT = (*ABSENT, ImportError, OSError, ValueError)


class AcceleratorDevice(Device):
    """A device behind a torch namespace of its own name.

    Args:
        api: the torch module; a test gives a stand-in with the few names that are used.
    """

    graph_class: str
    resolution_ns: int

    def __init__(self, api: Any = torch) -> None:
        self._api = api

    @property
    def _backend(self) -> Any:
        return getattr(self._api, self.name)

    def probe(self) -> DeviceFacts:
        """Allocate, compute and read back on the device: names alone exist on every build."""
        seen = self._seen()
        try:
            values = (self._api.ones(4, device=self.name) + 1).cpu().tolist()
        except ABSENT as error:
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            return DeviceFacts(name=self.name, available=False, reason=f"{message} ({seen})")
        if values != [2.0] * 4:
            return DeviceFacts(
                name=self.name, available=False, reason=f"1 + 1 gave {values} there ({seen})"
            )
        return self._describe()

    def synchronize(self) -> None:
        """Wait for the current stream only; the other streams go on."""
        self._api.accelerator.current_stream(self.name).synchronize()

    def timer(self) -> Timer:
        """A pair of events on the current stream."""
        return Timer(
            name=f"{self.name}-event",
            resolution_ns=self.resolution_ns,
            elapsed_ns=self._elapsed_ns,
        )

    def graph_support(self) -> GraphSupport:
        """Capture x + 1, change x, replay, and look whether the result followed."""
        try:
            before = self._api.ones(4, device=self.name)
            (before + 1).cpu()  # what is loaded at first use must not be loaded during capture
            results: list[Any] = []
            replay = self.graph(lambda: results.append(before + 1))
        except ABSENT as error:
            return GraphSupport(level="none", reason=f"capture failed: {error}")
        try:
            before.fill_(2)
            replay()
            self.synchronize()
            values = results[0].cpu().tolist()
        except ABSENT as error:
            return GraphSupport(level="capture", reason=f"replay failed: {error}")
        if values != [3.0] * 4:
            return GraphSupport(level="capture", reason=f"replay of 2 + 1 gave {values}")
        return GraphSupport(level="replay", reason="captured and replayed with right values")

    def graph(self, call: Callable[[], object]) -> Callable[[], None]:
        """Capture on a stream of the graph's own; see the base."""
        graph = getattr(self._backend, self.graph_class)()
        with self._backend.graph(graph):
            call()
        replay: Callable[[], None] = graph.replay
        return replay

    def telemetry(self) -> Telemetry:
        """What the vendor's management library says; a reason for each that it does not."""
        clock, no_clock = self._ask("clock_mhz", "clock_rate")
        degrees, no_degrees = self._ask("temperature_celsius", "temperature")
        power, no_power = self._ask("power_milliwatts", "power_draw")
        return Telemetry(
            clock_mhz=clock,
            temperature_celsius=degrees,
            power_milliwatts=power,
            missing=(*no_clock, *no_power, *no_degrees),
        )

    @abstractmethod
    def _driver(self, properties: Any) -> str | None:
        """The driver's version, or None."""

    @abstractmethod
    def _capability(self, properties: Any) -> str:
        """What code the device runs, such as 9.0 or an architecture's name."""

    @abstractmethod
    def _cache_bytes(self, properties: Any) -> int | None:
        """The size of the last cache before memory, or None."""

    def _seen(self) -> str:
        """What torch sees instead, for the message."""
        accelerator = self._api.accelerator.current_accelerator()
        found = "no accelerator" if accelerator is None else f"accelerator {accelerator}"
        return f"torch {self._api.__version__} sees {found}"

    def _describe(self) -> DeviceFacts:
        properties = self._backend.get_device_properties(0)
        uuid = getattr(properties, "uuid", None)
        driver = self._driver(properties)
        cache_bytes = self._cache_bytes(properties)
        found = (("cache_bytes", cache_bytes), ("driver", driver), ("uuid", uuid))
        return DeviceFacts(
            name=self.name,
            available=True,
            reason="computes",
            device_name=str(properties.name),
            count=int(self._api.accelerator.device_count()),
            memory_bytes=int(properties.total_memory),
            driver=driver,
            capability=self._capability(properties),
            uuid=None if uuid is None else str(uuid),
            cache_bytes=cache_bytes,
            missing=tuple((name, "not stated here") for name, value in found if value is None),
        )

    def _elapsed_ns(self, call: Callable[[], object]) -> int:
        stream = self._api.accelerator.current_stream(self.name)
        start, end = (self._backend.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        call()
        end.record(stream)
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)

    def _ask(self, fact: str, function: str) -> tuple[int | None, Pairs]:
        try:
            return int(getattr(self._backend, function)()), ()
        except _SILENT as error:
            return None, ((fact, f"{type(error).__name__}: {error}"),)
