"""What the files of a bundle hold: frozen values, one JSON line each, written canonically.

    manifest.json               Manifest
    digests.jsonl               FrameLine per frame, in capture order
    layout.jsonl                LayoutLine per frame: how its tensors lay in memory
    tensors-NNNN.safetensors    raw bytes of the kept storages, uint8, keys s00000000 ...
    tokens.jsonl                TokensLine per request
    COMPLETE                    Complete: SHA-256 and size of every other file; written last

Format history
    1   the first format
"""

from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic_core import from_json

from bitgate.records.base import Value, require, require_sha256
from bitgate.records.codec import FormatError, decode
from bitgate.records.errors import Inconclusive
from bitgate.records.types import Boundary, Environment, Harness, Pairs, Phase, Role, TensorMeta

SCHEMA = 1
MANIFEST, DIGESTS, LAYOUT, TOKENS, COMPLETE = (
    "manifest.json",
    "digests.jsonl",
    "layout.jsonl",
    "tokens.jsonl",
    "COMPLETE",
)
NO_LAYER = -1
AGAIN = "capture the bundle again, or copy it again from where it is whole"

T = TypeVar("T", bound=Value)


class BundleError(Inconclusive):
    """A bundle that is truncated, edited, incomplete or of another format; names the file."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Step(Value):
    """One pass through the model: `token` is the position of the first token that it consumed."""

    request: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Value):
    """A boundary that must appear in every step of its phase, and the tensors that it must hold.

    `closed` says that the captured inputs, parameters and state are all that the outputs depend
    on; only then is a difference behind equal inputs the boundary's own fault.
    """

    boundary: Boundary
    op: str | None
    contract: str | None
    constants: Pairs
    tensors: tuple[tuple[str, Role], ...]
    closed: bool

    def __post_init__(self) -> None:
        names = [name for name, _ in self.tensors]
        where = f"boundary {self.boundary.key}"
        constants = [name for name, _ in self.constants]
        require(len(set(constants)) == len(constants), f"{where}: a constant is given twice")
        require(bool(names), f"{where}: it holds no tensor; nothing would be compared")
        require(len(set(names)) == len(names), f"{where}: two tensors share a name: {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine(Value):
    """A captured step; `kept` says whether its tensors are stored, or only their digests."""

    step: Step
    phase: Phase
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity(Value):
    """Whose tensors these are. `weights_sha256` covers names, dtypes, shapes and digests."""

    name: str
    model_type: str
    config_sha256: str
    weights_sha256: str

    def __post_init__(self) -> None:
        require_sha256(self.config_sha256, "ModelIdentity.config_sha256")
        require_sha256(self.weights_sha256, "ModelIdentity.weights_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Value):
    """The whole capture: what was run where, and what must therefore be in the bundle.

    `implementation` names what computed the boundaries, `compile_cache` the digest of the compile
    cache (None: nothing was compiled), `tap_profile` how tensors were taken, `parallel` the ranks,
    `selection` the rule by which tensors were kept; `discarded` counts dropped warm-up frames.
    """

    producer: Harness
    model: ModelIdentity
    environment: Environment
    implementation: Pairs
    compile_cache: str | None
    tap_profile: Pairs
    parallel: Pairs
    selection: Pairs
    expected: tuple[Expected, ...]
    steps: tuple[StepLine, ...]
    requests: int
    discarded: int
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        keys = [expected.boundary.key for expected in self.expected]
        steps = [line.step for line in self.steps]
        require(len(set(keys)) == len(keys), "Manifest: a boundary is declared once")
        require(len(set(steps)) == len(steps), "Manifest: a step is listed once")
        require(bool(keys) and bool(steps), "Manifest: no boundary or no step; nothing captured")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine(Value):
    """A captured tensor's identity; `finite` counts its finite elements (None: not a float)."""

    meta: TensorMeta
    finite: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLine(Value):
    """One firing of one boundary. `mutated` names inputs that changed while it ran."""

    seq: int
    step: Step
    boundary: Boundary
    mutated: tuple[str, ...]
    tensors: tuple[TensorLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Value):
    """Where a tensor lay and lies.

    `offset` is its first element in the storage of the running model, `alias_group` is equal for
    the tensors of one frame that shared such a storage. `storage` names the kept bytes (None: the
    frame was not kept) and `start` the first element in them.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    alias_group: int
    storage: int | None
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLine(Value):
    """The views of one frame, in the order of its tensors."""

    seq: int
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensLine(Value):
    """One request: prompt, greedy answer, and the log-probability of each token answered."""

    request: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine(Value):
    """A file of the bundle, by content."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(Value):
    """The seal: every other file of the directory."""

    files: tuple[FileLine, ...]
    schema: int = SCHEMA


def storage_key(storage: int) -> str:
    """The name of a storage inside the shards."""
    return f"s{storage:08d}"


def constant_pairs(constants: Mapping[str, float | int | str]) -> Pairs:
    """Constants as text that reads back to the same int, float or quoted text."""
    return tuple((name, repr(value)) for name, value in sorted(constants.items()))


def constant_values(pairs: Pairs) -> dict[str, float | int | str]:
    """What `constant_pairs` wrote. Raises ValueError where it is none of these."""
    return {name: _constant(text) for name, text in pairs}


def _constant(text: str) -> float | int | str:
    if text[:1] in {"'", '"'}:
        try:
            return str(literal_eval(text))
        except SyntaxError as error:
            raise ValueError(f"expected quoted text, got {text}: {error.msg}") from None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def read_value(path: Path, kind: type[T]) -> T:
    """The one value, with its `schema`, that a file holds; BundleError names the file."""
    data = path.read_bytes()
    try:
        schema = from_json(data).get("schema")
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{path}: not a JSON object: {error}; capture the bundle again") from None
    if schema != SCHEMA:
        raise BundleError(
            f"{path}: written in bundle format {schema}; this version reads {SCHEMA}. "
            "Use the version of bitgate that wrote it, or capture again"
        )
    return _decode(path.name, kind, data)


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """The values of a file with one per line; BundleError names the file and the line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _decode(f"{path.name}, line {number}", kind, line)


def _decode(where: str, kind: type[T], data: bytes) -> T:
    try:
        return decode(kind, data)
    except FormatError as error:
        raise BundleError(f"{where}: {error}; capture the bundle again") from None
