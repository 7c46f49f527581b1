"""`bitgate kernels config|shapes`: the tiles that an engine launches with, the shapes of models."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, table
from bitgate.records.errors import UsageError

_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def config_command(
    experts: Annotated[int, typer.Option("--experts", help="Local experts.")],
    intermediate: Annotated[int, typer.Option("--intermediate", help="One expert's, on a rank.")],
    tokens: Annotated[int, typer.Option("--tokens", help="Rows before top_k.")],
    device_name: Annotated[str, typer.Option("--device-name", help="Such as NVIDIA_H200.")],
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, fp8_w8a8, int4_w4a16, ...")] = "bf16",
    block_shape: Annotated[
        str | None, typer.Option("--block-shape", help="Of the quantisation, such as 128,128.")
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", help="Tuned files; may be repeated, the first that has one wins."),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="vLLM's version.")] = "0.33",
    *,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="The engine runs in that mode.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """The tiles that vLLM launches its experts with, and where they come from."""
    from bitgate.kernels.moe.configs import resolve, without_dtype
    from bitgate.kernels.moe.configs_vllm import Lookup, file_name

    lookup = Lookup(
        experts=experts,
        intermediate=intermediate,
        tokens=tokens,
        device_name=device_name,
        dtype=dtype,
        block_shape=None if block_shape is None else _block_shape(block_shape),
        engine=engine,
        batch_invariant=batch_invariant,
    )
    found = resolve(lookup, folder or ())
    forgetful = without_dtype(lookup, folder or ())
    facts: dict[str, Any] = {"file_name": file_name(lookup), **asdict(found)}
    facts["without_dtype"] = None if forgetful is None else forgetful.tiles
    if as_json:
        print_json(facts)
        return
    shown = table(f"tiles for {tokens} tokens", "what", "value")
    for name, value in found.tiles.items():
        shown.add_row(name, str(value))
    for name in ("source", "key", "sha256"):
        if facts[name] is not None:
            shown.add_row(name, escape(str(facts[name])))
    console().print(shown)
    for note in found.notes:
        console().print(escape(note))
    if found.warning is not None:
        console().print(f"warning: {escape(found.warning)}")
    if forgetful is not None:
        console().print(f"a lookup that forgets the dtype launches with {forgetful.tiles}")


def shapes_command(
    model: Annotated[
        str | None, typer.Argument(help="A model, or a rank of one, such as Qwen3-30B-A3B@ep2.")
    ] = None,
    *,
    as_json: _Json = False,
) -> None:
    """The models whose shapes are known, or one of them with its sources."""
    from bitgate.records.models import names, shape, split_shape

    if model is None:
        models = [shape(name) for name in names()]
        if as_json:
            print_json([asdict(one) for one in models])
            return
        columns = ("hidden", "intermediate", "experts", "top_k", "layers", "moe_layers")
        shown = table("models", "name", *columns, "overflows at")
        for one in models:
            numbers = [str(getattr(one, name)) for name in columns]
            shown.add_row(escape(one.name), *numbers, str(one.first_overflow_tokens))
        console().print(shown)
        console().print("overflows at: tokens from which a row's offset takes more than 31 bits")
        return
    split = split_shape(model)
    facts = asdict(split.model) | {
        "rank": {"experts": split.experts, "intermediate": split.intermediate},
        "moe_layers": split.model.moe_layers,
        "first_overflow_tokens": split.first_overflow_tokens,
        "rest_of_128": {
            "hidden": split.model.hidden % 128,
            "intermediate": split.intermediate % 128,
        },
    }
    if as_json:
        print_json(facts)
        return
    shown = table(model, "what", "value")
    for name, value in facts.items():
        shown.add_row(name, "not read" if value is None else escape(str(value)))
    console().print(shown)


def _block_shape(text: str) -> tuple[int, int]:
    from bitgate.kernels.arguments import whole_number

    extents = [whole_number(part.strip()) for part in text.strip("[]").split(",")]
    match extents:
        case [int(block_n), int(block_k)]:
            return block_n, block_k
    raise UsageError(f"--block-shape: expected two extents such as 128,128, got {text!r:.80}")
