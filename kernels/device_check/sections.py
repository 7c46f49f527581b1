"""The sections of a device check, in the order in which they run; add yours here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bitgate.kernels.device_check import fixtures, pipelines, questions, tiles, timings
from bitgate.kernels.device_check.context import Context
from bitgate.kernels.device_check.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the check. `share` is its part of the budget, in percent."""

    name: str
    run: Callable[[Context], Iterator[Row]]
    share: int


SECTIONS: Final = (
    Section(name="arithmetic", run=questions.arithmetic, share=5),
    Section(name="canonical", run=fixtures.canonical, share=22),
    Section(name="fixtures", run=fixtures.integer_fixtures, share=16),
    Section(name="native", run=pipelines.native, share=20),
    Section(name="tiles", run=tiles.tiles, share=15),
    Section(name="graphs", run=questions.graphs, share=7),
    Section(name="experts", run=timings.experts, share=10),
    Section(name="hyper-connections", run=timings.hyper_connections, share=5),
)
