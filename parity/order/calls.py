"""Where calls come from: the frames of a bundle, or one call saved as a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.bundle import Bundle, Frame
from bitgate.parity.order.catalogue import ORDERS, orders_of
from bitgate.parity.order.identify import Call
from bitgate.records.errors import UsageError


def save_call(
    path: Path, op: str, constants: Constants, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write one call of an operator: inputs, outputs and boundaries by their names, constants.

    Raises:
        UsageError: the catalogue has no such operator.
    """
    orders_of(op)
    metadata = {"op": op, "constants": json.dumps(dict(constants))}
    save_file({name: one.contiguous() for name, one in tensors.items()}, path, metadata)


def read_calls(paths: Sequence[Path], op: str | None, boundary: str = "") -> dict[str, list[Call]]:
    """The calls of bundles and files, by operator; of a bundle the largest call first.

    Args:
        paths: bundles' directories, or files of `save_call`.
        op: only this operator; None: all that have a catalogue.
        boundary: of a bundle only boundaries whose name holds this.

    Raises:
        UsageError: no such path, or no call of a known operator in it.
        BundleError: the bundle is not whole.
    """
    if op is not None:
        orders_of(op)
    found: list[tuple[str, Call]] = []
    for path in paths:
        found += _of_bundle(path, boundary) if path.is_dir() else [_of_file(path)]
    by_op: dict[str, list[Call]] = {}
    for name, call in found:
        if op in (None, name):
            by_op.setdefault(name, []).append(call)
    if not by_op:
        wanted = op or " or ".join(one.op for one in ORDERS)
        raise UsageError(
            f"{', '.join(map(str, paths))}: expected kept calls of {wanted}, got "
            f"{', '.join(sorted({name for name, _ in found})) or 'none'}; capture with --keep-all, "
            "or name another --op or --boundary"
        )
    return by_op


def _of_bundle(path: Path, boundary: str) -> list[tuple[str, Call]]:
    known = {one.op for one in ORDERS}
    found = [
        (str(frame.op), _of_frame(frame))
        for frame in Bundle.open(path).frames()
        # What changed its inputs during the call cannot be replayed.
        if frame.op in known and frame.kept and not frame.mutated and boundary in frame.boundary.key
    ]
    # The largest call tells the most orders apart.
    found.sort(key=lambda one: -sum(tensor.numel() for tensor in one[1].observed.values()))
    return found


def _of_frame(frame: Frame) -> Call:
    return Call(
        label=f"request {frame.step.request}, token {frame.step.token}, {frame.boundary.key}",
        inputs=frame.inputs(),
        constants=frame.constants,
        observed=frame.outputs(),
    )


def _of_file(path: Path) -> tuple[str, Call]:
    if not path.is_file():
        raise UsageError(
            f"{path}: expected a bundle's directory or a safetensors file, got neither"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: Tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UsageError(f"{path}: expected a safetensors file, got: {error}") from error
    orders = orders_of(metadata.get("op", ""))
    try:
        constants = json.loads(metadata.get("constants", "{}"))
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}: expected constants as JSON in the metadata, got {error}"
        ) from error
    return orders.op, Call(
        label=path.name,
        inputs={name: one for name, one in tensors.items() if name not in orders.gives},
        constants=constants,
        observed={name: one for name, one in tensors.items() if name in orders.gives},
    )
