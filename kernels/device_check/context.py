"""What every section works with: the device, the budget, and how one implementation is called."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitgate.kernels.device_check.rows import Check, CheckOutcome, Side
from bitgate.kernels.devices import Device
from bitgate.kernels.interpreter import interpreting, triton
from bitgate.kernels.loading import load
from bitgate.kernels.spec import Constant, Implementation, Kernel, Tensors
from bitgate.records.errors import BitgateError
from bitgate.records.types import Workload

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# What a device, a compiler or a missing package may answer with instead of a result.
FAILURES = (BitgateError, ImportError, RuntimeError, ValueError, TypeError, triton.TritonError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The device under check.

    Attributes:
        device: where implementations run; references run on the CPU.
        quick: the short selection.
        deadline_ns: the section's end on the monotonic clock; what would start later is not run.
    """

    device: Device
    quick: bool
    deadline_ns: int

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    @property
    def small(self) -> bool:
        """Whether Triton interprets: a millisecond for each step of each program."""
        return interpreting()

    @property
    def late(self) -> bool:
        """Whether the section's time is over."""
        return time.monotonic_ns() > self.deadline_ns

    def to_device(self, tensors: Tensors) -> Tensors:
        """The tensors on the device."""
        return {name: tensor.to(self.name) for name, tensor in tensors.items()}

    def call(
        self, kernel: Kernel, found: Implementation, inputs: Tensors, constants: Mapping[str, Any]
    ) -> Tensors:
        """Run an implementation on tensors of its device; wait until all is done."""
        function: Callable[..., object] = load(found.target)
        outputs = kernel.named_outputs(function(**inputs, **constants))
        if found.devices != ("cpu",):
            self.device.synchronize()
        return outputs

    @staticmethod
    def side(found: Implementation, config: Mapping[str, Constant] | None = None) -> Side:
        """An implementation with these resolved arguments, as rows name it."""
        return Side(
            name=found.name,
            op=found.op,
            contract=found.contract,
            tier=found.tier,
            target=found.target,
            config=tuple(sorted((name, str(value)) for name, value in (config or {}).items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Elements that were compared and that differ, and the first of these."""

    compared: int
    differing: int
    first: str


def difference(expected: Tensors, actual: Tensors) -> Difference:
    """Compare bit for bit, as integers of the element's width, on the CPU.

    Raises:
        ValueError: names, dtypes or shapes disagree.
    """
    if expected.keys() != actual.keys():
        raise ValueError(f"expected the tensors {sorted(expected)}, got {sorted(actual)}")
    compared = differing = 0
    first = ""
    for name, tensor in expected.items():
        left, right = _bits(tensor), _bits(actual[name])
        if tensor.dtype != actual[name].dtype or tensor.shape != actual[name].shape:
            raise ValueError(
                f"{name}: expected {tensor.dtype} {tuple(tensor.shape)}, got "
                f"{actual[name].dtype} {tuple(actual[name].shape)}"
            )
        wrong = (left != right).nonzero().flatten()
        compared, differing = compared + len(left), differing + len(wrong)
        if len(wrong) and not first:
            at = int(wrong[0])
            first = f"{name}[{at}]: expected {_hex(left, at)}, got {_hex(right, at)}"
    return Difference(compared=compared, differing=differing, first=first)


def bitwise(
    section: str,
    side: Side,
    against: str,
    subject: Workload | str,
    found: Difference | Exception,
) -> Check:
    """The row of a bitwise comparison, or of one that could not be made."""
    workload, case = (subject, "") if isinstance(subject, Workload) else (None, subject)
    outcome: CheckOutcome
    if isinstance(found, Exception):
        lines = str(found).splitlines() or [""]
        # What this node lacks is not run; whatever else an implementation raises is its fault.
        outcome = "not-run" if isinstance(found, BitgateError | ImportError) else "fail"
        reason = f"{type(found).__name__}: {lines[0]}"
        found = Difference(compared=0, differing=0, first="")
    elif not found.compared:
        outcome, reason = "not-run", "nothing to compare: every output is empty"
    elif found.differing:
        outcome = "fail"
        reason = f"{found.differing} of {found.compared} elements differ from {against}"
    else:
        outcome, reason = "pass", f"{found.compared} elements equal {against}"
    return Check(
        section=section,
        side=side,
        against=against,
        claim="bitwise",
        workload=workload,
        case=case,
        outcome=outcome,
        reason=reason,
        compared=found.compared,
        differing=found.differing,
        first=found.first,
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(_WORDS[tensor.element_size()])


def _hex(words: Tensor, at: int) -> str:
    width = 8 * words.element_size()
    return f"{int(words[at]) & ((1 << width) - 1):#0{width // 4 + 2}x}"


def bounded(
    section: str,
    side: Side,
    workload: Workload,
    exact: Mapping[str, tuple[Tensor, Tensor]],
    outputs: Tensors,
) -> Check:
    """The row of a comparison with float64 values and their proved bounds, both by output."""
    compared = beyond = 0
    worst, first = 0.0, ""
    for name, (value, bound) in exact.items():
        error = (outputs[name].detach().cpu().double() - value).abs()
        # A NaN is beyond every bound.
        wrong = ~(error <= bound)
        compared, beyond = compared + wrong.numel(), beyond + int(wrong.sum())
        if wrong.any() and not first:
            at = int(wrong.flatten().nonzero()[0])
            first = f"{name}[{at}]: off by {float(error.flatten()[at]):.6g}"
        share = torch.where(bound > 0, error / bound, 0.0)
        worst = max(worst, float(share.max()) if share.numel() else 0.0)
    outcome: CheckOutcome
    outcome, reason = "pass", f"{compared} elements within the proved bound of float64"
    if not compared:
        outcome, reason = "not-run", "nothing to compare: every output is empty"
    elif beyond:
        outcome, reason = "fail", f"{beyond} of {compared} elements beyond the proved bound"
    return Check(
        section=section,
        side=side,
        against="float64",
        claim="bounded",
        workload=workload,
        case="",
        outcome=outcome,
        reason=reason,
        compared=compared,
        differing=beyond,
        first=first,
        worst=f"{worst:.6f}",
    )
