"""Devices: the processor, CUDA and XPU behind one narrow protocol (`base.Device`)."""

from bitgate.kernels.devices.base import (
    Device,
    DeviceFacts,
    GraphSupport,
    Telemetry,
    Timer,
)
from bitgate.kernels.devices.cpu import CpuDevice
from bitgate.kernels.devices.cuda import CudaDevice
from bitgate.kernels.devices.poison import PATTERNS, Pattern, poison
from bitgate.kernels.devices.xpu import XpuDevice
from bitgate.records.errors import UsageError

__all__ = [
    "Device",
    "DeviceFacts",
    "Timer",
    "GraphSupport",
    "Telemetry",
    "DEVICES",
    "device",
    "poison",
    "Pattern",
    "PATTERNS",
]

DEVICES: tuple[Device, ...] = (CpuDevice(), CudaDevice(), XpuDevice())


def device(name: str, devices: tuple[Device, ...] = DEVICES) -> Device:
    """The device that was asked for, after it has computed something; never another one.

    Raises:
        UsageError: no such kind of device.
        EnvironmentUnfit: it is not usable on this node; says why and what to do.
    """
    for found in devices:
        if found.name == name:
            found.require()
            return found
    raise UsageError(f"unknown device {name!r}; known: {', '.join(one.name for one in devices)}")
