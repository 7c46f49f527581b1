"""Tiny models that stand in for a checkpoint where there is none: one file each, one line below."""

from bitgate.parity.tiny.build import TinyModel, build, prompts
from bitgate.parity.tiny.deepseek_v4 import TINY_DEEPSEEK_V4
from bitgate.parity.tiny.qwen3_moe import TINY_QWEN3_MOE
from bitgate.records.errors import UsageError

__all__ = ["TINY", "TinyModel", "build", "prompts", "tiny"]

TINY: tuple[TinyModel, ...] = (TINY_DEEPSEEK_V4, TINY_QWEN3_MOE)


def tiny(name: str) -> TinyModel:
    """A tiny model by name. Raises UsageError that lists the known ones."""
    for found in TINY:
        if found.name == name:
            return found
    known = ", ".join(found.name for found in TINY)
    raise UsageError(f"unknown tiny model {name!r}; known: {known}")
