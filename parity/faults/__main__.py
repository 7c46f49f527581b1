"""Runs some areas of the catalogue, or all, and writes the document to standard output.

A process of its own: whether Triton interprets is decided when it is imported.
"""

import json
import sys

from bitgate.parity.faults.catalogue import areas
from bitgate.parity.faults.document import Document, merged
from bitgate.parity.faults.run import Matrix, Row, run


def described(matrix: Matrix) -> Document:
    """The matrix as a document."""
    return merged(
        [
            {
                "passed": matrix.passed,
                "faults": [_fault(row) for row in matrix.rows],
                "controls": [
                    {
                        "target": one.target,
                        "implementation": one.implementation,
                        "check": one.check,
                        "finding": one.finding,
                    }
                    for one in matrix.controls
                ],
                "open": [
                    {
                        "id": one.id,
                        "title": one.title,
                        "trigger": one.trigger,
                        "sources": one.sources,
                        "reason": one.reason,
                        "needs": one.needs,
                    }
                    for one in matrix.open
                ],
                "problems": matrix.problems,
            }
        ]
    )


def _fault(row: Row) -> Document:
    fault = row.fault
    return {
        "id": fault.id,
        "title": fault.title,
        "trigger": fault.trigger,
        "sources": fault.sources,
        "note": fault.note,
        "area": row.area,
        "target": fault.target,
        "host": row.host,
        "caught": row.checks("caught"),
        "missed": row.checks("missed"),
        "idle": row.checks("idle"),
        "findings": {cell.check: cell.finding for cell in row.cells if cell.finding},
        "problems": row.problems,
    }


if __name__ == "__main__":
    print(json.dumps(described(run(areas(tuple(sys.argv[1:]))))))  # noqa: T201 - its answer
