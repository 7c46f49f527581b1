"""Which modules of which models are boundaries: one file per model family, one line below."""

from bitgate.parity.taps.deepseek_v4 import DEEPSEEK_V4
from bitgate.parity.taps.qwen3_moe import QWEN3_MOE
from bitgate.parity.taps.spec import ModelTaps
from bitgate.records.errors import UsageError

__all__ = ["TAPS", "ModelTaps", "taps_for"]

TAPS: tuple[ModelTaps, ...] = (DEEPSEEK_V4, QWEN3_MOE)


def taps_for(model_type: str) -> ModelTaps:
    """The boundaries of a model family. Raises UsageError that lists the known ones."""
    for found in TAPS:
        if found.model_type == model_type:
            return found
    known = ", ".join(found.model_type for found in TAPS)
    raise UsageError(
        f"model_type {model_type!r} has no declared boundaries; known: {known}. Declare them in a "
        "file of parity/taps, or capture your module with capture() and tap()"
    )
