"""Which outputs may lie over which inputs: declared per operator, checked before a launch."""

from collections.abc import Iterable, Mapping

import torch

from bitgate.records.errors import UsageError


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the byte after its last."""
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size() if tensor.numel() else start


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the address ranges of two tensors on one device meet; an empty tensor meets none."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def check(
    op: str,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor | None],
    allowed: Iterable[tuple[str, str]] = (),
) -> None:
    """Check that outputs overlap nothing, but for allowed (output, input) pairs at the same place.

    Outputs that are None will be allocated and are not checked.

    Raises:
        UsageError: an overlap that is not allowed; the message names both tensors.
    """
    given = [(name, tensor) for name, tensor in outputs.items() if tensor is not None]
    for position, (name, tensor) in enumerate(given):
        for other, neighbour in given[:position]:
            if overlap(tensor, neighbour):
                raise UsageError(
                    f"{op}: expected outputs apart from each other, got {name} over {other}; "
                    "pass different memory"
                )
        for source, value in inputs.items():
            if not overlap(tensor, value):
                continue
            if (name, source) in set(allowed) and _same_place(tensor, value):
                continue
            raise UsageError(
                f"{op}: expected {name} apart from {source}, got overlapping memory; allowed over "
                f"an input, at the same place: {sorted(allowed) or 'none'}"
            )
