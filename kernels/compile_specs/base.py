"""What is compiled: one kernel at one point."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec:
    """One kernel at one point: `target` is module:function, below `root` where that is given.

    `arguments` are (name, type) with Triton's type names; `:16` says that a pointer or an integer
    is a multiple of 16, as launches find it. `constants` are the compile-time arguments. Without
    `num_stages` it is the backend's default.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int | None = None
    canonical: bool = True
    root: str | None = None


def pointers(names: str, kind: str) -> tuple[tuple[str, str], ...]:
    """Aligned pointers to elements of one kind; `names` are parted by spaces."""
    return tuple((name, f"*{kind}:16") for name in names.split())
