"""What passes an engine's own functions during one call: alignments, launches and tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from bitgate.kernels.moe.align_sets import Alignment

Fact = int | float | str | bool | None
Launch = dict[str, Fact]

MATMULS: Final = ("gate_up", "weighted")
_OPERANDS: Final = ("x", "activated")


@dataclass(slots=True)
class Trace:
    """The boundaries of one call in the order in which they were passed, copied on the spot.

    Attributes:
        alignments: what the alignment returned: sorted pairs, experts of blocks, places covered.
        launches: of each product, the constants that reached its kernel.
        tensors: boundary to tensor; a product is gate_up or weighted, its operand x or activated,
            and of quantised operands there are codes and scales.
    """

    alignments: list[Alignment] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def tracing(experts: ModuleType, gemm: str) -> Iterator[Trace]:
    """Trace what calls pass through vLLM's module `experts`, whose product is its function `gemm`.

    Engine and composition call the same functions, so that both are seen at the same places. The
    module's names stand for the traced ones meanwhile, and are put back in any case.
    """
    trace = Trace()
    recorder = _Recorder(trace)
    traced = {
        "moe_align_block_size": recorder.align,
        "moe_kernel_quantize_input": recorder.quantise,
        gemm: recorder.gemm,
        "fused_moe_kernel": recorder.kernel,
    }
    before = {name: getattr(experts, name) for name in traced}
    try:
        for name, wrap in traced.items():
            setattr(experts, name, wrap(before[name]))
        yield trace
    finally:
        for name, original in before.items():
            setattr(experts, name, original)


class _Recorder:
    """Wraps the functions of a module, and knows which product comes next."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._products = 0
        self._operands = 0

    def align(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            sorted_pairs, expert_ids, padded = (tensor.clone() for tensor in result[:3])
            self.trace.alignments.append((sorted_pairs, expert_ids, padded))
            return result

        return traced

    def quantise(self, original: Callable[..., Any]) -> Callable[..., Any]:
        shape = signature(original)

        def traced(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            bound = shape.bind(*given, **named).arguments
            # Unquantised experts pass through here, too, and leave with what they brought.
            if bound["quant_dtype"] is not None:
                name = self._name(_OPERANDS, self._operands)
                self._operands += 1
                self._keep(name, bound["A"])
                self._keep(f"{name}_codes", result[0])
                self._keep(f"{name}_scales", result[1])
            return result

        return traced

    def gemm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        shape = signature(original)

        def traced(*given: Any, **named: Any) -> Any:
            bound = shape.bind(*given, **named).arguments
            operand = self._name(_OPERANDS, self._products)
            if bound["A"].element_size() > 1:
                self._keep(operand, bound["A"])
            launches = len(self.trace.launches)
            result = original(*given, **named)
            if len(self.trace.launches) == launches:
                self.trace.launches.append({"kernel": "another than fused_moe_kernel"})
            block_shape = bound.get("block_shape")
            self.trace.launches[-1]["block_shape"] = (
                None if block_shape is None else str(block_shape)
            )
            product = self._name(MATMULS, self._products)
            self._keep(product, bound["C"].view(-1, bound["C"].shape[-1]))
            self._products += 1
            return result

        return traced

    def kernel(self, original: Any) -> Any:
        return _TracedKernel(original, self.trace.launches)

    @staticmethod
    def _name(names: tuple[str, ...], index: int) -> str:
        return names[index] if index < len(names) else f"{names[-1]} {index}"

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.trace.tensors.setdefault(name, tensor.detach().clone())


class _TracedKernel:
    """A Triton kernel that notes the constants of its launches."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self._kernel = kernel
        self._launches = launches

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch = self._kernel[grid]

        def traced(*given: Any, **constants: Any) -> Any:
            self._launches.append({name: _fact(value) for name, value in constants.items()})
            return launch(*given, **constants)

        return traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def _fact(value: Any) -> Fact:
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value) if not isinstance(value, torch.Tensor) else "tensor"
