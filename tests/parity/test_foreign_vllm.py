"""Without a vLLM that the adapter was tested with, it says so; what vLLM cannot do is refused."""

import re
import sys
from types import ModuleType

import pytest

from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.parity import foreign_vllm
from bitgate.records.errors import EnvironmentUnfit, UsageError


def installed(version: str) -> ModuleType:
    module = ModuleType("vllm")
    vars(module)["__version__"] = version
    return module


def test_a_process_without_vllm_is_told_where_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EnvironmentUnfit, match=r"scripts/vllm_env makes an environment"):
        foreign_vllm.vllm("_custom_ops")


@pytest.mark.parametrize("version", ["0.31.1", "0.32.0.post1", "1.0.0+cpu"])
def test_another_version_is_refused(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", installed(version))
    with pytest.raises(EnvironmentUnfit, match=re.escape(f"expected vLLM 0.32.0, got {version}")):
        foreign_vllm.vllm("_custom_ops")


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu"])
def test_a_tested_version_gives_its_modules(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "vllm", installed(version))
    ops = ModuleType("vllm._custom_ops")
    monkeypatch.setitem(sys.modules, ops.__name__, ops)
    assert foreign_vllm.vllm("_custom_ops") is ops


@pytest.mark.parametrize("name", ["clamped", "padding"])
def test_experts_that_vllm_does_not_compute_are_refused(name):
    (case,) = [case for case in MOE_EXPERTS.integer_cases() if case.name == name]
    with pytest.raises(UsageError, match="choose another workload"):
        foreign_vllm.moe_experts("vec", **case.inputs, **case.constants)
