"""Where a capture comes from: model, weights, node and versions, for the manifest."""

import hashlib
import json
from typing import Any

import torch

from bitgate.kernels.devices import device
from bitgate.parity.bundle_format import ModelIdentity
from bitgate.parity.capture_plan import Origin
from bitgate.parity.digests import digest
from bitgate.records.provenance import environment, harness
from bitgate.records.types import Environment, Pairs

# Facts of the copy at hand, not of the model.
_NOT_CONFIGURATION = frozenset({"_name_or_path", "transformers_version"})


def here(name: str) -> Environment:
    """This node with the device that was asked for; EnvironmentUnfit if that is not there."""
    facts = device(name).require()
    return environment(
        device=facts.name,
        device_name=facts.device_name,
        device_count=facts.count,
        threads=torch.get_num_threads(),
        probes=(),
        libraries=facts.libraries,
        missing=facts.missing,
    )


def weights_sha256(module: torch.nn.Module) -> str:
    """One hash over names, dtypes, shapes and digests of all weights and persistent buffers."""
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        shape = list(tensor.shape)
        total.update(f"{name} {tensor.dtype} {shape} {digest(tensor)}\n".encode())
    return total.hexdigest()


def origin_of(model: Any, *, name: str, taps_version: int, implementation: Pairs) -> Origin:
    """The origin of a capture of a transformers model that computes on one device."""
    settings = {
        key: value for key, value in model.config.to_dict().items() if key not in _NOT_CONFIGURATION
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    return Origin(
        producer=harness(),
        model=ModelIdentity(
            name=name,
            model_type=model.config.model_type,
            config_sha256=hashlib.sha256(text.encode()).hexdigest(),
            weights_sha256=weights_sha256(model),
        ),
        environment=here(model.device.type),
        implementation=implementation,
        tap_profile=(
            ("dose", "T3"),
            ("taps", f"{model.config.model_type}/{taps_version}"),
        ),
    )
