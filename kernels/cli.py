"""`bitgate kernels`: what there is to compute with, and what this node's arithmetic does."""

import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from bitgate.kernels.roundings_cli import roundings_command
from bitgate.kernels.shapes_cli import config_command, shapes_command
from bitgate.records.console import console, print_json, table
from bitgate.records.errors import Inconclusive, UsageError

if TYPE_CHECKING:
    from bitgate.kernels.spec import Contract, Implementation, Kernel

app = typer.Typer(no_args_is_help=True, help="Operators, implementations, probes, compile checks.")
app.command("config")(config_command)
app.command("roundings")(roundings_command)
app.command("shapes")(shapes_command)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


@app.command("list")
def list_command(*, as_json: _Json = False) -> None:
    """Every implementation, by operator."""
    from bitgate.kernels.catalogue import KERNELS

    found = [one for kernel in KERNELS for one in kernel.implementations]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    shown = table("implementations", "operator", "name", "contract", "tier", "devices", "what")
    # What is typed again must not be broken.
    shown.columns[1].no_wrap = True
    for one in found:
        shown.add_row(one.op, one.name, one.contract, one.tier, " ".join(one.devices), one.summary)
    console().print(shown)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An operator, implementation or contract.")],
    *,
    as_json: _Json = False,
) -> None:
    """One operator, implementation or contract, with everything that a candidate has to match."""
    from bitgate.kernels.catalogue import CONTRACTS, KERNELS

    kernels = {one.op: one for one in KERNELS}
    implementations = {one.name: one for kernel in KERNELS for one in kernel.implementations}
    contracts = {one.name: one for one in CONTRACTS}
    if name in kernels:
        facts, text = _kernel_facts(kernels[name]), _arithmetic(kernels[name])
    elif name in implementations:
        found = implementations[name]
        facts, text = _implementation_facts(found), _arithmetic(kernels[found.op])
    elif name in contracts:
        facts, text = _contract_facts(contracts[name]), _order(name)
    else:
        raise UsageError(
            f"unknown operator, implementation or contract {name!r}; operators: "
            f"{', '.join(kernels)}; implementations: {', '.join(implementations)}; contracts: "
            f"{', '.join(contracts)}"
        )
    if as_json:
        print_json(facts)
        return
    shown = table(name, "what", "value")
    for key, value in facts.items():
        lines = value if isinstance(value, list) else [value]
        shown.add_row(key, escape("\n".join(_line(line) for line in lines)))
    console().print(shown)
    console().print(escape(text))


@app.command()
def probe(
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or xpu.")] = "cpu",
    *,
    as_json: _Json = False,
) -> None:
    """What the device's arithmetic really does: contraction, subnormals, rounding, exp."""
    from bitgate.kernels.probes import run

    answers = run(device)
    if as_json:
        print_json(dict(answers))
        return
    shown = table(f"probes of {device}", "question", "answer")
    for question, answer in answers:
        shown.add_row(question, escape(answer))
    console().print(shown)


@app.command("compile-check")
def compile_check(
    arch: Annotated[str, typer.Option("--arch", help="sm_90, sm_100 or gfx942.")] = "sm_90",
    *,
    update: Annotated[
        bool, typer.Option("--update", help="Commit what is found as the signature.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Do the Triton kernels compile to the committed instructions? Needs no GPU.

    Exit code 0: all as committed; 1: something changed or broke a rule; 3: nothing to compare with.
    """
    from bitgate.kernels import compile_check as checks

    if update:
        path = checks.update(arch)
        if as_json:
            print_json({"arch": arch, "written": str(path)})
        else:
            print(f"wrote {path}")
        return
    results = checks.check(arch)
    if as_json:
        print_json([asdict(one) for one in results])
    else:
        shown = table(f"kernels compiled for {arch}", "kernel", "outcome", "reason")
        for one in results:
            shown.add_row(one.kernel, one.outcome, escape(one.reason))
        console().print(shown)
    raise typer.Exit(_exit_code([one.outcome for one in results]))


def _exit_code(outcomes: list[str]) -> int:
    if "fail" in outcomes:
        return 1
    # Without a single comparison nothing has passed.
    return 0 if outcomes and set(outcomes) == {"pass"} else Inconclusive.exit_code


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}={part}" for key, part in value.items())
    return str(value)


def _arithmetic(kernel: "Kernel") -> str:
    """The definition, and what each contract's reference says about its arguments."""
    parts = [_reference(contract, name) for contract, name in kernel.references.items()]
    return "\n\n".join([kernel.definition.strip(), *parts])


def _order(contract: str) -> str:
    """What the contract's reference of each operator says about its arguments."""
    from bitgate.kernels.catalogue import KERNELS

    found = [kernel.references[contract] for kernel in KERNELS if contract in kernel.references]
    return "\n\n".join(_reference(contract, name) for name in found)


def _reference(contract: str, name: str) -> str:
    from bitgate.kernels.catalogue import implementation
    from bitgate.kernels.loading import load

    target = implementation(name).target
    return f"{contract} is what {target} computes:\n{inspect.getdoc(load(target))}"


def _contract_facts(contract: "Contract") -> dict[str, Any]:
    from bitgate.kernels.catalogue import KERNELS

    return {
        "contract": contract.name,
        "is": "an order of arithmetic; a candidate file names it, operators have it",
        "summary": contract.summary,
        "batch_invariant": contract.batch_invariant,
        "cross_device": contract.cross_device,
        "operators": [kernel.op for kernel in KERNELS if contract.name in kernel.references],
        "implementations": [
            one.name
            for kernel in KERNELS
            for one in kernel.implementations
            if one.contract == contract.name
        ],
    }


def _kernel_facts(kernel: "Kernel") -> dict[str, Any]:
    return {
        "operator": kernel.op,
        "summary": kernel.summary,
        "tensors": [
            {
                "name": spec.name,
                "role": spec.role,
                "dtype": spec.dtype,
                "axes": f"[{', '.join(spec.axes)}]",
            }
            for spec in kernel.tensors
        ],
        "constants": dict(kernel.constants),
        "references": dict(kernel.references),
        "implementations": [one.name for one in kernel.implementations],
        "suites": [
            f"{suite}: {workload.key}"
            for suite, workloads in kernel.suites.items()
            for workload in workloads
        ],
        "integer_cases": [case.name for case in kernel.integer_cases()],
    }


def _implementation_facts(implementation: "Implementation") -> dict[str, Any]:
    from bitgate.kernels.catalogue import contract

    order = contract(implementation.contract)
    return {
        **asdict(implementation),
        "devices": list(implementation.devices),
        "contract_summary": order.summary,
        "batch_invariant": order.batch_invariant,
        "cross_device": order.cross_device,
    }
