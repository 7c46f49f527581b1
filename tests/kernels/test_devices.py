"""Devices: present, absent and lying ones, with a stand-in for the torch that has them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bitgate.kernels.devices import DEVICES, PATTERNS, device, poison
from bitgate.kernels.devices.base import Device
from bitgate.kernels.devices.cpu import CpuDevice
from bitgate.kernels.devices.cuda import CudaDevice
from bitgate.kernels.devices.xpu import XpuDevice
from bitgate.records.errors import EnvironmentUnfit, UsageError


class Stream:
    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Stream) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: "Event") -> float:
        return 0.25


class Graph:
    """Records nothing: a replay that leaves the captured result as it was."""

    def replay(self) -> None: ...


class Context:
    def __init__(self, graph: Graph) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *details: object) -> None: ...


def stand_in(name: str, **changes: Any) -> SimpleNamespace:
    """A torch that has the device: it computes on the processor and says it was `name`."""
    stream = Stream()
    properties = SimpleNamespace(
        name="Stand-in 9000",
        total_memory=1 << 30,
        uuid="1234-5678",
        major=9,
        minor=0,
        L2_cache_size=50 << 20,
        driver_version="1.6",
        version="20.1",
        last_level_cache_size=18 << 20,
    )
    backend = SimpleNamespace(
        get_device_properties=lambda index: properties,
        Event=Event,
        CUDAGraph=Graph,
        XPUGraph=Graph,
        graph=Context,
        clock_rate=lambda: 1980,
        temperature=lambda: 41,
        power_draw=missing_library,
    )
    api = SimpleNamespace(
        __version__="2.13.0",
        ones=lambda size, device: torch.ones(size),
        accelerator=SimpleNamespace(
            current_accelerator=lambda: name,
            device_count=lambda: 2,
            current_stream=lambda wanted: stream,
        ),
        **{name: backend},
    )
    vars(api).update(changes)
    return api


def missing_library() -> int:
    raise ModuleNotFoundError("pynvml is not installed")


def absent(size: int, device: str) -> torch.Tensor:
    raise AssertionError(f"Torch not compiled with {device.upper()} enabled\nmore lines")


def accelerators(name: str, **changes: Any) -> Device:
    kinds = {"cuda": CudaDevice, "xpu": XpuDevice}
    return kinds[name](stand_in(name, **changes))


def test_the_processor_is_there_and_says_what_it_is() -> None:
    facts = device("cpu").probe()
    assert facts.available
    assert facts.count == 1
    assert facts.device_name
    assert facts.libraries


def test_the_processor_reads_its_largest_cache(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "2048K", "36M", "weird")):
        (tmp_path / "cache" / f"index{index}").mkdir(parents=True)
        (tmp_path / "cache" / f"index{index}" / "size").write_text(f"{size}\n")
    cpu = CpuDevice(system=tmp_path)
    assert cpu.probe().cache_bytes == 36 << 20
    assert "clock_mhz" in dict(cpu.telemetry().missing)
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpufreq" / "scaling_cur_freq").write_text("2400000\n")
    assert cpu.telemetry().clock_mhz == 2400


def test_a_processor_without_cache_facts_says_so_and_still_flushes(tmp_path: Path) -> None:
    cpu = CpuDevice(system=tmp_path, cpuinfo=tmp_path / "none")
    facts = cpu.probe()
    assert facts.cache_bytes is None
    assert "cache_bytes" in dict(facts.missing)
    assert facts.device_name
    cpu.flusher()()


def test_the_processor_times_in_whole_nanoseconds() -> None:
    timer = device("cpu").timer()
    assert timer.resolution_ns >= 1
    calls = []
    assert timer.elapsed_ns(lambda: calls.append(1)) > 0
    assert calls == [1]
    assert device("cpu").graph_support().level == "none"
    device("cpu").synchronize()


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_a_present_accelerator_describes_itself(name: str) -> None:
    facts = accelerators(name).probe()
    assert facts.available
    assert (facts.device_name, facts.count, facts.uuid) == ("Stand-in 9000", 2, "1234-5678")
    assert facts.cache_bytes == {"cuda": 50 << 20, "xpu": 18 << 20}[name]
    assert facts.capability == {"cuda": "9.0", "xpu": "20.1"}[name]


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_an_absent_accelerator_is_an_error_with_a_remedy(name: str) -> None:
    with pytest.raises(EnvironmentUnfit) as caught:
        device(name, (CpuDevice(), accelerators(name, ones=absent)))
    message = str(caught.value)
    for part in (f"device {name} was asked for", "not compiled", "2.13.0", "--device cpu"):
        assert part in message
    assert "more lines" not in message


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_names_alone_are_no_presence(name: str) -> None:
    lying = accelerators(name, ones=lambda size, device: torch.zeros(size))
    assert not lying.probe().available
    assert "1 + 1 gave" in lying.probe().reason


def test_this_torch_has_no_hidden_fallback() -> None:
    for found in DEVICES:
        facts = found.probe()
        if not facts.available:
            with pytest.raises(EnvironmentUnfit, match=f"device {found.name} was asked for"):
                device(found.name)


def test_an_unknown_device_lists_the_known() -> None:
    with pytest.raises(UsageError, match="known: cpu, cuda, xpu"):
        device("tpu")


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_waiting_is_for_the_current_stream(name: str) -> None:
    api = stand_in(name)
    found = {"cuda": CudaDevice, "xpu": XpuDevice}[name](api)
    found.synchronize()
    assert api.accelerator.current_stream(name).waits == 1


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_events_time_in_nanoseconds(name: str) -> None:
    timer = accelerators(name).timer()
    assert timer.elapsed_ns(lambda: None) == 250_000
    assert timer.name == f"{name}-event"
    assert timer.resolution_ns >= 500


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_telemetry_gives_a_reason_for_what_is_missing(name: str) -> None:
    telemetry = accelerators(name).telemetry()
    assert (telemetry.clock_mhz, telemetry.temperature_celsius) == (1980, 41)
    assert telemetry.power_milliwatts is None
    assert "pynvml" in dict(telemetry.missing)["power_milliwatts"]


def test_a_replay_that_computes_nothing_is_only_a_capture() -> None:
    support = accelerators("cuda").graph_support()
    assert support.level == "capture"
    assert "gave [2.0" in support.reason


def test_a_replay_that_computes_is_recognised() -> None:
    kept: list[torch.Tensor] = []

    class Kept(torch.Tensor):
        """Remembers the captured input, so that the stand-in can replay the addition."""

        def __add__(self, other: object) -> torch.Tensor:
            result = torch.Tensor.as_subclass(self, torch.Tensor) + other
            kept.extend((torch.Tensor.as_subclass(self, torch.Tensor), result))
            return result

    class Replaying(Graph):
        def replay(self) -> None:
            kept[-1].copy_(kept[-2] + 1)

    api = stand_in("xpu", ones=lambda size, device: torch.ones(size).as_subclass(Kept))
    api.xpu.XPUGraph = Replaying
    assert XpuDevice(api).graph_support().level == "replay"


def test_a_device_without_graphs_says_why() -> None:
    api = stand_in("xpu")
    del api.xpu.XPUGraph
    support = XpuDevice(api).graph_support()
    assert support.level == "none"
    assert "XPUGraph" in support.reason


def test_the_cuda_driver_is_read_from_the_kernel_module(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue Feb\n")
    assert CudaDevice(stand_in("cuda"), driver_file=path).probe().driver == "535.161.08"
    facts = CudaDevice(stand_in("cuda"), driver_file=tmp_path / "none").probe()
    assert facts.driver is None
    assert "driver" in dict(facts.missing)


FLOATS = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_of_floats(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4).to(dtype)
    poison(tensor, "nan")
    assert tensor.to(torch.float64).isnan().all()
    poison(tensor, "huge")
    assert (tensor.to(torch.float64) == torch.finfo(dtype).max).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_poison_of_integers_has_two_faces(dtype: torch.dtype) -> None:
    tensor = torch.ones(3).to(dtype)
    seen = []
    for pattern in PATTERNS:
        poison(tensor, pattern)
        seen.append(tensor.clone())
    assert (seen[0] != seen[1]).all()


def test_poison_respects_the_gaps_of_a_view() -> None:
    whole = torch.zeros(4, 4)
    poison(whole[:, ::2], "nan")
    assert whole[:, ::2].isnan().all()
    assert (whole[:, 1::2] == 0).all()


def test_poison_refuses_what_it_has_no_pattern_for() -> None:
    with pytest.raises(TypeError, match=r"no poison for torch\.complex64"):
        poison(torch.zeros(1, dtype=torch.complex64), "nan")
