"""The processor: always there, and still probed by computing."""

import platform
from collections.abc import Callable
from pathlib import Path

# By name: a module that replaces time.perf_counter_ns afterwards does not reach this clock.
from time import perf_counter_ns

import torch

from bitgate.kernels.devices.base import Device, DeviceFacts, GraphSupport, Telemetry, Timer
from bitgate.records.types import Pairs

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class CpuDevice(Device):
    """The host's processor as torch computes on it.

    Args:
        system: where the kernel describes the processors; a test gives its own folder.
        cpuinfo: where the kernel names the processor.
    """

    name = "cpu"

    def __init__(
        self,
        system: Path = Path("/sys/devices/system/cpu/cpu0"),
        cpuinfo: Path = Path("/proc/cpuinfo"),
    ) -> None:
        self._system = system
        self._cpuinfo = cpuinfo

    def probe(self) -> DeviceFacts:
        """Compute one sum, and read what the system says about the processor."""
        works = (torch.ones(4, device="cpu") + 1).sum().item() == 8.0
        cache_bytes = self._last_level_cache_bytes()
        missing: Pairs = () if cache_bytes else (("cache_bytes", f"{self._system}: no cache size"),)
        return DeviceFacts(
            name=self.name,
            available=works,
            reason="computes" if works else "a sum of eight ones is not 8",
            device_name=self._processor(),
            count=1,
            capability=torch.backends.cpu.get_cpu_capability(),
            cache_bytes=cache_bytes,
            missing=missing,
        )

    def synchronize(self) -> None:
        """Nothing to wait for: a call on the processor returns when it is done."""

    def timer(self) -> Timer:
        """The performance counter, with the smallest step that it was seen to take."""
        steps = set()
        for _ in range(2000):
            before = perf_counter_ns()
            after = perf_counter_ns()
            if after > before:
                steps.add(after - before)
        return Timer(
            name="perf_counter_ns",
            resolution_ns=min(steps, default=1),
            elapsed_ns=_elapsed_ns,
        )

    def graph_support(self) -> GraphSupport:
        """Graphs do not exist here."""
        return GraphSupport(level="none", reason="a processor has no graphs to capture")

    def telemetry(self) -> Telemetry:
        """The clock where the system shows it."""
        path = self._system / "cpufreq" / "scaling_cur_freq"
        clock = _read_int(path)
        missing = (
            *((("clock_mhz", f"{path} is not readable"),) if clock is None else ()),
            ("power_milliwatts", "not measured on processors"),
            ("temperature_celsius", "not measured on processors"),
        )
        return Telemetry(clock_mhz=None if clock is None else clock // 1000, missing=missing)

    @property
    def remedy(self) -> str:
        """A processor that cannot add needs another torch."""
        return "reinstall torch for this processor"

    def _last_level_cache_bytes(self) -> int | None:
        sizes = []
        for size in self._system.glob("cache/index*/size"):
            text = size.read_text().strip()
            if text[:-1].isdigit() and text[-1:] in _UNITS:
                sizes.append(int(text[:-1]) * _UNITS[text[-1]])
        return max(sizes, default=None)

    def _processor(self) -> str:
        if self._cpuinfo.is_file():
            for line in self._cpuinfo.read_text().splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
        return platform.processor() or platform.machine()


def _elapsed_ns(call: Callable[[], object]) -> int:
    before = perf_counter_ns()
    call()
    return perf_counter_ns() - before


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
