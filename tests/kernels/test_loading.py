"""Loading a target: the right function from the right file, or an error that helps."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitgate.kernels.loading import load
from bitgate.records.errors import EnvironmentUnfit, UsageError


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) is None or str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def test_a_file_below_the_root_is_loaded_and_the_path_restored(root: Path) -> None:
    write(root, "loading_probe_a.py", "def run():\n    return 41\n")
    before = list(sys.path)
    assert load("loading_probe_a:run", root)() == 41
    assert sys.path == before


def test_a_package_and_a_static_method_below_the_root(root: Path) -> None:
    write(root, "loading_pkg/__init__.py", "")
    write(
        root,
        "loading_pkg/inner.py",
        "class Box:\n    @staticmethod\n    def run():\n        return 7\n",
    )
    assert load("loading_pkg.inner:Box.run", root)() == 7


def test_an_installed_target_needs_no_root() -> None:
    assert load("bitgate.kernels.loading:load") is load


def test_another_module_of_the_same_name_must_not_win(root: Path) -> None:
    write(root, "first/loading_twin.py", "def run():\n    return 'first'\n")
    write(root, "second/loading_twin.py", "def run():\n    return 'second'\n")
    assert load("loading_twin:run", root / "first")() == "first"
    with pytest.raises(UsageError, match="expected module 'loading_twin' from below") as caught:
        load("loading_twin:run", root / "second")
    assert str(root / "first" / "loading_twin.py") in str(caught.value)
    assert str(root / "second") in str(caught.value)


def test_a_standard_module_that_only_exists_elsewhere_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="from below"):
        load("json:dumps", root)


@pytest.mark.parametrize("target", ["no_colon", ":run", "module:", ""])
def test_a_target_without_both_parts(target: str) -> None:
    with pytest.raises(UsageError, match="module:function"):
        load(target)


def test_a_missing_module_lists_what_is_beside_it(root: Path) -> None:
    write(root, "loading_real.py", "")
    with pytest.raises(UsageError, match=r"no 'loading_reel' in .*beside it lies: loading_real"):
        load("loading_reel:run", root)


def test_a_missing_submodule_lists_its_package(root: Path) -> None:
    write(root, "loading_box/__init__.py", "")
    write(root, "loading_box/lid.py", "")
    with pytest.raises(UsageError, match=r"beside it lies: lid"):
        load("loading_box.lit:run", root)


def test_a_missing_file_of_this_project_lists_its_neighbours() -> None:
    with pytest.raises(UsageError, match=r"no 'loadin' in .*beside it lies: .*loading"):
        load("bitgate.kernels.loadin:load")


def test_a_missing_function_lists_the_public_ones(root: Path) -> None:
    write(root, "loading_fns.py", "def run(): ...\ndef _hidden(): ...\nLIMIT = 3\n")
    with pytest.raises(UsageError, match=r"has no 'ran'; its public functions: run$"):
        load("loading_fns:ran", root)


def test_what_cannot_be_called_is_refused(root: Path) -> None:
    write(root, "loading_value.py", "LIMIT = 3\n")
    with pytest.raises(UsageError, match="expected a function, 'LIMIT' is a int"):
        load("loading_value:LIMIT", root)


def test_a_failure_inside_the_module_shows_its_own_exception(root: Path) -> None:
    write(root, "loading_broken.py", "value = 1 // 0\n")
    with pytest.raises(UsageError, match="raised ZeroDivisionError") as caught:
        load("loading_broken:run", root)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_missing_import_of_the_module_is_not_blamed_on_the_module(root: Path) -> None:
    write(root, "loading_needs.py", "import no_such_dependency_here\n")
    with pytest.raises(UsageError, match=r"raised ModuleNotFoundError: .*no_such_dependency_here"):
        load("loading_needs:run", root)


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        load("anything:run", tmp_path / "absent")


def test_what_a_node_lacks_keeps_its_own_message_and_exit_code(root: Path) -> None:
    write(
        root,
        "loading_unfit.py",
        "from bitgate.records.errors import EnvironmentUnfit\n"
        "raise EnvironmentUnfit('triton is missing')\n",
    )
    with pytest.raises(EnvironmentUnfit, match="triton is missing"):
        load("loading_unfit:run", root)
