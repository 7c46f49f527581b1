"""How vLLM names, defaults and clamps the tiles of its experts, one engine version a table entry.

Read in the sources of vLLM 0.10.2 and 0.33.0 and in the installed 0.32.0 (`fused_moe.py`:
get_config_file_name, get_default_config, the launch of fused_moe_kernel); 0.32.0 and 0.33.0 have
the same rules. Those of ROCm are others and are not here.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from bitgate.records.errors import UsageError

# What an engine writes behind dtype= in a file's name; None: the name has no such part.
DTYPES: Final[dict[str, str | None]] = {
    "bf16": None,
    "fp16": None,
    "float32": "float32",
    "fp8_w8a8": "fp8_w8a8",
    "fp8_w8a16": "fp8_w8a16",
    "int8_w8a8": "int8_w8a8",
    "int8_w8a16": "int8_w8a16",
    "int4_w4a16": "int4_w4a16",
}
# Their codes and scales come in blocks, and a step over K may not leave a block.
_BLOCKWISE: Final = ("fp8_w8a8", "int8_w8a8")
# The engine completes the defaults of these from K and N, by the kernel that it will choose.
_COMPLETED_LATER: Final = ("int4_w4a16", "int8_w8a16")
_PACKED: Final = "int4_w4a16"
_ROCM: Final = ("AMD_", "Radeon_")

Entry = dict[str, int | str]
Quantity = Literal["tokens", "tokens - experts", "tokens // experts"]
Named = int | Literal["block_n", "block_k"]


@dataclass(frozen=True, slots=True)
class Where64Divides:
    """`then` where block_n is a multiple of 64, else `otherwise`."""

    then: Named
    otherwise: Named


Value = Named | Where64Divides


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What an engine asks for when it launches the experts.

    Attributes:
        experts: local experts, the first extent of the weights.
        intermediate: one expert's intermediate size on this rank, elements.
        tokens: rows of the hidden states, before they are multiplied by top_k.
        device_name: as the driver gives it; spaces are replaced.
        dtype: a name of DTYPES.
        block_shape: (block_n, block_k) of the quantisation, elements, or None.
        engine: a vLLM version of ENGINES, or the start of one, such as "0.33".
        batch_invariant: whether the engine runs in that mode, which ignores all files.

    Raises:
        UsageError: an extent is below 1, or the dtype is unknown or takes no block shape.
    """

    experts: int
    intermediate: int
    tokens: int
    device_name: str
    dtype: str = "bf16"
    block_shape: tuple[int, int] | None = None
    engine: str = "0.33"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name in ("experts", "intermediate", "tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.device_name.strip():
            raise UsageError("device_name: expected the device's name, such as NVIDIA_H200, got ''")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.block_shape is not None:
            if min(self.block_shape) < 1:
                raise UsageError(f"block_shape: expected two extents, got {self.block_shape}")
            if DTYPES[self.dtype] is None:
                raise UsageError(
                    f"block_shape {list(self.block_shape)} with dtype {self.dtype}: blocks are "
                    "quantised; a lookup without the dtype finds another file and other tiles. "
                    "Name the dtype, such as fp8_w8a8"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A default that depends on a quantity: the value of the first limit that it is within."""

    of: Quantity
    limits: tuple[tuple[int, Value], ...]
    beyond: Value

    def at(self, quantities: dict[str, int]) -> Value:
        """The value for these quantities."""
        amount = quantities[self.of]
        return next((value for limit, value in self.limits if amount <= limit), self.beyond)


Defaults = dict[str, Value | Steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One version's rules. `fold` maps a part of a device's name to the name in files.

    `fp8` takes the place of entries of `plain` for fp8_w8a8 without blocks; `batch_invariant` is
    None where the version has no such mode.
    """

    version: str
    fold: tuple[tuple[str, str], ...]
    separators: str
    plain: Defaults
    fp8: Defaults
    fp8_block: Defaults
    batch_invariant: Defaults | None


def _by_tokens(*limits: tuple[int, Value], beyond: Value) -> Steps:
    return Steps(of="tokens", limits=limits, beyond=beyond)


def _by_experts(within: int, beyond: int) -> Steps:
    """0.10.2 asks only whether there are more tokens than experts."""
    return Steps(of="tokens - experts", limits=((0, within),), beyond=beyond)


_PLAIN_0_33: Final[Defaults] = {
    "BLOCK_SIZE_M": _by_tokens((32, 16), (96, 32), (512, 64), beyond=128),
    "BLOCK_SIZE_N": _by_tokens((64, 64), beyond=128),
    "BLOCK_SIZE_K": _by_tokens((64, 128), beyond=64),
    "GROUP_SIZE_M": Steps(of="tokens // experts", limits=((128, 1),), beyond=16),
    "SPLIT_K": 1,
    "num_warps": _by_tokens((128, 4), beyond=8),
    "num_stages": _by_tokens((32, 4), beyond=3),
}
_BLOCK_0_33: Final[Defaults] = {
    "BLOCK_SIZE_M": _by_tokens((64, 16), beyond=64),
    "BLOCK_SIZE_N": _by_tokens((8, Where64Divides(64, "block_n")), beyond="block_n"),
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": _by_tokens((16, 1), beyond=32),
    "SPLIT_K": 1,
    "num_warps": 4,
    "num_stages": _by_tokens((4, Where64Divides(4, 3)), beyond=3),
}
_INVARIANT_0_33: Final[Defaults] = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 32,
    "GROUP_SIZE_M": 8,
    "SPLIT_K": 1,
}


def _as_0_33(version: str) -> Engine:
    return Engine(
        version=version,
        fold=(("H200", "NVIDIA_H200"),),
        separators=r"[\s/]+",
        plain=_PLAIN_0_33,
        fp8={"BLOCK_SIZE_K": 128},
        fp8_block=_BLOCK_0_33,
        batch_invariant=_INVARIANT_0_33,
    )


ENGINES: Final = (
    Engine(
        version="0.10.2",
        fold=(),
        separators=" ",
        plain={
            "BLOCK_SIZE_M": _by_experts(16, 64),
            "BLOCK_SIZE_N": _by_experts(32, 64),
            "BLOCK_SIZE_K": _by_experts(64, 32),
            "GROUP_SIZE_M": _by_experts(1, 8),
        },
        fp8={},
        fp8_block={
            "BLOCK_SIZE_M": 64,
            "BLOCK_SIZE_N": "block_n",
            "BLOCK_SIZE_K": "block_k",
            "GROUP_SIZE_M": 32,
            "num_warps": 4,
            "num_stages": 3,
        },
        batch_invariant=None,
    ),
    _as_0_33("0.32.0"),
    _as_0_33("0.33.0"),
)


def engine(version: str) -> Engine:
    """The rules of a version, "0.33" meaning 0.33.0. Raises UsageError that lists the known."""
    found = [known for known in ENGINES if f"{known.version}.".startswith(f"{version}.")]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(known.version for known in ENGINES)
    raise UsageError(
        f"engine: expected a vLLM version whose tile rules are known ({listed}), got {version!r}; "
        "defaults moved between releases, so no other version's are taken instead"
    )


def device_part(lookup: Lookup) -> str:
    """The device's name as it stands in a file's name."""
    rules = engine(lookup.engine)
    name = re.sub(rules.separators, "_", lookup.device_name)
    return next((whole for part, whole in rules.fold if part in name.split("_")), name)


def file_name(lookup: Lookup) -> str:
    """The name under which the engine looks for a tuned file."""
    columns = lookup.intermediate * (2 if lookup.dtype == _PACKED else 1)
    dtype = DTYPES[lookup.dtype]
    parts = [f"E={lookup.experts}", f"N={columns}", f"device_name={device_part(lookup)}"]
    if dtype is not None:
        parts.append(f"dtype={dtype}")
    if lookup.block_shape is not None:
        parts.append(f"block_shape=[{lookup.block_shape[0]},{lookup.block_shape[1]}]")
    return ",".join(parts) + ".json"


def default(lookup: Lookup) -> dict[str, int]:
    """The tiles that the engine takes where it has no file, under the names of the files.

    Raises:
        UsageError: the version, the mode, the platform or the dtype has no rules here.
    """
    rules = engine(lookup.engine)
    if device_part(lookup).startswith(_ROCM):
        raise UsageError(
            f"{lookup.device_name}: the engine's defaults on ROCm are others and not known here; "
            "name a folder with a tuned file"
        )
    quantities = {
        "tokens": lookup.tokens,
        "tokens - experts": lookup.tokens - lookup.experts,
        "tokens // experts": lookup.tokens // lookup.experts,
    }
    chosen = {
        name: value.at(quantities) if isinstance(value, Steps) else value
        for name, value in _table(rules, lookup).items()
    }
    return {name: _extent(value, lookup.block_shape) for name, value in chosen.items()}


def clamped(entry: Entry, lookup: Lookup) -> Entry:
    """The tiles as the kernel is launched: BLOCK_SIZE_K within a block of the quantisation."""
    if lookup.block_shape is None or lookup.dtype not in _BLOCKWISE or "BLOCK_SIZE_K" not in entry:
        return entry
    return entry | {"BLOCK_SIZE_K": min(int(entry["BLOCK_SIZE_K"]), *lookup.block_shape)}


def _table(rules: Engine, lookup: Lookup) -> Defaults:
    if lookup.batch_invariant:
        if rules.batch_invariant is None:
            raise UsageError(f"vLLM {rules.version} has no batch-invariant mode of the experts")
        return rules.batch_invariant
    if lookup.dtype in _COMPLETED_LATER and lookup.block_shape is not None:
        raise UsageError(
            f"{lookup.dtype} in blocks without a file: vLLM completes these defaults by the kernel "
            "that it chooses, which is not known here; name a folder with a tuned file"
        )
    if lookup.dtype == "fp8_w8a8":
        return rules.plain | rules.fp8 if lookup.block_shape is None else rules.fp8_block
    return rules.plain


def _extent(value: Value, block_shape: tuple[int, int] | None) -> int:
    # Only the table of quantised blocks names them, and it is taken with a block shape alone.
    block_n, block_k = block_shape or (0, 0)
    if isinstance(value, Where64Divides):
        value = value.otherwise if block_n % 64 else value.then
    return {"block_n": block_n, "block_k": block_k}[value] if isinstance(value, str) else value
