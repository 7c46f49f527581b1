"""`bitgate kernels roundings`: where each engine's experts round, and who may be compared."""

from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.markup import escape

from bitgate.records.console import console, print_json, table
from bitgate.records.errors import UsageError

# What is shown in one cell.
_GROUPS: Final = (
    ("gemm1_out", "activation", "gemm2_operand"),
    ("weight", "gemm2_out"),
    ("combine",),
    ("step", "exp"),
    ("contract", "bound"),
)


def roundings_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LEFT RIGHT]", help="Two of the names: may their bits be equal?"),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Where the experts of each engine and contract round; with two names, who may be compared.

    Exit code 2: a bitwise comparison of the two is refused, or a name is unknown.
    """
    from bitgate.kernels.moe.roundings import ROUNDINGS, VALUES, require_comparable, roundings

    if names:
        if len(names) != 2:
            raise UsageError(f"expected two names or none, got {' '.join(names)}")
        # Both names first: one that is unknown is comparable with nothing, itself included.
        left, right = map(roundings, names)
        require_comparable(left.name, right.name)
        told = f"{names[0]} and {names[1]} round at the same places: equal bits may be claimed"
        print_json({"comparable": True, "names": names}) if as_json else console().print(told)
        return
    if as_json:
        print_json({"values": VALUES, "roundings": [asdict(one) for one in ROUNDINGS]})
        return
    shown = table("roundings of the experts", "of", *(", ".join(group) for group in _GROUPS))
    for one in ROUNDINGS:
        shown.add_row(
            one.name, *(", ".join(str(getattr(one, name) or "-") for name in g) for g in _GROUPS)
        )
    console().print(shown)
    for column, values in VALUES.items():
        for value, text in values.items():
            console().print(f"{column} {value}: {escape(text)}")
    for one in ROUNDINGS:
        console().print(f"{one.name}: {escape(one.source)}")
