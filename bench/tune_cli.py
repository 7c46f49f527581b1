"""`bitgate bench tune`: tiles for an implementation at some numbers of tokens, judged and timed."""

import secrets
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, table, telling
from bitgate.records.errors import UsageError

# Twenty-four with the default, which is among them: rows and columns of a tile, its step, warps.
GRID = "block_m=16,64,128 block_n=64,128 block_k=64,128 num_warps=4,8"


def tune_command(
    tokens: Annotated[str, typer.Option("--tokens", help="Numbers of tokens, such as 1,16,256.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the tuned file.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Such as Qwen3-30B-A3B@ep2; or give --shape.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="Other axes, such as experts=8,hidden=64,...")
    ] = None,
    implementation: Annotated[
        str, typer.Option("--implementation", help="One that takes tiles.")
    ] = "experts_triton",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or xpu.")] = "cpu",
    grid: Annotated[str, typer.Option("--grid", help="Tiles to try, field by field.")] = GRID,
    engine: Annotated[str, typer.Option("--engine", help="Whose file names to use.")] = "0.33",
    rounds: Annotated[int, typer.Option("--rounds", help="Pairs with the default at most.")] = 60,
    processes: Annotated[int, typer.Option("--processes", help="Fresh ones for each.")] = 5,
    margin: Annotated[str, typer.Option("--margin", help="A smaller gain is none.")] = "0.02",
    alpha: Annotated[str, typer.Option("--alpha", help="False claims, over all tried.")] = "0.05",
    samples: Annotated[int, typer.Option("--samples", help="Judged inputs of each.")] = 3,
    report: Annotated[
        Path | None, typer.Option("--report", help="Where to write the report as JSON.")
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Find tiles that are faster with evidence, and write them as the engine reads them.

    Nothing enters a ledger: name the file as `tiles` of a candidate and run that.
    """
    import triton

    from bitgate.bench import tune_file
    from bitgate.bench.tune import Tuning, tune
    from bitgate.kernels import catalogue

    if report is not None and not report.absolute().parent.is_dir():
        raise UsageError(f"--report {report}: expected a folder that exists; make it first")
    found = catalogue.implementation(implementation)
    tuning = Tuning(
        implementation=found,
        device=device,
        workloads=_workloads(found.op, tokens, model, shape),
        grid=configs(grid),
        plan=_plan(rounds, processes, margin, alpha),
        samples=samples,
    )
    path = tune_file.destination(tuning, out, engine, force=force)
    with telling(quiet=as_json) as tell:
        tuned = tune(tuning, tell)
    tune_file.write(path, tuned, force=force, triton_version=triton.__version__)
    facts = tune_file.report(tuning, tuned, path)
    if report is not None:
        tune_file.save(report, facts)
    if as_json:
        print_json(facts)
        return
    _show(facts)


def configs(text: str) -> tuple[Any, ...]:
    """The TileConfigs of a grid such as "block_m=16,64 num_warps=4,8", without the default.

    Raises:
        UsageError: a field or a value is none, or only the default is left.
    """
    from bitgate.kernels.arguments import whole_number
    from bitgate.kernels.moe.configs import FIELDS
    from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig

    fields: dict[str, list[int]] = {}
    for part in text.split():
        name, _, values = part.partition("=")
        numbers = [whole_number(one) for one in values.split(",")]
        if name not in FIELDS or name in fields or None in numbers:
            raise UsageError(
                f"--grid: expected fields of {', '.join(FIELDS)}, each once with numbers, such as "
                f"block_m=16,64; got {part!r:.80}"
            )
        fields[name] = [number for number in numbers if number is not None]
    points = product(*fields.values())
    made = [TileConfig(**dict(zip(fields, values, strict=True))) for values in points]
    others = tuple(dict.fromkeys(one for one in made if one != DEFAULT_CONFIG))
    if not others:
        raise UsageError("--grid: expected others than the default tiles, got only those")
    return others


def _plan(rounds: int, processes: int, margin: str, alpha: str) -> Any:
    from bitgate.records.types import InvariantError, Plan

    try:
        return Plan(
            regime="warm",
            rounds=rounds,
            processes=processes,
            calls_per_sample=1,
            margin=margin,
            alpha=alpha,
            order_seed=secrets.randbits(52),
        )
    except InvariantError as error:
        raise UsageError(f"--rounds, --processes, --margin, --alpha: {error}") from None


def _workloads(op: str, tokens: str, model: str | None, shape: str | None) -> tuple[Any, ...]:
    from bitgate.kernels.arguments import whole_number
    from bitgate.records.models import split_shape
    from bitgate.records.ops import operator
    from bitgate.records.types import Workload

    counts = [whole_number(one) or 0 for one in tokens.split(",")]
    if not all(counts) or len(set(counts)) < len(counts):
        raise UsageError(
            f"--tokens: expected different numbers such as 1,16,256, got {tokens!r:.80}"
        )
    if (model is None) == (shape is None):
        raise UsageError("expected either --model or --shape")
    if model is not None and op != "moe_experts":
        raise UsageError(f"--model gives the axes of moe_experts; name those of {op} with --shape")
    found = []
    for count in counts:
        axes = dict(split_shape(model).experts_axes(count)) if model else _axes(shape or "")
        point = Workload(
            op=op, axes=tuple(sorted((axes | {"tokens": count}).items())), dtype="bfloat16"
        )
        operator(op).check(point)
        found.append(point)
    return tuple(found)


def _axes(text: str) -> dict[str, int]:
    from bitgate.kernels.arguments import whole_number

    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        extent = whole_number(value)
        if not name or name in (*axes, "tokens") or extent is None:
            raise UsageError(
                "--shape: expected axes other than tokens, each once, such as experts=8,hidden=64, "
                f"got {part!r:.80}"
            )
        axes[name] = extent
    return axes


def _show(facts: dict[str, Any]) -> None:
    tried = table("tried", "tokens", "tiles", "bits", "what became of it")
    for one in facts["tried"]:
        effect = one["effect"]
        end = one["rejected"] or f"{effect['effect']}, {float(effect['speedup']):.3f}x"
        tiles = "/".join(str(value) for value in one["tiles"].values())
        tried.add_row(str(one["tokens"]), tiles, one["bits"], escape(end))
    console().print(tried)
    chosen = table(f"tiles: {', '.join(facts['default'])}", "tokens", "chosen", "why")
    for one in facts["chosen"]:
        tiles = "/".join(str(value) for value in one["tiles"].values())
        chosen.add_row(str(one["tokens"]), tiles, escape(one["why"]))
    console().print(chosen)
    console().print(f"wrote {escape(facts['file'])}", soft_wrap=True)
