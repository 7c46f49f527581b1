"""Every gate by name and in order; add yours to GATES with a file of its own."""

from bitgate.parity.gates.base import Gate, Planned
from bitgate.parity.gates.g0_identity import IDENTITY
from bitgate.parity.gates.g2_integers import INTEGERS
from bitgate.parity.gates.g4_eager import EAGER
from bitgate.parity.gates.g9_captured import CAPTURED
from bitgate.parity.gates.g12_processes import PROCESSES

GATES: tuple[Gate, ...] = (IDENTITY, INTEGERS, EAGER, CAPTURED, PROCESSES)

_NO_GRAPHS = "this version calls implementations eagerly and replays no device graph"
_NO_FABRIC = "this version runs one rank in one stream"

PLANNED: tuple[Planned, ...] = (
    Planned(
        id="G1",
        title="operation self-test",
        reason="this version does not try single device operations before the kernel",
    ),
    Planned(
        id="G3",
        title="oracle order",
        reason="gates compare bits under one contract; `bitgate parity order` recovers an order",
    ),
    Planned(id="G5", title="changed-input graph replay", reason=_NO_GRAPHS),
    Planned(
        id="G6",
        title="alias and buffer-slot matrix",
        reason="this version gives every input a buffer of its own",
    ),
    Planned(id="G7", title="rank skew", reason=_NO_FABRIC),
    Planned(id="G8", title="counter-wrap soak", reason=_NO_GRAPHS),
    Planned(
        id="G10",
        title="observer parity",
        reason="this version runs a candidate without taps inside",
    ),
)

ORDER: tuple[str, ...] = tuple(f"G{number}" for number in (*range(11), 12))
