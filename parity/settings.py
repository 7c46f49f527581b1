"""Process-wide state that changes other code's bits or speed; a kernel leaves it as it was."""

import hashlib
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

# Importing the compiler, and setting the default dtype, replace these: torch's own doing.
_REPLACED_BY_TORCH = frozenset({"manual_seed", "Storage"})
_WATCHED: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.Tensor", torch.Tensor),
    ("torch.nn.functional", torch.nn.functional),
)


def _functions() -> dict[str, Any]:
    return {
        f"{space}.{name}": value
        for space, holder in _WATCHED
        for name, value in [(name, getattr(holder, name)) for name in _names(holder)]
        if callable(value) and name not in _REPLACED_BY_TORCH
    }


def _names(holder: Any) -> list[str]:
    """A class has the methods of its bases too, and hides one by a name of its own."""
    own = [*vars(holder)]
    return [*own, *vars(torch._C.TensorBase)] if holder is torch.Tensor else own  # noqa: SLF001


# What torch's functions were before any candidate was imported.
_ORIGINAL: Mapping[str, Any] = _functions()


def settings() -> dict[str, str]:
    """What is set in this process now, as text by name; equal where nothing was changed.

    `float` shows denormals and the direction of rounding, `torch functions` the names that hold
    another function than when this module was imported, the `random` entries a digest of the
    state of each global generator.
    """
    return {
        "threads": str(torch.get_num_threads()),
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        "grad": f"{torch.is_grad_enabled()} {torch.is_anomaly_enabled()}",
        "float": _float_mode(sys.float_info.min, sys.float_info.epsilon),
        "numpy errors": str(sorted(np.geterr().items())),
        "working directory": os.getcwd(),  # noqa: PTH109 - the text as it is
        "torch functions": _replaced(),
        "random torch": _hash(torch.default_generator.get_state().numpy().tobytes()),
        "random numpy": _hash(repr(np.random.get_state()).encode()),  # noqa: NPY002 - the global one
        "random python": _hash(repr(random.getstate()).encode()),
    }


def _float_mode(smallest: float, epsilon: float) -> str:
    """Computed, because no library says it: half the smallest normal, and two halfway sums."""
    return f"{smallest / 2!r} {1 + epsilon / 4!r} {1 + 3 * epsilon / 4!r}"


def _replaced() -> str:
    now = _functions()
    changed = [name for name, value in _ORIGINAL.items() if now.get(name) != value]
    return ", ".join(changed[:5]) or "as they were"


def _hash(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()[:16]
