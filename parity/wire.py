"""Messages between a parent and its worker: JSON and safetensors bytes with their lengths.

Nothing that arrives is ever executed: no pickle, and a header of plain JSON values.
"""

import json
import struct
from typing import Any

import safetensors
import safetensors.torch

from bitgate.kernels.spec import Tensors

_LENGTHS = struct.Struct("<QQ")
_LARGEST_BYTES = 1 << 48
PREFIX_BYTES = _LENGTHS.size

Header = dict[str, Any]


def encode(header: Header, tensors: Tensors) -> bytes:
    """One message. `tensors` are contiguous, on the CPU, and share no memory."""
    text = json.dumps(header).encode()
    data = safetensors.torch.save(tensors)
    return _LENGTHS.pack(len(text), len(data)) + text + data


def body_bytes(prefix: bytes) -> int:
    """How many bytes follow the first PREFIX_BYTES bytes of a message; ValueError if not one."""
    count: int = sum(_LENGTHS.unpack(prefix))
    if count > _LARGEST_BYTES:
        raise ValueError(f"expected a message, got one of {count} bytes")
    return count


def decode(prefix: bytes, body: bytes) -> tuple[Header, Tensors]:
    """The header and the tensors of one message; ValueError when it is not one."""
    text_bytes, _ = _LENGTHS.unpack(prefix)
    header = json.loads(body[:text_bytes])
    if not isinstance(header, dict):
        raise ValueError(f"expected a JSON object in front of the tensors, got {header!r}")  # noqa: TRY004 - not a caller's type
    try:
        return header, safetensors.torch.load(body[text_bytes:])
    except safetensors.SafetensorError as error:
        raise ValueError(f"expected tensors after the header: {error}") from error
