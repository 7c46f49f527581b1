"""What a capture declares before it begins: its boundaries, and where it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bitgate.parity.bundle_format import NO_LAYER, ModelIdentity
from bitgate.records.errors import UsageError
from bitgate.records.types import Environment, Harness, Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A boundary that must fire `calls` times in every step. `source` says where it comes from."""

    name: str
    layer: int = NO_LAYER
    calls: int = 1
    op: str | None = None
    contract: str | None = None
    constants: Mapping[str, float | int | str] = field(default_factory=dict)
    closed: bool = False
    source: str = "tap()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a capture comes from; goes into the manifest as it is."""

    producer: Harness
    model: ModelIdentity
    environment: Environment
    implementation: Pairs = ()
    compile_cache: str | None = None
    tap_profile: Pairs = (("dose", "T3"),)
    parallel: Pairs = (("rank", "0"), ("world_size", "1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to capture: every boundary is digested in every step.

    The tensors of the last `keep_steps` steps are stored as well; None stores all of them.
    """

    boundaries: tuple[Declared, ...]
    origin: Origin
    keep_steps: int | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        if not self.boundaries:
            raise UsageError("expected at least one declared boundary, got none")
        if self.keep_steps is not None and self.keep_steps < 0:
            raise UsageError(f"keep_steps: expected 0 or more steps, got {self.keep_steps}")
