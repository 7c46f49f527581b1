"""Every fault is caught by exactly the checks that its entry lists, and the page says so.

The default run judges the faults in their hosts, which are plain torch; the wide one adds every
Triton implementation as a control, and the kernels' addresses.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from bitgate.parity.faults.__main__ import described
from bitgate.parity.faults.catalogue import AREAS, areas
from bitgate.parity.faults.document import CHECKS, fault_line, page
from bitgate.parity.faults.run import Matrix, run
from bitgate.records.errors import UsageError

PAGE = Path(__file__).parents[3] / "docs" / "moe-faults.md"
# Watching addresses interprets every kernel, and the experts run whole pipelines.
CHEAP = [name for name in AREAS if name not in ("address", "experts")]
EVERY = [*CHEAP, pytest.param("experts", marks=pytest.mark.slow(reason="a thousand pipelines"))]


def in_hosts(name: str) -> Matrix:
    """The matrix of one area, with the hosts alone as controls."""
    area = AREAS[name]()
    hosts = tuple(
        replace(target, correct={host: target.correct[host] for host in target.hosts})
        for target in area.targets
    )
    return run((replace(area, targets=hosts),))


@pytest.mark.parametrize("name", EVERY)
def test_every_fault_is_caught_as_its_entry_says(name: str) -> None:
    matrix = in_hosts(name)
    assert matrix.passed, matrix.problems
    assert all(row.checks("caught") for row in matrix.rows)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for fault in described(matrix)["faults"]:
        assert fault_line(fault) in lines, "stale: bitgate parity faults --write docs/moe-faults.md"


@pytest.mark.slow  # interprets every Triton implementation under every check
def test_the_whole_matrix_and_its_page() -> None:
    matrix = run(areas())
    assert matrix.passed, matrix.problems
    assert page(described(matrix)) == PAGE.read_text(encoding="utf-8")


def test_all_published_bugs_are_there() -> None:
    page_text = PAGE.read_text(encoding="utf-8")
    for number in range(1, 41):
        assert any(f"| B{number}{part} |" in page_text for part in ("", "a")), number
    for number in range(2, 5):
        assert f"| S{number} |" in page_text


@pytest.mark.parametrize("name", [*CHEAP, "experts"])
def test_checks_and_faults_are_described(name: str) -> None:
    area = AREAS[name]()
    assert {check.name for target in area.targets for check in target.checks} <= CHECKS.keys()
    for fault in area.faults:
        assert fault.title, fault.id
        assert fault.trigger, fault.id


def test_an_unknown_area_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown areas \['nothing'\]; known: routing, align"):
        areas(("nothing",))
