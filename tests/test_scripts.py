"""The set-up script with a stand-in for Python: what is made, kept, made again, and refused."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# As `python3` it makes environments that hold a copy of itself; what pip is asked for is noted.
PYTHON = """#!/bin/bash
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin .venv/lib/python3.11/site-packages
    cp "$0" .venv/bin/python ;;
  "-m pip install"*) sleep 0.05; echo "$*" >>pip.log; [ ! -e no-network ] ;;
  *version_info*) ;;
  *"import torch"*) [ -e "$(dirname "$0")/torch" ] ;;
  *sys.path*) echo "the node's packages" ;;
  *) echo "Python 3.11" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout whose path holds a space, beside the only `python3` there is."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/setup", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in (
        "cat",
        "cp",
        "cut",
        "dirname",
        "flock",
        "grep",
        "mkdir",
        "rm",
        "sha256sum",
        "sleep",
    ):
        found = shutil.which(name)
        assert found is not None, name
        (commands / name).symlink_to(found)
    plant(commands / "python3")
    return root


def plant(path: Path, text: str = PYTHON) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def command(checkout: Path, *arguments: str) -> subprocess.Popen[str]:
    """The script as it is called from another directory."""
    return subprocess.Popen(
        [shutil.which("bash") or "bash", "a checkout/scripts/setup", *arguments],
        cwd=checkout.parent,
        env={"PATH": str(checkout.parent / "commands"), "CDPATH": os.curdir},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def setup(checkout: Path, *arguments: str) -> tuple[int, str, str]:
    process = command(checkout, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


def installs(checkout: Path) -> list[str]:
    """What pip was asked for, without the set-up's own first step."""
    return [line for line in (checkout / "pip.log").read_text().splitlines() if "-e" in line]


def test_it_prints_the_python_and_does_nothing_the_second_time(checkout):
    wanted = (0, f"{checkout}/.venv/bin/python\n")
    first = setup(checkout)
    assert first[:2] == wanted, first[2]
    assert "-c constraints.txt" in installs(checkout)[0]
    assert setup(checkout) == (*wanted, "")
    assert len(installs(checkout)) == 1


@pytest.mark.parametrize("changed", ["constraints.txt", "scripts/setup"])
def test_a_changed_input_makes_the_environment_anew(checkout, changed):
    setup(checkout)
    with (checkout / changed).open("a") as stream:
        stream.write("# changed\n")
    assert setup(checkout)[0] == 0
    assert len(installs(checkout)) == 2


def test_an_interrupted_set_up_does_not_count_as_ready(checkout):
    (checkout / "no-network").touch()
    code, out, err = setup(checkout)
    assert (code, out) == (4, "")
    assert "docs/install.md" in err
    assert (checkout / ".venv/bin/python").exists()
    (checkout / "no-network").unlink()
    assert setup(checkout)[0] == 0
    assert len(installs(checkout)) == 1


def test_of_two_at_once_one_waits_for_the_other(checkout):
    both = [command(checkout), command(checkout)]
    answers = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers == [f"{checkout}/.venv/bin/python\n"] * 2
    assert len(installs(checkout)) == 1


def test_a_node_brings_its_own_torch(checkout):
    # A path relative to where the user is, not to the checkout.
    plant(checkout.parent / "node/python")
    (checkout.parent / "node/torch").touch()
    code, _, err = setup(checkout, "--python", "node/python")
    assert code == 0, err
    pins = (checkout / ".venv/constraints.txt").read_text().splitlines()
    assert not any(pin.startswith(("torch==", "triton==", "numpy==")) for pin in pins)
    assert any(pin.startswith("transformers==") for pin in pins)
    seen = checkout / ".venv/lib/python3.11/site-packages/node.pth"
    assert seen.read_text() == "the node's packages\n"
    assert "[transformers,test]" in installs(checkout)[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--python", "absent"), "got 'absent'"),
        (("--python",), "needs the path of an interpreter"),
        (("--python", "commands/python3"), "has no torch"),
    ],
)
def test_an_unusable_interpreter_is_named(checkout, arguments, told):
    code, out, err = setup(checkout, *arguments)
    assert (code, out) == (4, "")
    assert told in err
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    "text", [None, "#!/bin/bash\n[ $1 = --version ] && echo Python 3.9\nexit 1"]
)
def test_no_python_or_an_old_one_says_what_is_needed(checkout, text):
    python = checkout.parent / "commands/python3"
    python.unlink()
    if text is not None:
        plant(python, text)
    code, out, err = setup(checkout)
    assert (code, out) == (4, "")
    assert "Python >= 3.11" in err
    assert text is None or "Python 3.9" in err
