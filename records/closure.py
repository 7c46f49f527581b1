"""Which files make up an implementation: its module and all that it imports, found by reading.

Nothing is executed. Imports that only run time can resolve (``importlib.import_module``, files that
are opened by path) are not seen; name the digest of what they load in the
candidate's env table.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import bitgate
from bitgate.records.errors import UsageError
from bitgate.records.proof import Pairs

# What the paths of this package's own sources are relative to.
PACKAGE_ROOT = Path(bitgate.__file__).parent.parent


def source_closure(root: Path, module: str) -> Pairs:
    """(path below root, SHA-256) of the module and of each file below root that it imports.

    Imports are followed transitively and into packages' ``__init__`` files, and into this package,
    whose files are named ``bitgate/...``: a candidate that wraps one of its implementations is no
    more than these files say. All else outside of `root` is a library and belongs to the
    environment.

    Raises:
        UsageError: the module's file is not below root, or a file does not parse.
    """
    if _file_of(root, module) is None:
        raise UsageError(
            f"module {module!r}: expected {module.replace('.', '/')}.py below {root}; "
            "check the module's name and the root"
        )
    seen: dict[Path, str] = {}
    waiting = [module]
    while waiting:
        for path, name in _files_of(root, waiting.pop()):
            if path not in seen:
                data = path.read_bytes()
                seen[path] = hashlib.sha256(data).hexdigest()
                waiting.extend(_imports(path, name, data))
    return tuple(sorted((_label(root, path), digest) for path, digest in seen.items()))


def defined_names(root: Path, module: str) -> frozenset[str] | None:
    """Every name that the module's text binds anywhere; None where only running it can tell.

    Too many rather than too few, so that a name that is missing here is really a misspelt one.
    """
    path = _file_of(root, module)
    if path is None:
        return None
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    unknowable = {"*", "__getattr__", "globals", "exec", "setattr", "vars"}
    return None if names & unknowable else frozenset(names)


def _file_of(root: Path, module: str) -> Path | None:
    """The file of a module below root, or of this package; a package's is its ``__init__``."""
    parts = module.split(".")
    for folder in (root, PACKAGE_ROOT) if parts[0] == bitgate.__name__ else (root,):
        base = folder.joinpath(*parts)
        for path in (base / "__init__.py", base.with_name(base.name + ".py")):
            if module and path.is_file():
                return path
    return None


def _label(root: Path, path: Path) -> str:
    """The path below root, or below the directory that holds this package."""
    return path.relative_to(root if path.is_relative_to(root) else PACKAGE_ROOT).as_posix()


def _files_of(root: Path, module: str) -> Iterator[tuple[Path, str]]:
    """The files that importing a module runs: its own and its packages' ``__init__`` files."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        path = _file_of(root, name)
        if path is not None:
            yield path, name


def _imports(path: Path, module: str, data: bytes) -> Iterator[str]:
    """The names of the modules that a file may import; some may be names inside a module."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}, line {line}: not valid Python: {error}") from error
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(package, node)
            yield source
            yield from (f"{source}.{alias.name}".lstrip(".") for alias in node.names)


def _absolute(package: str, node: ast.ImportFrom) -> str:
    """The absolute name behind ``from ... import``, with its leading dots resolved."""
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *(node.module.split(".") if node.module else [])])
