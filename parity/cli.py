"""`bitgate capture`, and `bitgate parity`: bundles and what differs between them, and suites."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from bitgate.parity.faults.cli import faults_command
from bitgate.parity.order.cli import order_command
from bitgate.parity.suites.cli import run_command
from bitgate.records.console import console, print_json, progress, table
from bitgate.records.errors import UsageError

if TYPE_CHECKING:
    from bitgate.parity.bundle import Bundle, Frame
    from bitgate.parity.compare_report import Report
    from bitgate.records.types import Value

app = typer.Typer(no_args_is_help=True, help="What differs: bundles of tensors, whole engines.")
app.command("run")(run_command)
app.command("order")(order_command)
app.command("faults")(faults_command)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
_EXIT = {"equal": 0, "differs": 1, "incomparable": 3}


def capture_command(
    out: Annotated[Path, typer.Option("--out", help="The bundle directory to write.")],
    tiny: Annotated[
        str | None, typer.Option("--tiny", help="Build and capture deepseek-v4 or qwen3-moe.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="A Hugging Face checkpoint directory.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="One prompt per line, or .jsonl.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to generate per prompt.")] = 16,
    keep: Annotated[
        int, typer.Option("--keep", help="Store the tensors of the last steps; 0: digests only.")
    ] = 64,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or xpu.")] = "cpu",
    *,
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="Store the tensors of every step.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Capture the tensors at a model's boundaries while it continues prompts greedily."""
    if (tiny is None) == (model is None):
        raise UsageError("name either a tiny model with --tiny or a directory with --model")
    if model is not None and prompts is None:
        raise UsageError("--model needs --prompts FILE: one prompt per line, or .jsonl")
    from bitgate.parity.bundle import Bundle
    from bitgate.parity.capture_checkpoint import (
        Job,
        capture_checkpoint,
        capture_tiny,
        tiny_prompts,
    )
    from bitgate.parity.capture_prompts import read_prompts
    from bitgate.parity.capture_transformers import Generation

    asked = read_prompts(prompts) if prompts is not None else tiny_prompts()
    generation = Generation(tokens=tokens, keep_steps=None if keep_all else keep)
    with progress(quiet=as_json) as display:
        task = display.add_task("requests", total=len(asked))
        job = Job(device=device, generation=generation, progress=lambda: display.advance(task))
        if model is not None:
            capture_checkpoint(model, asked, out, job)
        elif tiny is not None:
            capture_tiny(tiny, out, job, asked)
    bundle = Bundle.open(out)
    if as_json:
        print_json({"bundle": str(out), **_facts(bundle)})
        return
    _print_facts(bundle)
    console().print(f"look inside: bitgate parity inspect {escape(str(out))}")


@app.command("inspect")
def inspect_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A bundle.")],
    boundary: Annotated[
        str, typer.Option("--boundary", help="Only boundaries whose name holds this.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", help="At most so many frames; 0: all.")] = 42,
    *,
    as_json: _Json = False,
) -> None:
    """What a bundle holds, after all of it has been verified."""
    from bitgate.parity.bundle import Bundle

    bundle = Bundle.open(folder)
    frames = [frame for frame in bundle.frames() if boundary in frame.boundary.key]
    if as_json:
        whole = {"frames": [_frame_facts(frame) for frame in frames], **_facts(bundle)}
        print_json({**whole, "manifest": _plain(bundle.manifest)})
        return
    _print_facts(bundle)
    shown = table("frames", "step", "boundary", "operator", "tensors", "digests (sum lane)")
    for frame in frames[: limit or None]:
        step = f"{frame.step.request}:{frame.step.token}"
        names = "\n".join(
            f"{meta.role} {meta.name} {meta.dtype}{list(meta.shape)}" for meta in frame.tensors
        )
        digests = "\n".join(meta.digest[:16] for meta in frame.tensors)
        operator = f"{frame.op or '-'}\n{frame.contract or ''}"
        shown.add_row(step, frame.boundary.key, operator, escape(names), digests)
    console().print(shown)
    if limit and len(frames) > limit:
        console().print(f"{len(frames) - limit} more frames; --limit 0 shows all")


@app.command("compare")
def compare_command(
    expected: Annotated[Path, typer.Argument(help="The bundle of the promoted path.")],
    actual: Annotated[Path, typer.Argument(help="The bundle to judge.")],
    *,
    as_json: _Json = False,
) -> None:
    """Compare two bundles bit for bit: exit code 0 equal, 1 different, 3 incomparable."""
    from bitgate.parity.bundle import Bundle
    from bitgate.parity.compare import compare_bundles

    report = compare_bundles(Bundle.open(expected), Bundle.open(actual))
    if as_json:
        print_json(_report_facts(report))
    else:
        _print_report(report, expected, actual)
    raise typer.Exit(_EXIT[report.verdict])


def _plain(value: "Value") -> Any:
    from bitgate.records.codec import canonical

    return json.loads(canonical(value))


def _facts(bundle: "Bundle") -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "sha256": bundle.sha256,
        "model": manifest.model.name,
        "model_type": manifest.model.model_type,
        "requests": manifest.requests,
        "steps": len(manifest.steps),
        "steps_with_tensors": sum(line.kept for line in manifest.steps),
        "boundaries": len({(e.boundary.name, e.boundary.layer) for e in manifest.expected}),
        "frames_captured": len(bundle.lines),
        "warm_up_frames_dropped": manifest.discarded,
        "bytes": sum(path.stat().st_size for path in bundle.path.iterdir()),
    }


def _print_facts(bundle: "Bundle") -> None:
    shown = table(f"bundle {escape(str(bundle.path))}", "what", "value")
    for name, value in _facts(bundle).items():
        shown.add_row(name.replace("_", " "), escape(str(value)))
    for line in bundle.tokens:
        answer = f"{line.prompt or list(line.prompt_token_ids)} -> {list(line.token_ids)}"
        shown.add_row(f"request {line.request}", escape(answer))
    console().print(shown)


def _frame_facts(frame: "Frame") -> dict[str, Any]:
    return {
        "seq": frame.seq,
        "step": _plain(frame.step),
        "boundary": frame.boundary.key,
        "op": frame.op,
        "contract": frame.contract,
        "constants": {name: repr(value) for name, value in frame.constants.items()},
        "closed": frame.closed,
        "kept": frame.kept,
        "mutated": list(frame.mutated),
        "tensors": [_plain(meta) for meta in frame.tensors],
    }


def _report_facts(report: "Report") -> dict[str, Any]:
    facts: dict[str, Any] = _plain(report)
    unequal = [row for row in facts.pop("rows") if row["kind"] != "equal"]
    first = {str(rank): _plain(row) for rank, row in report.first_by_rank.items()}
    return facts | {
        "reason": report.reason,
        "tensors_compared": report.compared,
        "frames": report.counts,
        "first_by_rank": first,
        "unequal": unequal,
    }


def _print_report(report: "Report", expected: Path, actual: Path) -> None:
    out = console()
    counts = ", ".join(f"{count} {kind}" for kind, count in report.counts.items())
    out.print(f"{report.verdict}: {escape(report.reason)}")
    out.print(f"compared: {report.compared} tensors in {len(report.rows)} frames: {counts}")
    for title, items in (
        ("refused", report.refused),
        ("answers that differ", report.answers),
        ("may differ, and does", report.noted),
    ):
        if items:
            shown = table(title, "fact", "expected", "actual")
            for item in items:
                shown.add_row(*map(escape, (item.field, item.expected, item.actual)))
            out.print(shown)
    for rank, row in report.first_by_rank.items():
        shown = table(f"first {row.kind} of rank {rank}: {row.where}", "tensor", "difference")
        for tensor in row.differences:
            numbers = ", ".join(f"{name} {value}" for name, value in tensor.numbers)
            text = f"{tensor.text}\n{numbers}" if numbers else tensor.text
            shown.add_row(tensor.name, escape(text))
        out.print(shown)
    out.print(f"again: bitgate parity compare {escape(str(expected))} {escape(str(actual))}")
