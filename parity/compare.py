"""Comparing sets of tensors, exhaustively on both sides."""

from collections.abc import Mapping

import torch

from bitgate.parity.bits import compare_tensor
from bitgate.records.types import Comparison, Mismatch


def compare_tensors(
    subject: str, expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]
) -> Comparison:
    """Compare every tensor of both sides bit for bit; a name on one side only is a mismatch.

    `expected` and `compared` count tensors that hold elements. Empty tensors must agree in dtype
    and shape, but they count as nothing: a comparison of empty tensors alone is never equal.
    """
    mismatches: list[Mismatch] = []
    compared = 0
    for name, wanted in expected.items():
        if name not in actual:
            detail = f"expected {wanted.dtype} of shape {tuple(wanted.shape)}, got nothing"
            mismatches.append(Mismatch(tensor=name, kind="missing", detail=detail))
            continue
        mismatch = compare_tensor(name, wanted, actual[name])
        if mismatch is not None:
            mismatches.append(mismatch)
        compared += wanted.numel() > 0
    for name in actual.keys() - expected.keys():
        detail = f"expected no tensor of that name; the expected ones are {sorted(expected)}"
        mismatches.append(Mismatch(tensor=name, kind="unexpected", detail=detail))
    return Comparison(
        subject=subject,
        compared=compared,
        expected=sum(tensor.numel() > 0 for tensor in expected.values()),
        mismatches=tuple(mismatches),
    )
