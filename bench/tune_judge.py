"""The checks before tiles are timed: near the exact value, repeatable, and the bits that are due.

Every configuration runs in a process of its own. Its outputs must lie within the bound that is
proved for the contract (float64), come out the same twice, and, where its block_k is the default's,
be the bits of the default tiles: only block_k belongs to the order of additions. On some processors
the BLAS of the interpreter sums in another way at another place of a tile; there, tiles with other
extents are rejected, because they do not keep the bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bitgate.kernels.moe.contract import DEFAULT_CONFIG, MOE_BF16_1, TileConfig
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.moe.gemm import GroupedMatmul
from bitgate.kernels.moe.gemm_reference import grouped_float64
from bitgate.kernels.spec import Constants, Implementation, Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.parity.gates.base import Launcher, Progress, Runner
from bitgate.parity.gates.session import STANDARD, child_environment
from bitgate.parity.worker import Launch, Worker, WorkerError
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.provenance import switches
from bitgate.records.types import Workload

# Of each output the exact value and how far the contract may be from it.
Bounds = Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One configuration at one number of tokens.

    `rejected` is the reason, or None; `bits` says how its outputs compare with the default's.
    """

    config: TileConfig
    tokens: int
    rejected: str | None
    bits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Inputs with what is known of their outputs."""

    name: str
    tokens: int
    inputs: Tensors
    bounds: Bounds
    default: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What is judged: one implementation of one operator, on some inputs of each workload.

    `timeout_s` limits each call.
    """

    kernel: Kernel
    implementation: Implementation
    device: str
    workloads: tuple[Workload, ...]
    samples: int
    timeout_s: int
    launcher: Launcher = Worker

    def worker(self, tiles: str) -> Runner:
        """A process with the implementation and these packed tiles."""
        return self.launcher(
            Launch(
                kernel=self.kernel,
                target=self.implementation.target,
                root=None,
                device=self.device,
                environment=child_environment(self.device, STANDARD, switches(), 1),
                timeout_s=float(self.timeout_s),
                tiles=tiles,
            )
        )


def judge(judging: Judging, texts: Mapping[TileConfig, str], progress: Progress) -> list[Answer]:
    """Check every configuration on every workload: one answer for each pair of them.

    Args:
        judging: what is judged, and on what.
        texts: the packed tiles of each configuration.
        progress: told (what, done, total).

    Raises:
        UsageError: no error bound is known for the operator.
        Inconclusive: the default tiles fail a check.
    """
    known = _known(judging)
    answers: list[Answer] = []
    for number, (config, text) in enumerate(texts.items()):
        with judging.worker(text) as mine:
            for workload in judging.workloads:
                tokens = workload.axis("tokens")
                samples = [one for one in known if one.tokens == tokens]
                answers.append(_answer(mine, judging.kernel, config, samples))
        progress("configurations judged", number + 1, len(texts))
    return answers


def _known(judging: Judging) -> list[_Sample]:
    """What the default tiles give, checked as well."""
    kernel = judging.kernel
    bounds_of, constants = oracle(kernel.op), dict(kernel.constants)
    known: list[_Sample] = []
    with judging.worker("") as default:
        for workload in judging.workloads:
            for index in range(judging.samples):
                inputs, name = kernel.make_inputs(workload, index), f"{workload.key}#{index}"
                bounds = bounds_of(inputs, constants)
                try:
                    outputs = _outputs(default, kernel, name, inputs, bounds)
                except _Rejected as fault:
                    raise Inconclusive(
                        f"the default tiles fail, so nothing can be compared with them: {fault}"
                    ) from fault
                known.append(
                    _Sample(
                        name=name,
                        tokens=workload.axis("tokens"),
                        inputs=inputs,
                        bounds=bounds,
                        default=outputs,
                    )
                )
    return known


class _Rejected(Exception):  # noqa: N818 - an answer, not a defect
    """Why a configuration is not timed."""


def _answer(worker: Runner, kernel: Kernel, config: TileConfig, samples: list[_Sample]) -> Answer:
    others, tokens = 0, samples[0].tokens
    try:
        for sample in samples:
            outputs = _outputs(worker, kernel, sample.name, sample.inputs, sample.bounds)
            others += not _same_bits(sample, outputs, due=config.block_k == DEFAULT_CONFIG.block_k)
    except _Rejected as rejected:
        return Answer(config=config, tokens=tokens, rejected=str(rejected), bits="not compared")
    bits = "as the default" if not others else f"others in {others} of {len(samples)} samples"
    return Answer(config=config, tokens=tokens, rejected=None, bits=bits)


def _same_bits(sample: _Sample, outputs: Tensors, *, due: bool) -> bool:
    """Whether the bits are the default's; _Rejected where they are not and should be."""
    found = compare_tensors(sample.name, sample.default, outputs)
    if due and not found.equal:
        first = found.mismatches[0]
        raise _Rejected(
            f"{sample.name}: other bits than the default tiles have at the same block_k: "
            f"{first.tensor}{list(first.first_index or ())} expected {first.expected_bits}, got "
            f"{first.actual_bits}; {first.differing} of {first.total} differ"
        )
    return found.equal


def _outputs(worker: Runner, kernel: Kernel, name: str, inputs: Tensors, bounds: Bounds) -> Tensors:
    """The outputs of a call, near the exact value and the same twice; _Rejected where not."""
    answers = []
    for poison in (0xFF, 0x00):
        try:
            worker.send(inputs, dict(kernel.constants), poison=poison)
            answers.append(worker.receive().outputs)
        except WorkerError as error:
            raise _Rejected(f"{name}: {str(error).splitlines()[0]}") from error
    if not compare_tensors(name, *answers).equal:
        raise _Rejected(f"{name}: two calls on the same inputs give other bits")
    for output, (value, bound) in bounds.items():
        outside = ~((answers[0][output].double() - value).abs() <= bound)
        if bool(outside.any()):
            raise _Rejected(
                f"{name}: {int(outside.sum())} of {outside.numel()} elements of {output} lie "
                "outside the float64 bound of the contract"
            )
    return answers[0]


def oracle(op: str) -> Callable[[Tensors, Constants], Bounds]:
    """What bounds the error of an operator's outputs. Raises UsageError where nothing does."""
    known = {"moe_experts": _experts, "moe_gemm": _gemm}
    if op not in known:
        raise UsageError(
            f"{op}: no error bound is known, so its tiles cannot be judged; "
            f"known are {', '.join(known)}"
        )
    return known[op]


def _experts(inputs: Tensors, constants: Constants) -> Bounds:
    limit = float(constants["swiglu_limit"])
    return {"out": experts_float64(**inputs, swiglu_limit=limit, contract=MOE_BF16_1)}


def _gemm(inputs: Tensors, constants: Constants) -> Bounds:
    tiles = {name: int(constants[name]) for name in ("block_m", "block_n", "block_k")}
    call: dict[str, Any] = {name: int(constants[name]) for name in ("top_k", "apply_weights")}
    call |= inputs
    return grouped_float64(GroupedMatmul(**call, config=TileConfig(**tiles)))
