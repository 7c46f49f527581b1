"""The rules of the layout, each with a planted violation that must be refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "bench", "parity", "records", "sim")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_reached_by_a_link_and_is_no_package_of_its_own(folder):
    link = ROOT / "bitgate" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_says_what_it_answers(folder):
    readme = (ROOT / folder / "README.md").read_text()
    assert readme.startswith(f"# {folder}")
    assert len(readme.splitlines()) <= 70


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The packages in a directory of their own, so that a violation can be planted."""
    root = tmp_path_factory.mktemp("contracts")
    shutil.copy(ROOT / "pyproject.toml", root)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("bitgate", *FOLDERS):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=ignore)
    return root


def contracts(root: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--show-timings"]
    environment = os.environ | {"PYTHONPATH": str(root), "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_the_import_contracts_hold(copy):
    result = contracts(copy)
    assert result.returncode == 0, result.stdout
    assert "3 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("kernels", "import bitgate.parity.planted_target", "bench and sim stand on parity"),
        ("bench", "import bitgate.sim.workload", "bench and sim stand on parity"),
        ("sim", "import bitgate.kernels.spec", "the simulator sees nothing but records"),
        ("records", "import torch", "without torch and triton"),
        ("sim", "import triton", "without torch and triton"),
    ],
)
def test_a_planted_import_is_refused(copy, module, line, broken):
    target = copy / "parity" / "planted_target.py"
    planted = copy / module / "planted.py"
    target.write_text("")
    planted.write_text(line + "\n")
    try:
        result = contracts(copy)
    finally:
        planted.unlink()
        target.unlink()
    assert result.returncode == 1, result.stdout
    verdicts = [text for text in result.stdout.splitlines() if broken in text]
    assert any("BROKEN" in text for text in verdicts), result.stdout
