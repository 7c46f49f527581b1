"""The one place that decides how the project speaks to a terminal."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr; plain text, 120 wide, when that is not a terminal."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = 120
    return made


def table(title: str, *columns: str) -> Table:
    """An empty table that folds long cells instead of cutting them, without frames in the way."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_json(value: Any) -> None:
    """The one JSON document that a command prints with --json, in the one style of all commands."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Progress]:
    """A progress display on stderr, so that stdout stays clean for results and JSON.

    Silent where stderr is not a terminal, or with `quiet`.
    """
    out = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out, disable=quiet or not out.is_terminal) as display:
        yield display


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A function (what, done, total) that moves one progress bar per `what` until it is full.

    Where no bar can be drawn it prints one line per `what`, so that a log shows the progress too.
    """
    log = console(stderr=True)
    lines = not quiet and not log.is_terminal
    with progress(quiet=quiet) as display:
        bars: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = display.add_task(escape(what), total=total)
                if lines:
                    log.print(what, markup=False)
            display.update(bars[what], completed=done, total=total, visible=done < total)

        yield tell
