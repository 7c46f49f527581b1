"""The documents are executed: every command that they show exists, every link resolves."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from bitgate import cli
from bitgate.demo import story

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            path
            for folder in ("records", "kernels", "parity", "bench", "sim")
            for path in (ROOT / folder).glob("*.md")
        ),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
COMMAND = re.compile(r"^\s{4,}(bitgate [^#\n]*)|`(bitgate [^`]*)`", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)\)")
OURS = re.compile(r"^ {4,}\./(scripts/\w+)", re.MULTILINE)


def commands_of(text: str) -> list[list[str]]:
    found = [first or second for first, second in COMMAND.findall(text)]
    return [shlex.split(command)[1:] for command in found if "..." not in command]


def unknown_part(arguments: list[str]) -> str | None:
    """The first word that the command line does not know; None where it knows them all."""
    command: Any = typer.main.get_command(cli.app)
    while arguments and hasattr(command, "commands"):
        name, *arguments = arguments
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    options = (word for word in arguments if word.startswith("--"))
    return next((word for word in options if word not in known), None)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist_and_links_resolve(path):
    text = path.read_text()
    for arguments in commands_of(text):
        assert unknown_part(arguments) is None, arguments
    for link in LINK.findall(text):
        assert (path.parent / link).exists(), link
    for script in OURS.findall(text):
        assert (ROOT / script).exists(), script


def test_the_check_knows_a_wrong_command_and_a_wrong_option():
    assert commands_of("    bitgate records lits --ledger x\n") == [
        ["records", "lits", "--ledger", "x"]
    ]
    assert unknown_part(["records", "lits"]) == "lits"
    assert unknown_part(["records", "list", "--leger", "x"]) == "--leger"
    assert unknown_part(["records", "list", "--ledger", "x"]) is None


def test_the_readme_shows_what_the_demo_prints():
    """The candidates and endings that the demo expects of itself are those in the README."""
    shown = (ROOT / "README.md").read_text().partition("<!-- demo output -->")[2]
    shown = shown.partition("<!-- end of demo output -->")[0]
    rows = [line.split() for line in shown.splitlines()]
    for expected in story.CANDIDATES:
        name = expected.file.replace("_", "-")
        row = next((row for row in rows if row and row[0] == name), None)
        assert row is not None, f"the README's demo output lacks {name}"
        assert row[1] in expected.findings
    for told in (*story.MODELS, "tok/s", "coverage: "):
        assert told in shown, f"the README's demo output lacks {told}"
    assert sum(row[-1:] == ["promoted"] for row in rows) == sum(
        len(expected.promoted_tokens) for expected in story.CANDIDATES
    )
