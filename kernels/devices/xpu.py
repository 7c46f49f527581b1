"""Intel devices through torch.xpu."""

from typing import Any

from bitgate.kernels.devices.accelerator import AcceleratorDevice


class XpuDevice(AcceleratorDevice):
    """An XPU device. Waiting is per stream: waiting for the whole device stalls other queues."""

    name = "xpu"
    graph_class = "XPUGraph"
    # The runtime states no number; one microsecond is above the tick of the known devices.
    resolution_ns = 1000

    @property
    def remedy(self) -> str:
        """What to look at when no XPU answers."""
        return (
            "look at sycl-ls, ZE_AFFINITY_MASK and whether torch is an XPU build, "
            "or ask for --device cpu"
        )

    def _driver(self, properties: Any) -> str | None:
        return str(properties.driver_version) or None

    def _capability(self, properties: Any) -> str:
        return str(properties.version)

    def _cache_bytes(self, properties: Any) -> int | None:
        # Older torch does not state it.
        return int(getattr(properties, "last_level_cache_size", 0)) or None
