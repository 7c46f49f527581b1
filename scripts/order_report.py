"""Which orders known implementations add in: the table of docs/orders.md, measured here.

Run it as `python scripts/order_report.py`. With the Python of scripts/vllm_env it asks vLLM's CPU
operators, with any other ours and those of tiny models that transformers runs. It takes a minute or
two on one thread.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from bitgate.kernels import catalogue
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.order.catalogue import orders_of
from bitgate.parity.order.identify import Call, Finding, identify
from bitgate.parity.order.probes import probes

MANY = 5
Run = tuple[str, str, list[Call]]
"""Operator, implementation, calls."""


def main() -> None:
    """Print one row per implementation and stage."""
    torch.set_num_threads(1)
    runs = _vllm() if find_spec("vllm") else _ours()
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    print("\n| operator | implementation | found | tried, distinct; compared | decisions |")
    print("|---|---|---|---|---|")
    for op, name, calls in runs:
        for finding in identify(orders_of(op), calls, work=1 << 62):
            print(
                f"| `{op}` | {name} | {_found(finding)} | {_counts(finding)} | {_told(finding)} |"
            )
        sys.stdout.flush()


def _found(finding: Finding) -> str:
    names = ", ".join(f"`{name}`" for name in finding.named)
    if finding.verdict in ("one", "several"):
        count = len(finding.reproducing)
        return f"{count} order{'s' if count > 1 else ''}{f', {names}' if names else ''}"
    if finding.verdict == "nothing":
        return "nothing compared"
    near = finding.nearest[0] if finding.nearest else None
    far = f"; nearest: {near.differing} of {near.total} differ" if near else ""
    return f"none of the catalogue{far}"


def _counts(finding: Finding) -> str:
    return (
        f"{finding.tried}, {finding.distinct}; {finding.compared} elements, {finding.calls} calls"
    )


def _told(finding: Finding) -> str:
    return "; ".join(f"{name}: {_options(one)}" for name, one in finding.possible.items()) or "-"


def _options(options: tuple[str, ...]) -> str:
    return " or ".join(options) if len(options) <= MANY else f"any of {len(options)}"


def _probed(op: str, name: str, run: Callable[..., object]) -> Run:
    """An implementation on the inputs that tell orders apart."""
    kernel = catalogue.kernel(op)
    calls = []
    for probe in probes(op):
        outputs = kernel.named_outputs(run(**probe.inputs, **probe.constants))
        calls.append(_call(probe.label, probe.inputs, probe.constants, outputs))
    return op, name, calls


def _call(label: str, inputs: Tensors, constants: Constants, outputs: Tensors) -> Call:
    # An accumulator is a boundary: without it, this is about what everybody can see.
    observed = {name: one for name, one in outputs.items() if name != "acc"}
    return Call(label=label, inputs=inputs, constants=constants, observed=observed)


def _vllm() -> Iterator[Run]:
    from bitgate.parity import foreign_vllm

    for isa in ("vec", "amx"):
        run = partial(foreign_vllm.moe_experts, isa)
        yield _probed("moe_experts", f"vLLM 0.32.0, `cpu_fused_moe`, {isa}", run)
    for path in ("torch", "cpu"):
        for op in ("mhc_pre", "mhc_post"):
            run = partial(getattr(foreign_vllm, op), path)
            yield _probed(op, f"vLLM 0.32.0, `{op}_{path}`", run)


def _ours() -> Iterator[Run]:
    from bitgate.kernels.loading import load

    for op in ("moe_gemm", "moe_act", "moe_combine", "moe_combine_weighted", "moe_experts"):
        for contract, name in catalogue.kernel(op).references.items():
            run = load(catalogue.implementation(name).target)
            yield _probed(op, f"`{name}` ({contract})", run)
    for op in ("mhc_pre", "mhc_post"):
        for contract, name in catalogue.kernel(op).references.items():
            run = load(catalogue.implementation(name).target)
            yield _probed(op, f"`{name}` ({contract})", run)
    yield from _transformers()


def _transformers() -> Iterator[Run]:
    from bitgate.parity.capture_checkpoint import Job, capture_tiny, tiny_prompts
    from bitgate.parity.capture_transformers import Generation
    from bitgate.parity.order.calls import read_calls

    for tiny in ("qwen3-moe", "deepseek-v4"):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "bundle"
            job = Job(device="cpu", generation=Generation(tokens=4, keep_steps=None))
            capture_tiny(tiny, out, job, tiny_prompts())
            for op, calls in read_calls([out], None).items():
                yield op, f"transformers, tiny {tiny}", calls


if __name__ == "__main__":
    main()
