"""What an operator is, and what all of them share: envelope, element sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bitgate.records.errors import UsageError
from bitgate.records.proof import Workload

Axes = Mapping[str, int]

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
FP32_BYTES: Final = 4
INT32_BYTES: Final = 4
INT64_BYTES: Final = 8

ENVELOPE: Final = (
    "From the call, with all inputs resident on the device, until every result is complete there. "
    "Inside: each launch that the call makes, allocation of results and workspaces, and the final "
    "wait. Outside: compiling, making or moving inputs, poisoning and checking results."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. `axes` are (name, meaning) in name order.

    `sizes` are the axes that differ from call to call, for the model's weights and settings fix
    the others. `bytes_moved(axes, element_bytes)` and `flops(axes)` are exact, or, where the work
    depends on the data, the least that any data needs: `counts` says which.
    """

    name: str
    summary: str
    axes: tuple[tuple[str, str], ...]
    envelope: str
    bytes_moved: Callable[[Axes, int], int]
    flops: Callable[[Axes], int]
    counts: Literal["exact", "lower-bound"]
    source: str
    sizes: tuple[str, ...] = ("tokens",)

    def check(self, workload: Workload) -> None:
        """Raise UsageError unless the workload has this operator's axes and a known dtype."""
        expected = [name for name, _ in self.axes]
        got = [name for name, _ in workload.axes]
        if workload.op != self.name or got != expected:
            raise UsageError(
                f"workload {workload.key}: expected the axes {', '.join(expected)} of {self.name}, "
                f"got {', '.join(got) or 'none'}"
            )
        if workload.dtype not in ELEMENT_BYTES:
            raise UsageError(
                f"workload {workload.key}: unknown dtype {workload.dtype!r}; known are "
                f"{', '.join(ELEMENT_BYTES)}"
            )


def no_flops(axes: Axes) -> int:  # noqa: ARG001 - of an operator that only moves data
    """Zero."""
    return 0
