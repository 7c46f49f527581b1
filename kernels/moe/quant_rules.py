"""What the quantisers to float8_e4m3fn differ in, as data: scales, their floors, and who has which.

A tile is what shares one scale: the whole tensor, a row (a token), or a group of a row's elements.
Its scale is amax / 448, where amax is its largest magnitude; a floor lies under the one or the
other. The floors are float32 numbers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from bitgate.records.errors import UsageError

SCALE_RULES: Final = ("amax", "ue8m0")
ROUNDINGS: Final = ("divide", "reciprocal")
GROUPS: Final = (64, 128)

# Under the scale of rule ue8m0, whatever the scheme: 1e-10, so that the least scale is 2^-33.
UE8M0_FLOOR: Final = float.fromhex("0x1.b7cdfep-34")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """What amax and the scale are at least; 0 is no floor."""

    amax: float = 0.0
    scale: float = 0.0


SCHEMES: Final = {
    "static": Floors(),
    "tensor": Floors(),
    "token": Floors(scale=float.fromhex("0x1.24924ap-18")),  # 1 / (448 * 512)
    "group": Floors(amax=float.fromhex("0x1.b7cdfep-34")),  # 1e-10
}
WEIGHT_FLOORS: Final = Floors(amax=float.fromhex("0x1.a36e2ep-14"))  # 1e-4


_KNOWN: Final[Mapping[str, Collection[str | int]]] = {
    "scheme": SCHEMES,
    "group": GROUPS,
    "block_n": GROUPS,
    "block_k": GROUPS,
    "scale_rule": SCALE_RULES,
    "rounding": ROUNDINGS,
}


def check_names(op: str, **given: str | int) -> None:
    """Raise UsageError unless each constant has one of the values that are known for it."""
    for name, value in given.items():
        if type(value) not in (str, int) or value not in _KNOWN[name]:
            choices = ", ".join(str(one) for one in _KNOWN[name])
            raise UsageError(f"{op}: expected {name} of {choices}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """The quantiser of one engine in one version; `source` is the file that has it."""

    engine: str
    version: str
    scheme: str
    scale_rule: str
    rounding: str
    source: str


_COMMON: Final = "csrc/quantization/fp8/common.cu"
_GROUP: Final = "csrc/quantization/fp8/per_token_group_quant.cu"

QUANTISERS: Final = (
    *(
        Quantiser(
            engine="vllm",
            version=version,
            scheme=scheme,
            scale_rule="amax",
            rounding="divide" if scheme == "token" else "reciprocal",
            source=_COMMON,
        )
        for version in ("0.10.2", "0.33.0")
        for scheme in ("static", "tensor", "token")
    ),
    *(
        Quantiser(
            engine="vllm",
            version=version,
            scheme="group",
            scale_rule=scale_rule,
            rounding=rounding,
            source=_GROUP,
        )
        for version, rounding in (("0.10.2", "divide"), ("0.33.0", "reciprocal"))
        for scale_rule in SCALE_RULES
    ),
)
