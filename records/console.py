"""The one place that decides how the project speaks to a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr; plain text when that is not a terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


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
