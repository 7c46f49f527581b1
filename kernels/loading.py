"""From the text ``module:function`` to the function, without letting another copy slip in.

A candidate that silently resolves to an installed package of the same name would be timed and
promoted under a false identity; with a root, the file that was really imported must lie below it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bitgate.records.errors import BitgateError, UsageError


def load(target: str, root: Path | None = None) -> Callable[..., Any]:
    """Import the function that `target` names as ``module:function``.

    Args:
        target: for example ``bitgate.kernels.moe.experts:experts_loop``; dots in the function
            part walk through classes and namespaces.
        root: put first on the import path while importing; the module must come from below it.

    Raises:
        UsageError: the text has no colon, the module or the function is missing, what was found
            cannot be called, the module failed while it was imported (the original exception is
            the cause), or another module of that name won over the one below `root`.
    """
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise UsageError(
            f"expected a target such as 'my_kernels.experts:run' (module:function), got {target!r}"
        )
    folder = None if root is None else root.resolve()
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{target}: the root {folder} is not a directory; name the one to import")
    with _first_on_path(folder):
        module = _import(module_name, target, folder)
    if folder is not None:
        _require_below(module, folder, target)
    return _attribute(module, attribute, target)


@contextmanager
def _first_on_path(folder: Path | None) -> Iterator[None]:
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder))
        # A file written a moment ago is invisible to finders that have cached its directory.
        importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _import(module_name: str, target: str, folder: Path | None) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(_missing_module(module_name, target, folder)) from error
        raise UsageError(_failed_import(module_name, target, error)) from error
    except BitgateError:
        # Ours already says what is missing on this node, with the exit code for it.
        raise
    except Exception as error:
        raise UsageError(_failed_import(module_name, target, error)) from error


def _failed_import(module_name: str, target: str, error: Exception) -> str:
    return (
        f"{target}: importing module {module_name!r} raised {type(error).__name__}: {error}; "
        "import it by itself to see where"
    )


def _missing_module(module_name: str, target: str, folder: Path | None) -> str:
    """The message with what lies beside the place where the module was looked for."""
    parts = module_name.split(".")
    places = [] if folder is None else [str(folder)]
    missing = parts[0]
    # The packages above the missing one were imported on the way to it.
    for depth in range(1, len(parts)):
        parent = sys.modules.get(".".join(parts[:depth]))
        if parent is None:
            break
        places, missing = list(getattr(parent, "__path__", ())), parts[depth]
    names = sorted({name for place in places for name in _modules_in(Path(place))})
    beside = ", ".join(names) if names else "nothing"
    where = " and ".join(places) if places else "the import path"
    return (
        f"{target}: there is no module {module_name!r}: no {missing!r} in {where}; "
        f"beside it lies: {beside}"
    )


def _modules_in(place: Path) -> Iterator[str]:
    if place.is_dir():
        for entry in place.iterdir():
            if entry.suffix == ".py" and entry.stem != "__init__":
                yield entry.stem
            elif entry.is_dir() and entry.name.isidentifier() and not entry.name.startswith("_"):
                yield entry.name


def _require_below(module: ModuleType, folder: Path, target: str) -> None:
    file = getattr(module, "__file__", None)
    actual = None if file is None else Path(file).resolve()
    if actual is None or not actual.is_relative_to(folder):
        raise UsageError(
            f"{target}: expected module {module.__name__!r} from below {folder}, but it came from "
            f"{actual or 'inside the interpreter'}; another module of that name was imported "
            "first: rename yours, or start from a fresh process"
        )


def _attribute(module: ModuleType, attribute: str, target: str) -> Callable[..., Any]:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = sorted(
                name
                for name, value in vars(module).items()
                if not name.startswith("_") and inspect.isroutine(value)
            )
            raise UsageError(
                f"{target}: module {module.__name__!r} has no {attribute!r}; "
                f"its public functions: {', '.join(known) if known else 'none'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(
            f"{target}: expected a function, {attribute!r} is a {type(found).__name__}; "
            "name a callable"
        )
    return found
