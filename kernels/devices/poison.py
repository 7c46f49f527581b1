"""Fill a buffer with values that betray whoever reads it before writing it.

Two patterns, because each hides from somebody: a NaN disappears in a maximum or a comparison, and
a huge finite number disappears where it is multiplied by zero.
"""

from typing import Literal

import torch

Pattern = Literal["nan", "huge"]
PATTERNS: tuple[Pattern, ...] = ("nan", "huge")

# Bit patterns per dtype: (NaN with an odd payload, largest finite), written as integers so that no
# conversion can quieten or round them.
_FLOATS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.float64: (torch.int64, 0x7FF8_5EED_0BAD_F00D, 0x7FEF_FFFF_FFFF_FFFF),
    torch.float32: (torch.int32, 0x7FD5_EED5, 0x7F7F_FFFF),
    torch.bfloat16: (torch.int16, 0x7FD5, 0x7F7F),
    torch.float16: (torch.int16, 0x7FD5, 0x7BFF),
    torch.float8_e4m3fn: (torch.uint8, 0x7F, 0x7E),
    torch.float8_e5m2: (torch.uint8, 0x7F, 0x7B),
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def poison(tensor: torch.Tensor, pattern: Pattern) -> None:
    """Overwrite every element in place; integers get their smallest or largest value.

    Raises:
        TypeError: the dtype has no pattern.
    """
    if tensor.dtype in _FLOATS:
        bits, nan, huge = _FLOATS[tensor.dtype]
        tensor.view(bits).fill_(nan if pattern == "nan" else huge)
    elif tensor.dtype in _INTEGERS:
        limits = torch.iinfo(tensor.dtype)
        # An index that was never written is then far out of any range, on either side.
        tensor.fill_(limits.min if pattern == "nan" else limits.max)
    elif tensor.dtype is torch.bool:
        tensor.fill_(pattern == "nan")
    else:
        known = ", ".join(str(dtype) for dtype in (*_FLOATS, *_INTEGERS, torch.bool))
        raise TypeError(f"no poison for {tensor.dtype}; known: {known}")
