"""NVIDIA devices through torch.cuda."""

import re
from pathlib import Path
from typing import Any

import torch

from bitgate.kernels.devices.accelerator import AcceleratorDevice


class CudaDevice(AcceleratorDevice):
    """A CUDA device.

    Args:
        api: the torch module or a stand-in.
        driver_file: where the kernel module states its version.
    """

    name = "cuda"
    graph_class = "CUDAGraph"
    # CUDA documents about half a microsecond for events.
    resolution_ns = 500

    def __init__(
        self,
        api: Any = torch,
        driver_file: Path = Path("/proc/driver/nvidia/version"),
    ) -> None:
        super().__init__(api)
        self._driver_file = driver_file

    @property
    def remedy(self) -> str:
        """What to look at when no CUDA device answers."""
        return (
            "look at nvidia-smi, CUDA_VISIBLE_DEVICES and whether torch is a CUDA build, "
            "or ask for --device cpu"
        )

    def _driver(self, properties: Any) -> str | None:  # noqa: ARG002 - see the base
        try:
            text = self._driver_file.read_text()
        except OSError:
            return None
        found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)", text)
        return found[1] if found else None

    def _capability(self, properties: Any) -> str:
        return f"{properties.major}.{properties.minor}"

    def _cache_bytes(self, properties: Any) -> int | None:
        return int(properties.L2_cache_size) or None
