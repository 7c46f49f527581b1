"""Names, defaults and nearest entries of tuned files are those of vLLM's own functions.

Found with vLLM 0.32.0: equal for 2 numbers of experts, 142 of tokens and 5 quantisations, and for
all 329 files of this kernel that it ships.
"""

import json
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from bitgate.kernels.moe import configs_vllm
from bitgate.kernels.moe.configs import read
from bitgate.kernels.moe.configs_vllm import Lookup, file_name

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def theirs(operators: ModuleType) -> ModuleType:
    with warnings.catch_warnings(action="ignore"):
        module: ModuleType = operators.vllm("model_executor.layers.fused_moe.fused_moe")
    return module


@pytest.mark.parametrize(
    ("dtype", "block_shape"),
    [
        ("bf16", None),
        ("fp8_w8a8", None),
        ("fp8_w8a8", (128, 128)),
        ("fp8_w8a8", (32, 64)),
        ("int8_w8a8", (128, 128)),
    ],
)
def test_defaults_and_names(theirs, monkeypatch, dtype, block_shape) -> None:
    monkeypatch.setattr(theirs, "get_device_name_as_file_name", lambda: "NVIDIA_H200_NVL")
    name = configs_vllm.DTYPES[dtype]
    shape = None if block_shape is None else list(block_shape)
    for experts, tokens in [(e, t) for e in (8, 128) for t in (*range(1, 140), 512, 513, 1152)]:
        asked = Lookup(
            experts=experts,
            intermediate=768,
            tokens=tokens,
            device_name="NVIDIA H200 NVL",
            dtype=dtype,
            block_shape=block_shape,
            engine="0.32",
        )
        expected = theirs.get_default_config(tokens, experts, 768, 2048, 8, name, shape)
        assert configs_vllm.default(asked) == expected
        assert file_name(asked) == theirs.get_config_file_name(experts, 768, name, shape)


def test_the_nearest_entry_of_every_file(theirs) -> None:
    found = 0
    for path in sorted((Path(theirs.__file__).parent / "configs").glob("E=*.json")):
        if "backend=" in path.name:
            continue
        file, content = read(path), json.loads(path.read_bytes())
        content.pop("triton_version", None)
        entries = {int(key): value for key, value in content.items()}
        for tokens in (1, 3, 12, 20, 28, 40, 80, 112, 2560, 100_000):
            key = min(entries, key=lambda count: abs(count - tokens))
            assert file.nearest(tokens) == (key, entries[key])
        found += 1
    assert found > 100
