"""The gates: is a candidate bitwise the same as its reference, under what breaks kernels?

`run` asks every gate in order and answers with a Verdict; `recheck_evidence` reads the stored
evidence again at promotion. A new gate is one file that exports one `Gate`, and its line in
`catalogue.GATES`.
"""

from bitgate.parity.gates.base import Budget, Gate, Planned, Subject
from bitgate.parity.gates.catalogue import GATES, ORDER, PLANNED
from bitgate.parity.gates.recheck import recheck_evidence
from bitgate.parity.gates.run import identity_key, run

__all__ = [
    "Subject",
    "Budget",
    "Gate",
    "Planned",
    "GATES",
    "PLANNED",
    "ORDER",
    "run",
    "identity_key",
    "recheck_evidence",
]
